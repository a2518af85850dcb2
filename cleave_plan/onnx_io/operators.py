"""Which operators are matrix work: the register of rules, one entry an operator.

A rule (:class:`~cleave_plan.onnx_io.rules.forms.Operator`) says which canonical GEMMs a node holds and how its arrays become
operands; it lies with its kin in :mod:`cleave_plan.onnx_io.rules`, and is loaded when a model has such a node. Operators that
hold matrix work but have no rule (:mod:`matrix_work`) run on the server and are listed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import onnx

from cleave_plan.onnx_io.common_shapes import COMMON_RULES
from cleave_plan.onnx_io.matrix_work import MATRIX_WORK, MICROSOFT, OWN, domain_of, may_hold_matrix_work
from cleave_plan.onnx_io.shape_rules import SHAPE_RULES
from cleave_plan.onnx_io.views import NodeView, views_of

if TYPE_CHECKING:
    from cleave_plan.onnx_io.rules.forms import Operator

RULES: dict[tuple[str, str], str] = {
    ("", "MatMul"): "products.MATMUL", ("", "Gemm"): "products.GEMM", ("", "Conv"): "convolutions.CONV",
    (MICROSOFT, "FusedMatMul"): "products.FUSED_MATMUL", (MICROSOFT, "TransposeMatMul"): "products.FUSED_MATMUL",
    (MICROSOFT, "FusedGemm"): "products.GEMM", (MICROSOFT, "FusedConv"): "convolutions.CONV",
    (MICROSOFT, "NhwcConv"): "convolutions.NHWC_CONV", (MICROSOFT, "NhwcFusedConv"): "convolutions.NHWC_CONV",
    ("", "MatMulInteger"): "quantised.MATMUL_INTEGER", ("", "ConvInteger"): "quantised.CONV_INTEGER",
    ("", "QLinearMatMul"): "quantised.QLINEAR_MATMUL", ("", "QLinearConv"): "quantised.QLINEAR_CONV",
    (MICROSOFT, "QGemm"): "quantised.QGEMM", (MICROSOFT, "MatMulIntegerToFloat"): "quantised.MATMUL_INTEGER_TO_FLOAT",
    (MICROSOFT, "DynamicQuantizeMatMul"): "quantised.DYNAMIC_QUANTIZE_MATMUL",
    ("", "ConvTranspose"): "transposed.CONV_TRANSPOSE", ("", "DeformConv"): "deformable.DEFORM_CONV",
    ("", "Einsum"): "einsum.EINSUM",
    (MICROSOFT, "MatMulNBits"): "packed.MATMUL_N_BITS", (MICROSOFT, "MatMulBnb4"): "packed.MATMUL_BNB4",
    ("", "LSTM"): "recurrent.LAYER", ("", "GRU"): "recurrent.LAYER", ("", "RNN"): "recurrent.LAYER",
    (MICROSOFT, "DynamicQuantizeLSTM"): "recurrent.QUANTISED_LAYER", (OWN, "Recurrence"): "recurrent.RECURRENCE",
    ("", "Attention"): "attention.ATTENTION", (MICROSOFT, "Attention"): "attention_microsoft.ATTENTION",
    (MICROSOFT, "QAttention"): "attention_microsoft.QATTENTION",
    (MICROSOFT, "MultiHeadAttention"): "attention_microsoft.MULTI_HEAD",
    (OWN, "QuantisedMatMul"): "pairs.QUANTISED_MATMUL", (OWN, "QuantisedGemm"): "pairs.QUANTISED_GEMM",
    (OWN, "QuantisedConv"): "pairs.QUANTISED_CONV", (OWN, "PackedMatMul"): "pairs.PACKED_MATMUL",
    (MICROSOFT, "GroupQueryAttention"): "attention_grouped.GROUP_QUERY",
}  # fmt: skip
"""Domain and name of each operator with a rule: the rule's module in the package ``rules``, and its name there."""

FUSED = frozenset(
    {
        ("", "LSTM"), ("", "GRU"), ("", "RNN"), (MICROSOFT, "DynamicQuantizeLSTM"), ("", "Attention"), (MICROSOFT, "Attention"),
        (MICROSOFT, "QAttention"), (MICROSOFT, "MultiHeadAttention"), (MICROSOFT, "GroupQueryAttention"), ("", "Einsum"),
    }
)  # fmt: skip
"""Those that may stand for other nodes: their rules say which (``expand``)."""


@cache
def rule_of(kind: tuple[str, str]) -> Operator | None:
    """The rule of the operators of one domain and name, None when there is none."""
    place = RULES.get(kind)
    if place is None:
        return None
    module, _, name = place.partition(".")
    rule: Operator = getattr(import_module(f"cleave_plan.onnx_io.rules.{module}"), name)
    return rule


_COUNTED = RULES.keys() | ({("", op) for op in COMMON_RULES} | SHAPE_RULES.keys()) - {("", op) for op in MATRIX_WORK[""]}
"""Operators of which it is known, without asking onnx's register (eight megabytes), that no work of theirs is left out."""


def operator_of(node: onnx.NodeProto) -> Operator | None:
    """The rule of the node's operator, None when it has none."""
    return rule_of((domain_of(node), node.op_type))


def has_uncounted_matrix_work(view: NodeView) -> bool:
    """Whether the node, or anything in its subgraphs, holds (or may hold) matrix work that no GEMM of the workload counts."""
    if view.kind in _COUNTED:
        return False
    if may_hold_matrix_work(view.domain, view.op):
        return True
    if not view.bodies:
        return False
    inner = [inner for graph in view.bodies for inner in views_of(graph.node)]
    return any(view.kind in RULES or has_uncounted_matrix_work(view) for view in inner)
