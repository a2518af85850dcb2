"""From the arrays of a GEMM node to canonical operands, and from the canonical result to the node's output.

The canonical form is that of :mod:`cleave_plan.workload.gemm`: ``C[batch, M, N] = A[batch, M, K] @ B[batch, K, N]``,
and for a convolution A is the input as it is. Operands are views wherever strides allow it. Where several axes are
folded into one, they keep their order: the axes that only A has, then its rows; those that only B has, then its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from cleave_plan.errors import ExecutionError
from cleave_plan.workload.gemm import Gemm

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """Canonical operands, and ``finish``: canonical result [batch, M, N] in the storage type -> the node's output."""

    a: Array
    b: Array
    finish: Callable[[Array], Array]


def lower(node: onnx.NodeProto, gemm: Gemm, arrays: Sequence[Array | None]) -> Lowered:
    """Lower ``node``, whose input values are ``arrays`` (None for an absent optional input).

    Raises ExecutionError when the arrays have other shapes than ``gemm`` was planned for.
    """
    present = [array for array in arrays if array is not None]
    rule = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv}[node.op_type]
    try:
        lowered = rule(node, gemm, arrays)
    except (ValueError, IndexError) as error:
        raise _unplanned(gemm, present, str(error)) from None
    batch, m, k, n = gemm.shape
    expected_a = (batch, m, k) if gemm.window is None else (gemm.window.images, batch * gemm.window.channels, *gemm.window.input)
    if lowered.a.shape != expected_a or lowered.b.shape != (batch, k, n):
        raise _unplanned(gemm, present, f"they make operands {list(lowered.a.shape)} and {list(lowered.b.shape)}")
    return lowered


def _unplanned(gemm: Gemm, arrays: Sequence[Array], detail: str) -> ExecutionError:
    shapes = ", ".join(str(list(array.shape)) for array in arrays)
    return ExecutionError(
        f"its inputs have the shapes {shapes} in this run ({detail})", where=f"GEMM {gemm.name!r}",
        expected=f"the planned batch, M, K, N = {tuple(gemm.shape)}", remedy="plan with the shapes that the data really has",
    )  # fmt: skip


def _matmul(node: onnx.NodeProto, gemm: Gemm, arrays: Sequence[Array | None]) -> Lowered:
    """MatMul of any rank: broadcast axes become rows (only A has them) or columns (only B has them)."""
    left, right = _operand(arrays, 0), _operand(arrays, 1)
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


def _gemm(node: onnx.NodeProto, gemm: Gemm, arrays: Sequence[Array | None]) -> Lowered:
    """Gemm: alpha * A' @ B' + beta * C, with C broadcast to [M, N]."""
    attributes = _attributes(node)
    a, b = _operand(arrays, 0), _operand(arrays, 1)
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    bias = arrays[2] if len(arrays) > 2 else None

    def finish(result: Array) -> Array:
        output: Array = result[0]
        dtype = output.dtype
        if alpha != 1.0:
            output = _scaled(output, alpha)
        if bias is not None and beta != 0.0:
            output = (output + (bias if beta == 1.0 else _scaled(bias, beta))).astype(dtype, copy=False)
        return output

    return Lowered(a=a[None], b=b[None], finish=finish)


def _scaled(array: Array, factor: float) -> Array:
    """``array * factor`` in the type of ``array``; whole factors of integers stay exact."""
    if np.issubdtype(array.dtype, np.integer) and factor == int(factor):
        exact: Array = array * np.array(int(factor)).astype(array.dtype)
        return exact
    wide = np.promote_types(array.dtype, np.float32)
    scaled: Array = (array.astype(wide) * wide.type(factor)).astype(array.dtype)
    return scaled


def _conv(node: onnx.NodeProto, gemm: Gemm, arrays: Sequence[Array | None]) -> Lowered:
    """Conv: groups are the batch, output positions of all images the rows, the output channels of a group the columns."""
    if gemm.window is None:
        raise ExecutionError("the convolution has no window", where=f"GEMM {gemm.name!r}")
    images, weights = _operand(arrays, 0), _operand(arrays, 1)
    bias = arrays[2] if len(arrays) > 2 else None
    groups, _, depth, columns = gemm.shape
    window = gemm.window
    if weights.shape != (groups * columns, window.channels, *window.kernel):
        raise ValueError(f"the kernel is {list(weights.shape)}")

    def finish(result: Array) -> Array:
        by_group = result.reshape(groups, window.images, window.rows_per_image, columns).transpose(1, 0, 3, 2)
        output = by_group.reshape(window.images, groups * columns, *window.output)
        if bias is None:
            return output
        return (output + bias.reshape(1, -1, *(1,) * len(window.output))).astype(output.dtype, copy=False)

    return Lowered(a=images, b=weights.reshape(groups, columns, depth).transpose(0, 2, 1), finish=finish)


def _operand(arrays: Sequence[Array | None], place: int) -> Array:
    array = arrays[place]
    if array is None:
        raise ValueError(f"operand {place} is absent")
    return array


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
