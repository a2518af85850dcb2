"""Operators without a rule: which of them hold matrix work, so that none is counted silently as zero."""

from __future__ import annotations

from functools import cache

import onnx

MICROSOFT = "com.microsoft"
STANDARD = ("", "ai.onnx")

OWN = "cleave_plan"
"""The domain of our own operators, which stand in expanded models; no file has it."""

MATRIX_WORK: dict[str, frozenset[str]] = {
    "": frozenset(
        {
            "Attention", "CausalConvWithState", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "LSTM",
            "LinearAttention", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN",
        }
    ),
    "ai.onnx.ml": frozenset(
        {
            "LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor",
        }
    ),
}  # fmt: skip
"""Operators of the ONNX domains with matrix work inside."""

NO_MATRIX_WORK: dict[str, frozenset[str]] = {
    "": frozenset({"SimplifiedLayerNormalization"}),  # onnxruntime's, written without its domain
    MICROSOFT: frozenset(
        {
            "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "BitmaskBiasDropout", "BitmaskDropout",
            "ComplexMul", "ComplexMulConj", "CropAndResize", "DequantizeBFP", "DequantizeLinear", "DequantizeWithOrder",
            "EmbedLayerNormalization", "ExpandDims", "FastGelu", "GatedRMSNorm", "GatherBlockQuantized", "GatherND", "Gelu",
            "GemmaRotaryEmbedding", "GridSample", "GroupNorm", "IsAllFinite", "MaxpoolWithMask", "MulInteger",
            "MurmurHash3", "NGramRepeatBlock", "NhwcMaxPool", "Pad", "QEmbedLayerNormalization", "QLinearAdd",
            "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
            "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QOrderedGelu",
            "QOrderedLayerNormalization", "QuantizeBFP", "QuantizeLinear", "QuantizeWithOrder", "QuickGelu", "Range",
            "ReduceSumInteger", "RelativePositionBias", "RemovePadding", "RestorePadding", "RotaryEmbedding", "ScaledSiLU",
            "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SwiGLU", "Tokenizer", "Trilu",
            "UnfoldTensor", "Unique",
        }
    ),
}  # fmt: skip
"""Operators outside the ONNX standard that are known to hold none; any other stranger is assumed to hold some."""


WRITTEN_OUT = frozenset({("", "LinearAttention"), ("", "CausalConvWithState"), ("ai.onnx.preview", "FlexAttention")})
"""Domain and name of the operators that are written out as the standard defines them."""


def domain_of(node: onnx.NodeProto) -> str:
    """The operator's domain, "" for standard ONNX under either of its names."""
    return "" if node.domain in STANDARD else str(node.domain)


@cache
def may_hold_matrix_work(domain: str, op: str) -> bool:
    """Whether an operator holds matrix work or is a stranger that may; its subgraphs are not looked into."""
    if domain == OWN:  # those with products have rules
        return False
    if op in MATRIX_WORK.get(domain, ()):
        return True
    return op not in NO_MATRIX_WORK.get(domain, ()) and not onnx.defs.has(op, domain)
