"""Reductions. dY is given the reduced axes back with size 1, so that it broadcasts over X."""

from __future__ import annotations

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor


def _axes(op: Op) -> list[int] | None:
    """The reduced axes counted from 0; None when they are all."""
    known = op.value(1)
    if op.has(1) and known is None:
        raise NoRuleError("the axes of a reduction must be constant")
    if known is None or not known.size:
        return [] if op.integer("noop_with_empty_axes", 0) else None
    return sorted(int(axis) % op.x(0).rank for axis in known.ravel())


def _kept(op: Op, tensor: Tensor) -> Tensor:
    """An output-like tensor with the reduced axes there again."""
    axes = _axes(op)
    if op.integer("keepdims", 1) or axes == []:
        return tensor
    return tensor if axes is None else tensor.op("Unsqueeze", tensor.ints(*axes))  # a scalar broadcasts as it is


def _whole(op: Op, gradient: Tensor) -> Tensor:
    """A gradient that broadcasts over X in the shape of X."""
    return gradient.expand(op.x(0).sizes())


@gradient_of("ReduceSum")
def reduce_sum(op: Op) -> Partials:
    """Y = Σ X: dX = dY."""
    return {0: lambda: _whole(op, _kept(op, op.dy))}


@gradient_of("ReduceMean")
def reduce_mean(op: Op) -> Partials:
    """Y = Σ X / n: dX = dY / n."""
    axes = _axes(op)
    return {0: lambda: _whole(op, _kept(op, op.dy / op.x(0).count_along(_or_all(op, axes), op.dy.elem)))}


def _or_all(op: Op, axes: list[int] | None) -> list[int]:
    return list(range(op.x(0).rank)) if axes is None else axes


@gradient_of("ReduceMax", "ReduceMin")
def reduce_extreme(op: Op) -> Partials:
    """Y = max X: dY goes where X = Y, in equal parts where several are (as PyTorch's amax does)."""

    def of_x() -> Tensor:
        hits = op.x(0).equals(_kept(op, op.y())).cast(op.dy.elem)
        number = hits.sum(*_or_all(op, _axes(op)))
        return hits * (_kept(op, op.dy) / number)

    return {0: of_x}


@gradient_of("ReduceProd")
def reduce_prod(op: Op) -> Partials:
    """Y = Π X: dX = dY times the product of the other elements.

    With z zeros among the elements of a product: z = 0: dY Y / X; z = 1: at the zero dY times the product of the rest, 0
    elsewhere; z > 1: 0.
    """

    def of_x() -> Tensor:
        x, axes = op.x(0), _or_all(op, _axes(op))
        zero = x.equals(0)
        filled = x.like(1).where(zero, x)
        rest = filled.op("ReduceProd", x.ints(*axes), keepdims=1) / filled
        zeros = zero.cast(x.elem)
        others = zeros.sum(*axes) - zeros  # zeros among the other elements
        return (_kept(op, op.dy) * rest).where(others.equals(0))

    return {0: of_x}


@gradient_of("ReduceSumSquare")
def reduce_sum_square(op: Op) -> Partials:
    """Y = Σ X²: dX = 2 X dY."""
    return {0: lambda: op.x(0) * _kept(op, op.dy * 2)}


@gradient_of("ReduceL1")
def reduce_l1(op: Op) -> Partials:
    """Y = Σ |X|: dX = sign(X) dY."""
    return {0: lambda: op.x(0).op("Sign") * _kept(op, op.dy)}


@gradient_of("ReduceL2")
def reduce_l2(op: Op) -> Partials:
    """Y = √(Σ X²): dX = X dY / Y (0 where Y = 0)."""

    def of_x() -> Tensor:
        y = op.y()
        return op.x(0) * _kept(op, op.dy / y.like(1).where(y.equals(0), y))

    return {0: of_x}


@gradient_of("ReduceLogSum")
def reduce_log_sum(op: Op) -> Partials:
    """Y = log Σ X: dX = dY e^-Y."""
    return {0: lambda: _whole(op, _kept(op, op.dy * (-op.y()).exp()))}


@gradient_of("ReduceLogSumExp")
def reduce_log_sum_exp(op: Op) -> Partials:
    """Y = log Σ e^X: dX = dY e^(X - Y)."""
    return {0: lambda: _kept(op, op.dy) * (op.x(0) - _kept(op, op.y())).exp()}


@gradient_of("CumSum")
def cum_sum(op: Op) -> Partials:
    """Y[i] = Σ_{j <= i} X[j] along an axis: dX is the same sum of dY from the other end."""
    exclusive, reverse = op.integer("exclusive", 0), op.integer("reverse", 0)
    return {0: lambda: op.dy.op("CumSum", op.x(1), exclusive=exclusive, reverse=1 - reverse)}
