"""From the arrays of a GEMM node to canonical operands, and from the canonical result to the node's output.

The canonical form is that of :mod:`cleave_plan.workload.gemm`: ``C[batch, M, N] = A[batch, M, K] @ B[batch, K, N]``,
and for a convolution A is the input as it is, and the result [images, M, positions]. Operands are views wherever strides
allow it. Where several axes are folded into one, they keep their order: the axes that only A has, then its rows; those that
only B has, then its columns.
Each operator's part is with its rule (:mod:`cleave_plan.onnx_io.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.operators import operator_of
from cleave_plan.onnx_io.rules.forms import Array, Lowered
from cleave_plan.workload.gemm import Gemm


def lower(node: onnx.NodeProto, gemm: Gemm, arrays: Sequence[Array | None]) -> Lowered:
    """Lower ``node``, whose input values are ``arrays`` (None for an absent optional input).

    Raises ExecutionError when the arrays have other shapes than ``gemm`` was planned for.
    """
    present = [array for array in arrays if array is not None]
    operator = operator_of(node)
    if operator is None or operator.lower is None:
        raise ExecutionError(f"{node.op_type} cannot be computed in tiles", where=f"GEMM {gemm.name!r}")
    try:
        lowered = operator.lower(node, gemm, arrays)
    except (ValueError, IndexError) as error:
        raise _unplanned(gemm, present, str(error)) from None
    product = Product.of(gemm, lowered.coding)
    if lowered.a.shape != product.a_shape or lowered.b.shape != product.b_shape:
        raise _unplanned(gemm, present, f"they make operands {list(lowered.a.shape)} and {list(lowered.b.shape)}")
    return lowered


def _unplanned(gemm: Gemm, arrays: Sequence[Array], detail: str) -> ExecutionError:
    shapes = ", ".join(str(list(array.shape)) for array in arrays)
    return ExecutionError(
        f"its inputs have the shapes {shapes} in this run ({detail})", where=f"GEMM {gemm.name!r}",
        expected=f"the planned batch, M, K, N = {tuple(gemm.shape)}", remedy="plan with the shapes that the data really has",
    )  # fmt: skip
