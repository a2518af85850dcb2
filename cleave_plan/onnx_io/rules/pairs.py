"""The products that :mod:`cleave_plan.onnx_io.quantised_pairs` finds between DequantizeLinear and QuantizeLinear.

QuantisedMatMul, QuantisedGemm and QuantisedConv read a, its scale and zero point, b, its own, a bias in floating point, and
(or not) the scale and zero point of the result; their attributes are those of the operator that they stand for. They are cut
like :mod:`cleave_plan.onnx_io.rules.quantised`. PackedMatMul reads a float operand and packed weights [K, N] with their scales
and zero points, one for each block of K and column, one for each column, or one; it is cut like MatMulNBits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx

from cleave_plan.kernels.quantised import Coding, Companions
from cleave_plan.onnx_io.attributes import get_float, get_int
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.convolutions import conv_form, images_of, kernels_of
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.onnx_io.rules.products import gemm_shape, matmul_shape
from cleave_plan.onnx_io.rules.quantised import FLOAT, canonical, lower_integers, of_columns
from cleave_plan.workload.gemm import Gemm, GemmShape

_WHOLE_BIAS = 1e-3
"""Distance from whole multiples of the scales up to which a bias counts as the integers that it was made from."""


def _matmul_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=matmul_shape(needed(sizes, 0), needed(sizes, 3)), b=3),)


def _lower_matmul(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    a, b = operand(arrays, 0), operand(arrays, 3)
    lowered = lower_integers(a, b, optional(arrays, 2), optional(arrays, 5))
    _, columns = canonical(a, b, None, of_columns(operand(arrays, 4), b))
    return _scaled(lowered, arrays, np.ones(1, FLOAT) if columns is None else columns, None)


def _gemm_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=gemm_shape(node, needed(sizes, 0), needed(sizes, 3)), b=3),)


def _lower_gemm(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    a, b = operand(arrays, 0), operand(arrays, 3)
    a, b = a.T if get_int(node, "transA", 0) else a, b.T if get_int(node, "transB", 0) else b
    bias, beta = optional(arrays, 6), get_float(node, "beta", 1.0)
    if bias is not None:
        bias = np.broadcast_to(bias * np.float32(beta), (1, *np.broadcast_shapes(bias.shape, (1, 1))))
    plain = Lowered(
        a=a[None], b=b[None], finish=lambda result: result[0], along=_zeros(arrays, (1, 1, -1))
    )  # fmt: skip
    columns = in_type(operand(arrays, 4), FLOAT).reshape(1, 1, -1) * np.float32(get_float(node, "alpha", 1.0))
    return _scaled(plain, arrays, columns, bias)


def _conv_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape, window = conv_form(node, needed(sizes, 0), needed(sizes, 3))
    return (Form(shape=shape, window=window, b=3),)


def _lower_conv(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    channels = (gemm.shape.batch, 1, gemm.shape.n)
    bias, scale = optional(arrays, 6), operand(arrays, 4)
    plain = Lowered(
        a=operand(arrays, 0), b=kernels_of(gemm, operand(arrays, 3)), finish=lambda result: images_of(gemm, result),
        along=_zeros(arrays, channels),
    )  # fmt: skip
    columns = scale.reshape(1, 1, 1) if scale.size == 1 else scale.reshape(channels)
    return _scaled(
        plain, arrays, columns, None if bias is None else bias.reshape(channels), spread=lambda figures: figures.reshape(1, -1, 1)
    )


def _zeros(arrays: Arrays, columns: tuple[int, int, int]) -> Companions:
    a_zero, b_zero = optional(arrays, 2), optional(arrays, 5)
    if b_zero is not None:
        b_zero = b_zero.reshape(1, 1, 1) if b_zero.size == 1 else b_zero.reshape(columns)
    return Companions(a_zero=None if a_zero is None else a_zero.reshape(1, 1, 1), b_zero=b_zero)


def _scaled(
    plain: Lowered,
    arrays: Arrays,
    columns: Array,
    bias: Array | None,
    *,
    spread: Callable[[Array], Array] = lambda figures: figures,
) -> Lowered:
    """Integer sums times A's scale and B's ``columns``, plus ``bias`` (both canonical); requantised where Y has a scale.

    ``spread`` makes canonical figures broadcast to the whole result.
    """
    a_scale, y_scale, y_zero = operand(arrays, 1), optional(arrays, 7), optional(arrays, 8)
    scale = in_type(a_scale.reshape(()), FLOAT) * in_type(columns, FLOAT)
    if y_scale is None:

        def finish(result: Array) -> Array:
            floats = in_type(result, FLOAT) * spread(scale)
            return in_type(plain.finish(floats if bias is None else floats + spread(bias)), a_scale.dtype)

        return Lowered(a=plain.a, b=plain.b, finish=finish, along=plain.along)
    along = plain.along._replace(
        bias=None if bias is None else _in_steps(bias, scale), scale=scale / in_type(y_scale.reshape(()), FLOAT),
        y_zero=None if y_zero is None else y_zero.reshape(1, 1, 1),
    )  # fmt: skip
    return Lowered(a=plain.a, b=plain.b, finish=plain.finish, along=along)


def _in_steps(bias: Array, scale: Array) -> Array:
    """``bias`` in units of ``scale``: as integers where it was made from such, so that sums with it stay exact."""
    steps = bias.astype(np.float64) / scale
    whole = np.rint(steps)
    near = np.abs(steps - whole) <= _WHOLE_BIAS + 1e-6 * np.abs(steps)
    exact = bool(near.all()) and bool((np.abs(whole) < np.iinfo(np.int32).max).all())
    return whole.astype(np.int32) if exact else steps.astype(FLOAT)


_CODES = {
    "int2": (2, True),
    "uint2": (2, False),
    "int4": (4, True),
    "uint4": (4, False),
    "int8": (8, True),
    "uint8": (8, False),
}
"""Bits of a code and whether it has a sign, by the name of the NumPy type."""


def _packed_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    a, b = needed(sizes, 0), needed(sizes, 1)
    if not a or len(b) != 2 or a[-1] != b[0]:
        raise ShapeContradictionError(f"operands {list(a)} and {list(b)} do not fit")
    return (Form(shape=GemmShape(1, prod(a[:-1]), *b), b_scales=(2, 3)),)


def _lower_packed(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    a, codes, scale = (operand(arrays, place) for place in range(3))
    zero = optional(arrays, 3)
    bits, signed = _CODES[codes.dtype.name]
    depth, columns = codes.shape
    coding = Coding(bits, get_int(node, "block_size", depth), signed)
    along = Companions(b_scale=_by_block(in_type(scale, FLOAT), columns), b_offset=_by_block(_plain(zero), columns))
    return Lowered(
        a=a.reshape(1, -1, depth), b=_packed(codes, bits)[None], along=along, coding=coding,
        finish=lambda result: result.reshape(*a.shape[:-1], columns),
    )  # fmt: skip


def _plain(zero: Array | None) -> Array | None:
    """Zero points in a type that NumPy has by itself."""
    return zero if zero is None or zero.dtype.isbuiltin == 1 else zero.astype(np.int8)


def _by_block(values: Array | None, columns: int) -> Array | None:
    """[blocks, columns], [columns] or one number as [1, columns or 1, blocks or 1]."""
    if values is None or values.size == 1:
        return None if values is None else values.reshape(1, 1, 1)
    return values.reshape(-1, columns).T[None]


def _packed(codes: Array, bits: int) -> Array:
    """[K, N] as bytes [N, K * bits / 8], the first code of a byte in its lowest bits."""
    by_column = codes.T
    if bits == 8:
        return np.ascontiguousarray(by_column).view(np.uint8)
    per_byte = 8 // bits
    whole = np.zeros((by_column.shape[0], -(-by_column.shape[1] // per_byte) * per_byte), np.uint8)
    whole[:, : by_column.shape[1]] = by_column.astype(np.int8).view(np.uint8) & np.uint8(2**bits - 1)
    parts = whole.reshape(whole.shape[0], -1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(parts, axis=-1)
    return packed


QUANTISED_MATMUL = Operator(forms=_matmul_forms, lower=_lower_matmul, operands=(0, 3))
QUANTISED_GEMM = Operator(forms=_gemm_forms, lower=_lower_gemm, operands=(0, 3))
QUANTISED_CONV = Operator(forms=_conv_forms, lower=_lower_conv, operands=(0, 3))
PACKED_MATMUL = Operator(forms=_packed_forms, lower=_lower_packed)
