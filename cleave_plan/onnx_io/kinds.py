"""What kind of model a graph is, by the operators in it."""

from __future__ import annotations

import onnx

from cleave_plan.onnx_io.attributes import subgraphs

_QUANTISED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "ConvInteger",
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "QAttention",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "QuantisedMatMul",
        "QuantisedGemm",
        "QuantisedConv",
    }
)


def is_quantised(graph: onnx.GraphProto) -> bool:
    """Whether the graph rounds values to a grid of its own, so that a small difference can become a step of it."""
    return holds_operator(graph, _QUANTISED)


def holds_operator(graph: onnx.GraphProto, operators: frozenset[str]) -> bool:
    """Whether any of ``operators`` is in the graph or in a graph inside it."""
    return any(
        node.op_type in operators or any(holds_operator(inner, operators) for inner in subgraphs(node)) for node in graph.node
    )
