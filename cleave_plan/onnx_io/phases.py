"""The part of a training step that a node's matrix work belongs to, as gradient files say it in the node's metadata."""

from __future__ import annotations

import onnx

from cleave_plan.workload.gemm import Phase

PHASE = "cleave_plan.phase"
"""The metadata property; its values are those of :class:`cleave_plan.workload.gemm.Phase`."""


def phase_of(node: onnx.NodeProto) -> Phase:
    """What the node says, forward when it says nothing that is known."""
    for entry in node.metadata_props[:]:
        if entry.key == PHASE and entry.value in tuple(Phase):
            return Phase(entry.value)
    return Phase.FORWARD
