"""The levels of a training step, one pass after the other: forward, then of each segment what runs again and its gradients.

Within a pass GEMMs keep the order of the forward levels, the backward pass takes them in reverse. A server operator that precedes
forward level p precedes the first level of p or later where it runs again, and its backward pass the first level that is
the backward one of p - 1 or earlier; after the last of the pass, it stands at the pass's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cleave_plan.workload.gemm import Gemm, Phase
from cleave_plan.workload.graph import Level, ServerOperator, Workload
from cleave_plan.workload.recompute import AGAIN, Segment

BACKWARD_TRAFFIC = 2
"""Bytes of an operator's backward pass over those of its forward pass (it reads values and gradients)."""

Gradients = Callable[[Gemm, int], Sequence[Gemm]]


class Passes:
    """Collects ``gemms``, ``levels`` and ``operators`` of a step, beginning with those of ``forward``.

    ``live``: bytes alive during each forward level.
    """

    def __init__(self, forward: Workload, live: Sequence[int | None]) -> None:
        self._forward = forward
        self.gemms: list[Gemm] = list(forward.gemms)
        self.levels: list[Level] = [
            replace(level, live_bytes=size) for level, size in zip(forward.levels, live, strict=True)
        ]  # fmt: skip
        self.operators: list[ServerOperator] = list(forward.server_operators)

    def again(self, part: Segment, live: Sequence[int | None]) -> dict[int, int]:
        """Add what runs a second time; the result maps forward levels to the new ones. ``live`` is that of :meth:`back`."""
        added: dict[int, int] = {}
        for level in self._forward.levels:
            found = [gemm for gemm in self._of(level) if gemm.name in part.again]
            if found:
                added[level.index] = self._add([_again(gemm, len(self.levels)) for gemm in found], live[level.index])
        for operator in self._forward.server_operators:
            if operator.name in part.again:
                place = next((new for index, new in added.items() if index >= operator.level), len(self.levels))
                self.operators.append(operator._replace(name=f"{AGAIN}{operator.name}", level=place))
        return added

    def back(self, part: Segment, gradients: Gradients, live: Sequence[int | None]) -> None:
        """Add the backward pass of a segment; ``live``: bytes alive meanwhile, by forward level."""
        added: dict[int, int] = {}
        for level in reversed(self._forward.levels):
            found = [gemm for gemm in self._of(level) if gemm.name in part.gemms]
            made = [gradient for gemm in found for gradient in gradients(gemm, len(self.levels))]
            if made:
                added[level.index] = self._add(made, live[level.index])
        for operator in reversed(self._forward.server_operators):
            if operator.name in part.operators:
                place = next((new for index, new in added.items() if index < operator.level), len(self.levels))
                size = None if operator.bytes is None else BACKWARD_TRAFFIC * operator.bytes
                self.operators.append(operator._replace(name=f"{operator.name}.backward", level=place, bytes=size))

    def _of(self, level: Level) -> Iterable[Gemm]:
        return (self._forward.gemms[place] for place in level.gemms)

    def _add(self, gemms: Sequence[Gemm], live_bytes: int | None) -> int:
        places = tuple(range(len(self.gemms), len(self.gemms) + len(gemms)))
        self.gemms += gemms
        self.levels.append(Level(index=len(self.levels), gemms=places, live_bytes=live_bytes))
        return len(self.levels) - 1


def _again(gemm: Gemm, level: int) -> Gemm:
    """The GEMM a second time: the same operands, its result beside the first one."""
    return replace(gemm, name=f"{AGAIN}{gemm.name}", phase=Phase.RECOMPUTE, output=f"{AGAIN}{gemm.output}", level=level)
