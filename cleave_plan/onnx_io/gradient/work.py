"""How much work and memory a gradient file asks for, as the planner sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from cleave_plan.onnx_io.importer import import_model
from cleave_plan.onnx_io.reader import read_bytes
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.recompute import LEAST_SPARED

NOT_WORTHWHILE = (
    f"computing forward values again would not spare {LEAST_SPARED:.0%} of the most bytes that are alive at once: all are kept"
)


ORDER_MATTERS = (
    "memory is spared where nodes run in the file's order or by levels: in onnxruntime with execution_order = PRIORITY_BASED, as "
    "its default order spares little"
)
"""What a person must know who gives a file with recomputation to another runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Of one training step: ``gemm_flop``, and ``live_bytes``, the most bytes of activations and gradients (weights left out)
    that are alive during a level of GEMMs, None where a size is not known."""

    gemm_flop: int
    live_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What computing forward values again changes: the step ``before`` (all kept) and ``after``; ``segments``, of which all but
    the last are computed twice (1: none is)."""

    segments: int
    before: StepWork
    after: StepWork

    @property
    def sentence(self) -> str:
        """What a person who asked for it must know."""
        if self.segments == 1:
            return NOT_WORTHWHILE
        live = [format_value(work.live_bytes or 0, Unit.BYTES) for work in (self.after, self.before)]
        return (
            f"forward values of {self.segments - 1} of {self.segments} segments are computed again: at most {live[0]} alive at "
            f"once rather than {live[1]}, GEMM work {self.after.gemm_flop / self.before.gemm_flop:.2f} times"
        )

    @property
    def worthwhile(self) -> bool:
        """Whether it spares at least ``LEAST_SPARED`` of the memory."""
        before, after = self.before.live_bytes, self.after.live_bytes
        return before is not None and after is not None and after <= (1 - LEAST_SPARED) * before


def work_of(model: onnx.ModelProto, path: Path) -> StepWork:
    """The work of a gradient file in memory; ``path`` is what errors call it."""
    workload = import_model(read_bytes(model.SerializeToString(), path)).workload
    live = [level.live_bytes for level in workload.levels]
    known = [size for size in live if size is not None]
    return StepWork(gemm_flop=workload.gemm_flop, live_bytes=max(known, default=0) if len(known) == len(live) else None)
