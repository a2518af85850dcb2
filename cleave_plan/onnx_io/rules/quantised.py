"""Products of quantised integers: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, and onnxruntime's QGemm,
MatMulIntegerToFloat and DynamicQuantizeMatMul.

Operands travel as the small integers that they are. A cut of the rows takes A's zero points (and scales) of those rows along,
a cut of the columns those of B, and the bias; partial sums of a cut K are int32, which the server adds. Operators with a
quantised result send it back quantised when K is whole: devices round it as the whole operator does, bit for bit.
"""

from __future__ import annotations

import numpy as np
import onnx

from cleave_plan.dtypes import DType
from cleave_plan.kernels.quantised import Companions, dynamically_quantised
from cleave_plan.onnx_io.attributes import get_float, get_int
from cleave_plan.onnx_io.rules.convolutions import conv_form, images_of, kernels_of
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.onnx_io.rules.products import gemm_shape, lower_matmul, matmul_shape
from cleave_plan.workload.gemm import Gemm, GemmShape

FLOAT = np.dtype(np.float32)


def of_rows(values: Array | None, a: Array) -> Array | None:
    """A scale or zero point of A in canonical form [batch, M, 1]: one number, or one for each row.

    It has the shape [M], or that of A with 1 as its last size (leading sizes of 1 may be missing).
    """
    if values is None or values.size == 1:
        return None if values is None else values.reshape(1, 1, 1)
    spread = values[:, None] if values.ndim == 1 else values
    return np.broadcast_to(spread, (*a.shape[:-1], 1))


def of_columns(values: Array | None, b: Array) -> Array | None:
    """A scale or zero point of B in canonical form: one number, or one for each column ([N], or B's shape with 1 for K)."""
    if values is None or values.size == 1:
        return None if values is None else values.reshape(1, 1, 1)
    spread = values[None, :] if values.ndim == 1 else values
    return np.broadcast_to(spread, (*b.shape[:-2], 1, b.shape[-1]))


def canonical(a: Array, b: Array, rows: Array | None, columns: Array | None) -> tuple[Array | None, Array | None]:
    """``rows`` and ``columns`` (as :func:`of_rows` and :func:`of_columns` give them) in the canonical order of ``a @ b``.

    They are carried along as operands of a product over a K of 1, so that they go where their rows and columns go.
    """
    left = np.zeros((*a.shape[:-1], 1)) if rows is None or rows.size == 1 else rows
    right = np.zeros((*b.shape[:-2], 1, b.shape[-1])[-max(b.ndim, 2) :]) if columns is None or columns.size == 1 else columns
    turned = lower_matmul(left, right)
    return (
        rows if rows is None or rows.size == 1 else turned.a,
        columns if columns is None or columns.size == 1 else turned.b,
    )


def lower_integers(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Lowered:
    """``(a - a_zero) @ (b - b_zero)``."""
    if a.ndim == 1 or b.ndim == 1:
        a_zero = None if a_zero is None else a_zero.reshape(-1)[:1]
        b_zero = None if b_zero is None else b_zero.reshape(-1)[:1]
    lowered = lower_matmul(a, b)
    rows, columns = canonical(a, b, of_rows(a_zero, a), of_columns(b_zero, b))
    return Lowered(a=lowered.a, b=lowered.b, finish=lowered.finish, along=Companions(a_zero=rows, b_zero=columns))


def factor(scale: Array, other: Array, result: Array | None = None) -> Array:
    """The factor of a requantised sum, scale * other / result, rounded at each step as onnxruntime does."""
    product: Array = in_type(scale, FLOAT) * in_type(other, FLOAT)
    return product if result is None else product / in_type(result, FLOAT)


def _matmul_integer_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=matmul_shape(needed(sizes, 0), needed(sizes, 1))),)


def _lower_matmul_integer(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    return lower_integers(operand(arrays, 0), operand(arrays, 1), optional(arrays, 2), optional(arrays, 3))


def _qlinear_matmul_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=matmul_shape(needed(sizes, 0), needed(sizes, 3)), b=3),)


