"""Matrix products. A weight's gradient is one matrix product, as it is planned (:mod:`cleave_plan.workload.backward`)."""

from __future__ import annotations

from cleave_plan.onnx_io.gradient.rule import Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("MatMul")
def matmul(op: Op) -> Partials:
    """Y = A B: dA = dY B^T, dB = A^T dY, summed over stacks of matrices along which an operand was broadcast.

    With one matrix B for a stack A, the stack is one matrix of all its rows, and both products are single ones (Gemm, so that
    nothing is transposed in memory). A vector is a matrix of one row (A) or one column (B).
    """
    a, b, dy = op.x(0), op.x(1), op.dy
    if b.rank == 2 and a.rank >= 2:
        rows = dy if a.rank == 2 else dy.op("Flatten", axis=a.rank - 1)
        a_rows = a if a.rank == 2 else a.op("Flatten", axis=a.rank - 1)
        return {
            0: lambda: rows.op("Gemm", b, transB=1, phase=op.phase(0)).shaped_like(a),
            1: lambda: a_rows.op("Gemm", rows, transA=1, phase=op.phase(1)),
        }
    left = a.op("Unsqueeze", a.ints(0)) if a.rank == 1 else a
    right = b.op("Unsqueeze", b.ints(-1)) if b.rank == 1 else b
    if b.rank == 1:
        dy = dy.op("Unsqueeze", dy.ints(-1))
    if a.rank == 1:
        dy = dy.op("Unsqueeze", dy.ints(-2))
    return {
        0: lambda: dy.op("MatMul", right.swapped(), phase=op.phase(0)).summed_like(left).shaped_like(a),
        1: lambda: _of_right(op, left, right, dy).shaped_like(b),
    }


def _of_right(op: Op, left: Tensor, right: Tensor, dy: Tensor) -> Tensor:
    """A^T dY; stacks that share one B (the last axes of the stack, as in grouped-query attention) are one deeper product."""
    shared = 0
    while shared < dy.rank - 2 and _is_shared(left, right, dy, dy.rank - 3 - shared):
        shared += 1
    if shared:
        lead = dy.sizes().op("Slice", dy.ints(0), dy.ints(dy.rank - 2 - shared))
        ones = [1] * shared
        left, dy = (
            side.op("Reshape", lead.op("Concat", side.ints(*ones, -1), side.size_of(side.rank - 1), axis=0))
            for side in (left, dy)
        )
    return left.swapped().op("MatMul", dy, phase=op.phase(1)).summed_like(right)


def _is_shared(left: Tensor, right: Tensor, dy: Tensor, axis: int) -> bool:
    """Whether B has one matrix for all of an axis of the stack along which A has its own."""
    a, b, y = left.shape, right.shape, dy.shape
    if a is None or b is None or y is None or len(a) != len(y) or len(b) != len(y):
        return False
    return b[axis] == 1 and y[axis] != 1 and a[axis] == y[axis]


@gradient_of("Gemm")
def gemm(op: Op) -> Partials:
    """Y = α A' B' + β C, A' and B' being A and B or their transposes: dA' = α dY B'^T, dB' = α A'^T dY, dC = β dY."""
    a, b, dy = op.x(0), op.x(1), op.dy
    trans_a, trans_b = bool(op.integer("transA", 0)), bool(op.integer("transB", 0))
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)

    def product(left: Tensor, right: Tensor, trans_left: bool, trans_right: bool, place: int) -> Tensor:
        return left.op("Gemm", right, transA=int(trans_left), transB=int(trans_right), alpha=alpha, phase=op.phase(place))

    def of_a() -> Tensor:
        return product(b, dy, trans_b, True, 0) if trans_a else product(dy, b, False, not trans_b, 0)

    def of_b() -> Tensor:
        return product(dy, a, True, trans_a, 1) if trans_b else product(a, dy, not trans_a, False, 1)

    def of_c() -> Tensor:
        total = dy.summed_like(op.x(2))
        return total if beta == 1.0 else total * beta

    return {0: of_a, 1: of_b, 2: of_c}
