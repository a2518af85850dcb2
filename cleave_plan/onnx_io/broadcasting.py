"""NumPy's shapes of broadcast operands and of matrix products, where some sizes are open."""

from __future__ import annotations

from cleave_plan.onnx_io.facts import Dim, ShapeContradictionError


def broadcast(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """NumPy's broadcasting on shapes of which some sizes are open."""
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    return tuple(_broadcast_dim(x, y) for x, y in pairs)


def matmul_shape(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """NumPy's shape of ``left @ right``."""
    if not left or not right:
        raise ShapeContradictionError("a scalar cannot be a matrix operand")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    inner = right[-2] if len(right) > 1 else right[0]
    if isinstance(left[-1], int) and isinstance(inner, int) and left[-1] != inner:
        raise ShapeContradictionError(f"inner sizes differ: {left[-1]} and {inner}")
    return (*broadcast(left[:-2], right[:-2]), *rows, *columns)


def _broadcast_dim(left: Dim, right: Dim) -> Dim:
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    if isinstance(left, int) and isinstance(right, int):
        raise ShapeContradictionError(f"sizes {left} and {right} do not broadcast")
    return left if isinstance(left, int) else right if isinstance(right, int) else None


def axis_in(axis: int, rank: int) -> int | None:
    """``axis`` counted from the front, None when a tensor of this rank has none such."""
    return axis % rank if -rank <= axis < rank else None