def _lower_qlinear_matmul(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """Inputs: a, its scale and zero point; b, its own; those of y (one number each)."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (operand(arrays, place) for place in range(8))
    lowered = lower_integers(a, b, a_zero, b_zero)
    rows, columns = canonical(a, b, of_rows(a_scale, a), of_columns(b_scale, b))
    if rows is None or columns is None:
        raise ValueError("a scale is absent")
    along = lowered.along._replace(scale=factor(rows, columns, y_scale.reshape(())), y_zero=y_zero.reshape(1, 1, 1))
    return Lowered(a=lowered.a, b=lowered.b, finish=lowered.finish, along=along)


def _qgemm_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=gemm_shape(node, needed(sizes, 0), needed(sizes, 3)), b=3),)


def _lower_qgemm(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """Inputs: A, its scale and zero point; B, its own (one for each column, or one); C in int32; those of Y or none."""
    a, a_scale, a_zero, b, b_scale, b_zero = (operand(arrays, place) for place in range(6))
    bias, y_scale, y_zero = (optional(arrays, place) for place in (6, 7, 8))
    a, b = a.T if get_int(node, "transA", 0) else a, b.T if get_int(node, "transB", 0) else b
    scale = factor(a_scale.reshape(()), b_scale.reshape(1, 1, -1)) * np.float32(get_float(node, "alpha", 1.0))
    zeros = Companions(a_zero=a_zero.reshape(1, 1, 1), b_zero=b_zero.reshape(1, 1, -1))
    if y_scale is None:

        def finish(result: Array) -> Array:
            sums = result[0] if bias is None else result[0] + bias.astype(FLOAT)
            return in_type(sums * scale[0], FLOAT)

        return Lowered(a=a[None], b=b[None], finish=finish, along=zeros)
    spread = None if bias is None else np.broadcast_to(bias, (1, *np.broadcast_shapes(bias.shape, (1, 1))))
    along = zeros._replace(
        bias=spread, scale=scale / in_type(y_scale.reshape(()), FLOAT), y_zero=None if y_zero is None else y_zero.reshape(1, 1, 1)
    )
    return Lowered(a=a[None], b=b[None], finish=lambda result: result[0], along=along)


def _to_float_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=matmul_shape(needed(sizes, 0), needed(sizes, 1)), out_dtype=DType.FLOAT32),)


def _scaled_sums(lowered: Lowered, a: Array, scale: Array, columns: Array | None, bias: Array | None, dtype: Array) -> Lowered:
    """Integer sums times the scales of A (``scale``, one number) and of B's columns, plus ``bias``, in the type of ``dtype``."""

    def finish(result: Array) -> Array:
        scales = factor(scale.reshape(()), np.ones(1, FLOAT) if columns is None else columns)
        output = lowered.finish(result * scales)
        return in_type(output if bias is None else output + bias, dtype.dtype)

    return Lowered(a=lowered.a, b=lowered.b, finish=finish, along=lowered.along)


def _lower_to_float(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """MatMulIntegerToFloat: A, B, their scales, their zero points, bias."""
    a, b, a_scale, b_scale = (operand(arrays, place) for place in range(4))
    lowered = lower_integers(a, b, optional(arrays, 4), optional(arrays, 5))
    _, columns = canonical(a, b, None, of_columns(b_scale, b))
    return _scaled_sums(lowered, a, a_scale, columns, optional(arrays, 6), a_scale)


def _dynamic_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape = matmul_shape(needed(sizes, 0), needed(sizes, 1))
    return (Form(shape=shape, a_dtype=DType.UINT8, out_dtype=DType.FLOAT32),)


def _lower_dynamic(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """DynamicQuantizeMatMul: A is quantised as a whole before it is cut; B, its scale, its zero point, bias."""
    a, b, b_scale = (operand(arrays, place) for place in range(3))
    codes, a_scale, a_zero = dynamically_quantised(a)
    lowered = lower_integers(codes, b, a_zero, optional(arrays, 3))
    _, columns = canonical(a, b, None, of_columns(b_scale, b))
    return _scaled_sums(lowered, a, a_scale, columns, optional(arrays, 4), a)


def _conv_integer_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape, window = conv_form(node, needed(sizes, 0), needed(sizes, 1))
    return (Form(shape=shape, window=window),)


def _of_channels(values: Array | None, shape: GemmShape) -> Array | None:
    """A number for each output channel (or one) as [groups, 1, columns]."""
    if values is None:
        return None
    return values.reshape(1, 1, 1) if values.size == 1 else values.reshape(shape.batch, 1, shape.n)


def _lower_conv_integer(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    x_zero, w_zero = optional(arrays, 2), optional(arrays, 3)
    along = Companions(
        a_zero=None if x_zero is None else x_zero.reshape(1, 1, 1), b_zero=_of_channels(w_zero, gemm.shape)
    )  # fmt: skip
    weights = kernels_of(gemm, operand(arrays, 1))
    return Lowered(a=operand(arrays, 0), b=weights, finish=lambda result: images_of(gemm, result), along=along)


def _qlinear_conv_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape, window = conv_form(node, needed(sizes, 0), needed(sizes, 3))
    return (Form(shape=shape, window=window, b=3),)


def _lower_qlinear_conv(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """Inputs: x, its scale and zero point; w, its own; those of y; bias in int32."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (operand(arrays, place) for place in range(8))
    scales = _of_channels(w_scale, gemm.shape)
    along = Companions(
        a_zero=x_zero.reshape(1, 1, 1), b_zero=_of_channels(w_zero, gemm.shape),
        bias=_of_channels(optional(arrays, 8), gemm.shape),
        scale=factor(x_scale.reshape(()), w_scale if scales is None else scales, y_scale.reshape(())),
        y_zero=y_zero.reshape(1, 1, 1),
    )  # fmt: skip
    return Lowered(a=x, b=kernels_of(gemm, w), finish=lambda result: images_of(gemm, result), along=along)


MATMUL_INTEGER = Operator(forms=_matmul_integer_forms, lower=_lower_matmul_integer)
QLINEAR_MATMUL = Operator(forms=_qlinear_matmul_forms, lower=_lower_qlinear_matmul, operands=(0, 3))
QGEMM = Operator(forms=_qgemm_forms, lower=_lower_qgemm, operands=(0, 3))
MATMUL_INTEGER_TO_FLOAT = Operator(forms=_to_float_forms, lower=_lower_to_float)
DYNAMIC_QUANTIZE_MATMUL = Operator(forms=_dynamic_forms, lower=_lower_dynamic)
CONV_INTEGER = Operator(forms=_conv_integer_forms, lower=_lower_conv_integer)
QLINEAR_CONV = Operator(forms=_qlinear_conv_forms, lower=_lower_qlinear_conv, operands=(0, 3))
