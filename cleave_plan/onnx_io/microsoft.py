"""Output shapes of onnxruntime's own operators (domain com.microsoft), as its operator documentation gives them.

An output that is not stated here is unknown.
"""

from __future__ import annotations

import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.broadcasting import broadcast, matmul_shape
from cleave_plan.onnx_io.facts import UNKNOWN, Dim, Fact
from cleave_plan.onnx_io.shape_rules import Facts, ShapeRule, conv_outputs, like_first

_INT32 = onnx.TensorProto.INT32


def _times(left: Dim, right: Dim) -> Dim:
    return left * right if isinstance(left, int) and isinstance(right, int) else None


def _plus(left: Dim, right: Dim) -> Dim:
    return left + right if isinstance(left, int) and isinstance(right, int) else None


def _over(left: Dim, right: int) -> Dim:
    return left // right if isinstance(left, int) and right > 0 else None


def _skip_norm(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Skip norms: output 3 is the sum before the norm, of the same shape."""
    same = Fact(elem=inputs[0].elem, shape=inputs[0].shape)
    return [same, UNKNOWN, UNKNOWN, same]


def _embed_norm(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    ids, words = inputs[0].shape, inputs[2].shape
    if ids is None or words is None or len(ids) != 2 or len(words) != 2:
        return []
    embedded = Fact(elem=inputs[2].elem, shape=(*ids, words[1]))
    return [embedded, Fact(elem=_INT32, shape=ids[:1]), embedded]


def _dequantize(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    return [Fact(elem=inputs[1].elem, shape=inputs[0].shape)]


def _quantize(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    return [Fact(elem=inputs[2].elem or onnx.TensorProto.UINT8, shape=inputs[0].shape)]


def _quantized_sum(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """QLinearAdd and QLinearMul: A with scale and zero point, then B with its own."""
    left, right = inputs[0].shape, inputs[3].shape
    return [Fact(elem=inputs[0].elem, shape=None if left is None or right is None else broadcast(left, right))]


def _attention(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Attention and QAttention: input [batch, sequence, width], weights [width, q + k + v]."""
    x, weights = inputs[0].shape, inputs[1].shape
    if x is None or weights is None or len(x) != 3 or len(weights) != 2:
        return []
    elem = inputs[2].elem if node.op_type == "QAttention" else inputs[0].elem
    split = get_ints(node, "qkv_hidden_sizes")
    width: Dim = split[2] if split is not None and len(split) == 3 else _over(weights[1], 3)
    heads = get_int(node, "num_heads", 0)
    past = inputs[8 if node.op_type == "QAttention" else 4].shape
    length = x[1] if past is None or len(past) != 5 else _plus(past[3], x[1])
    return [Fact(elem=elem, shape=(x[0], x[1], width)), Fact(elem=elem, shape=(2, x[0], heads, length, _over(width, heads)))][
        : len(node.output)
    ]


def _multi_head_attention(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """MultiHeadAttention: query, key and value apart, or packed into query [.., heads, 3, size] or key [.., heads, 2, size]."""
    query, key, value = inputs[0].shape, inputs[1].shape, inputs[2].shape
    if query is None:
        return []
    width: Dim
    if len(query) == 5:
        width = _times(query[2], query[4])
    elif value is not None and len(value) in (3, 4):
        width = value[2] if len(value) == 3 else _times(value[1], value[3])
    else:
        width = query[-1]
    result = [Fact(elem=inputs[0].elem, shape=(query[0], query[1], width))]
    heads, past = get_int(node, "num_heads", 0), inputs[6].shape
    new = query[1] if key is None else key[2] if len(key) == 4 else key[1]
    length = new if past is None or len(past) != 4 else _plus(past[2], new)
    present = Fact(elem=inputs[0].elem, shape=(query[0], heads, length, _over(width, heads)))
    return [*result, present, present]


def _group_query_attention(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """GroupQueryAttention: without a key input, the query holds all heads of q, k and v."""
    query, key = inputs[0].shape, inputs[1].shape
    if query is None or len(query) != 3:
        return []
    heads, groups = get_int(node, "num_heads", 0), get_int(node, "kv_num_heads", 0)
    width = query[2] if key is not None else _times(_over(query[2], heads + 2 * groups), heads)
    return [Fact(elem=inputs[0].elem, shape=(query[0], query[1], width))]


def _matmul_n_bits(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """MatMulNBits and its kin: weights packed along K, N is an attribute."""
    x = inputs[0].shape
    return [Fact(elem=inputs[0].elem, shape=None if x is None else (*x[:-1], get_int(node, "N", 0)))]


def _fused_matmul(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """FusedMatMul: MatMul of operands that may be transposed; transBatch moves the first axis before the last."""
    shapes = []
    for fact, letter in zip(inputs[:2], "AB", strict=True):
        shape = fact.shape
        if shape is None:
            return [Fact(elem=inputs[0].elem)]
        if get_int(node, f"transBatch{letter}", 0) and len(shape) > 2:
            shape = (*shape[1:-1], shape[0], shape[-1])
        if get_int(node, f"trans{letter}", 0) and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return [Fact(elem=inputs[0].elem, shape=matmul_shape(*shapes))]


def _fused_gemm(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """FusedGemm and QGemm (whose B is the fourth input)."""
    a, b = inputs[0].shape, inputs[3 if node.op_type == "QGemm" else 1].shape
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return []
    elem = inputs[0].elem if node.op_type == "FusedGemm" else inputs[8].elem or onnx.TensorProto.FLOAT
    return [Fact(elem=elem, shape=(a[1 if get_int(node, "transA", 0) else 0], b[0 if get_int(node, "transB", 0) else 1]))]


def _quantized_matmul(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat: float32 results."""
    a, b = inputs[0].shape, inputs[1].shape
    return [Fact(elem=onnx.TensorProto.FLOAT, shape=None if a is None or b is None else matmul_shape(a, b))]


_LIKE_FIRST = (
    "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "GroupNorm", "MoE", "QLinearLeakyRelu",
    "QLinearSigmoid", "QLinearSoftmax", "QMoE", "QuickGelu", "RotaryEmbedding", "ScaledSiLU",
)  # fmt: skip

MICROSOFT_RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(_LIKE_FIRST, like_first),
    "SkipLayerNormalization": _skip_norm, "SkipSimplifiedLayerNormalization": _skip_norm, "EmbedLayerNormalization": _embed_norm,
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize, "QLinearAdd": _quantized_sum, "QLinearMul": _quantized_sum,
    "Attention": _attention, "QAttention": _attention, "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention, "MatMulNBits": _matmul_n_bits, "MatMulBnb4": _matmul_n_bits,
    "FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul, "FusedGemm": _fused_gemm, "QGemm": _fused_gemm,
    "DynamicQuantizeMatMul": _quantized_matmul, "MatMulIntegerToFloat": _quantized_matmul, "FusedConv": conv_outputs,
}  # fmt: skip
"""Shape rules by operator; they return as many outputs as they know."""
