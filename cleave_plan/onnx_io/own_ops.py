"""Our own operators, which stand between the GEMMs of an expanded node, for ``onnx.reference``."""

from __future__ import annotations

from typing import Any

from onnx.reference.op_run import OpRun

from cleave_plan.onnx_io.recurrence import Array
from cleave_plan.onnx_io.rules.builder import OWN
from cleave_plan.onnx_io.rules.recurrent import take_steps


class Recurrence(OpRun):  # type: ignore[misc]
    """The steps of a recurrent layer: X W^T, R, B, sequence_lens, initial_h, initial_c, P -> Y, Y_h, Y_c."""

    op_domain = OWN

    def _run(self, *arrays: Array | None, **_: Any) -> tuple[Array, ...]:
        return take_steps(self.onnx_node, list(arrays))[: len(self.onnx_node.output)]


OWN_OPERATORS: list[type] = [Recurrence]
