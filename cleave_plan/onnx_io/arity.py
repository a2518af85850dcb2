"""How many inputs and outputs an operator must have, so that the rooms behind may take its operands as given."""

from __future__ import annotations

from functools import cache

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.common_shapes import COMMON_RULES
from cleave_plan.onnx_io.inference import NodeInference
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.shape_rules import SHAPE_RULES
from cleave_plan.onnx_io.views import NodeView

# Operators of the standard domain that must have more than one input in every operator set.
_LEAST: dict[str, int] = {
    **dict.fromkeys(
        (
            "Add", "And", "Conv", "ConvInteger", "ConvTranspose", "CumSum", "DequantizeLinear", "Div", "Equal", "Expand",
            "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "LayerNormalization", "Less", "LessOrEqual",
            "MatMul", "MatMulInteger", "Mod", "Mul", "Or", "Pow", "QuantizeLinear", "Reshape", "Sub", "Xor",
        ),
        2,
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN", "Range", "ScatterElements", "ScatterND", "Where"), 3),
    "BatchNormalization": 5, "QLinearConv": 8, "QLinearMatMul": 8,
}  # fmt: skip

# Those of which the number changed: before an operator set, that set, from it on.
_CHANGED: dict[str, tuple[int, int, int]] = {
    "Gemm": (3, 11, 2), "Pad": (1, 11, 2), "Slice": (1, 10, 3), "TopK": (1, 10, 2), "Unsqueeze": (1, 13, 2),
}  # fmt: skip


@cache
def least_inputs(op: str, opset: int) -> int | None:
    """The least number of inputs of a standard operator in operator set ``opset``; None where it is not written down here.

    It is for the operators with shape rules of our own: onnx's register knows them all, but takes eight megabytes.
    """
    if op in _CHANGED:
        before, changed, since = _CHANGED[op]
        return since if opset >= changed else before
    if op in _LEAST:
        return _LEAST[op]
    return 1 if op in COMMON_RULES or ("", op) in SHAPE_RULES else None


def refuse_too_few(view: NodeView, inference: NodeInference, where: str) -> None:
    """Raise InputFileError when a node has fewer inputs or outputs than its operator is defined with."""
    least = None if view.domain else least_inputs(view.op, inference.opset)
    if least is not None and len(view.inputs) >= least and view.outputs:
        return
    schema = inference.schema(view.op, view.domain)
    if schema is None:
        return
    for kind, there, needed in (("input", view.inputs, schema.min_input), ("output", view.outputs, min(schema.min_output, 1))):
        if len(there) < needed:
            from cleave_plan.units import plural

            raise InputFileError(
                f"{node_label(view.node)} has {plural(len(there), kind)}", where=where,
                expected=f"{plural(needed, kind)} or more, as the operator is defined",
                remedy="export or download the model again",
            )  # fmt: skip
