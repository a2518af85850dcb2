"""MatMul, Gemm and their fused forms in onnxruntime (FusedMatMul, TransposeMatMul, FusedGemm).

Rows, columns, the inner axis and the batch can all be cut. A tile is sent its rows of A and its columns of B; factors, bias
and activation are applied by the server to the whole result, so nothing of them travels.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_float, get_int
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.activations import activate
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.workload.gemm import Gemm, GemmShape


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> GemmShape:
    """``a @ b`` as NumPy does it: 1-D operands are a row (A) or a column (B), leading axes broadcast.

    Leading axes that both operands have are the batch, those of A alone lengthen M, those of B alone lengthen N.
    """
    if not a or not b:
        raise ShapeContradictionError("a scalar cannot be a MatMul operand")
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if a[-1] != b[-2]:
        raise ShapeContradictionError(f"inner sizes differ: {a[-1]} and {b[-2]}")
    rank = max(len(a), len(b)) - 2
    lead_a = (1,) * (rank + 2 - len(a)) + a[:-2]
    lead_b = (1,) * (rank + 2 - len(b)) + b[:-2]
    batch, m, n = 1, a[-2], b[-1]
    for from_a, from_b in zip(lead_a, lead_b, strict=True):
        if from_a == from_b:
            batch *= from_a
        elif from_b == 1:
            m *= from_a
        elif from_a == 1:
            n *= from_b
        else:
            raise ShapeContradictionError(f"leading sizes {lead_a} and {lead_b} do not broadcast")
    return GemmShape(batch, m, a[-1], n)


def lower_matmul(left: Array, right: Array) -> Lowered:
    """``left @ right`` of any rank: broadcast axes become rows (only A has them) or columns (only B has them)."""
    # An axis that NumPy adds to a one-dimensional operand is dropped from the result again.
    added = tuple(axis for axis, array in ((-2, left), (-1, right)) if array.ndim == 1)
    left = left[None, :] if left.ndim == 1 else left
    right = right[:, None] if right.ndim == 1 else right
    rank = max(left.ndim, right.ndim) - 2
    left = left.reshape((1,) * (rank + 2 - left.ndim) + left.shape)
    right = right.reshape((1,) * (rank + 2 - right.ndim) + right.shape)
    outer = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    (m, k), n = left.shape[-2:], right.shape[-1]

    both = [axis for axis in range(rank) if left.shape[axis] == right.shape[axis]]
    a_only = [axis for axis in range(rank) if left.shape[axis] != right.shape[axis] and right.shape[axis] == 1]
    b_only = [axis for axis in range(rank) if left.shape[axis] != right.shape[axis] and right.shape[axis] != 1]
    a = left.transpose(*both, *a_only, *b_only, rank, rank + 1)
    b = right.transpose(*both, *a_only, rank, *b_only, rank + 1)
    sizes = [prod(outer[axis] for axis in axes) for axes in (both, a_only, b_only)]

    def finish(result: Array) -> Array:
        axes = [*both, *a_only, rank, *b_only, rank + 1]
        split = result.reshape([(*outer, m, n)[axis] for axis in axes])
        whole = split.transpose(np.argsort(axes))
        return whole.squeeze(axis=added) if added else whole

    return Lowered(a=a.reshape(sizes[0], sizes[1] * m, k), b=b.reshape(sizes[0], right.shape[-2], sizes[2] * n), finish=finish)


def _matmul_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    if len(sizes) != 2:
        raise ShapeContradictionError(f"it has {len(sizes)} inputs, and MatMul multiplies two")
    return (Form(shape=matmul_shape(needed(sizes, 0), needed(sizes, 1))),)


def _lower_matmul(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    return lower_matmul(operand(arrays, 0), operand(arrays, 1))


def _order(node: onnx.NodeProto, letter: str, rank: int) -> list[int]:
    """Order of an operand's axes: transBatch moves the first axis before the last, trans swaps the last two."""
    axes = list(range(rank))
    if get_int(node, f"transBatch{letter}", 0) and rank > 2:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if get_int(node, f"trans{letter}", 0) and rank > 1:
        axes[-2:] = axes[-1], axes[-2]
    return axes


def _fused_matmul_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """FusedMatMul, TransposeMatMul: a MatMul of operands that are first transposed, times alpha."""
    a, b = needed(sizes, 0), needed(sizes, 1)
    turned = [tuple(size[axis] for axis in _order(node, letter, len(size))) for size, letter in ((a, "A"), (b, "B"))]
    return (Form(shape=matmul_shape(*turned)),)


def _lower_fused_matmul(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    a, b = operand(arrays, 0), operand(arrays, 1)
    lowered = lower_matmul(a.transpose(_order(node, "A", a.ndim)), b.transpose(_order(node, "B", b.ndim)))
    alpha = get_float(node, "alpha", 1.0)
    return Lowered(a=lowered.a, b=lowered.b, finish=lambda result: lowered.finish(scaled(result, alpha)))


def gemm_shape(node: onnx.NodeProto, a: tuple[int, ...], b: tuple[int, ...]) -> GemmShape:
    """Gemm: transposed operands are counted as they are used; alpha, beta and C are no matrix work."""
    if len(a) != 2 or len(b) != 2:
        raise ShapeContradictionError(f"{node.op_type} needs matrices, these have {len(a)} and {len(b)} axes")
    m, k = reversed(a) if get_int(node, "transA", 0) else a
    k_of_b, n = reversed(b) if get_int(node, "transB", 0) else b
    if k != k_of_b:
        raise ShapeContradictionError(f"inner sizes differ: {k} and {k_of_b}")
    return GemmShape(1, m, k, n)


def _gemm_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    return (Form(shape=gemm_shape(node, needed(sizes, 0), needed(sizes, 1))),)


def _lower_gemm(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """alpha * A' @ B' + beta * C, with C broadcast to [M, N], and FusedGemm's activation."""
    a, b, bias = operand(arrays, 0), operand(arrays, 1), optional(arrays, 2)
    a = a.T if get_int(node, "transA", 0) else a
    b = b.T if get_int(node, "transB", 0) else b
    alpha, beta = get_float(node, "alpha", 1.0), get_float(node, "beta", 1.0)

    def finish(result: Array) -> Array:
        output = scaled(result[0], alpha)
        if bias is not None and beta != 0.0:
            output = in_type(output + scaled(bias, beta), result.dtype)
        return activate(node, output)

    return Lowered(a=a[None], b=b[None], finish=finish)


def scaled(array: Array, factor: float) -> Array:
    """``array * factor`` in the type of ``array``; whole factors of integers stay exact."""
    if factor == 1.0:
        return array
    if np.issubdtype(array.dtype, np.integer) and factor == int(factor):
        exact: Array = array * np.array(int(factor)).astype(array.dtype)
        return exact
    wide: np.dtype[Any] = np.promote_types(array.dtype, np.float32)
    product: Array = (array.astype(wide) * wide.type(factor)).astype(array.dtype)
    return product


MATMUL = Operator(forms=_matmul_forms, lower=_lower_matmul)
FUSED_MATMUL = Operator(forms=_fused_matmul_forms, lower=_lower_fused_matmul)
GEMM = Operator(forms=_gemm_forms, lower=_lower_gemm)
