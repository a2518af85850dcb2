"""Elementwise arithmetic, with broadcasting undone: where an input was stretched along an axis, its gradient is summed there."""

from __future__ import annotations

from functools import partial
from math import pi

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("Add")
def add(op: Op) -> Partials:
    """Y = A + B: dA = dY, dB = dY."""
    return {0: lambda: op.dy.summed_like(op.x(0)), 1: lambda: op.dy.summed_like(op.x(1))}


@gradient_of("Sub")
def sub(op: Op) -> Partials:
    """Y = A - B: dA = dY, dB = -dY."""
    return {0: lambda: op.dy.summed_like(op.x(0)), 1: lambda: -op.dy.summed_like(op.x(1))}


@gradient_of("Mul")
def mul(op: Op) -> Partials:
    """Y = A B: dA = dY B, dB = dY A."""
    return {0: lambda: (op.dy * op.x(1)).summed_like(op.x(0)), 1: lambda: (op.dy * op.x(0)).summed_like(op.x(1))}


@gradient_of("Div")
def div(op: Op) -> Partials:
    """Y = A / B: dA = dY / B, dB = -dY Y / B."""
    return {
        0: lambda: (op.dy / op.x(1)).summed_like(op.x(0)),
        1: lambda: -(op.dy * op.y() / op.x(1)).summed_like(op.x(1)),
    }


@gradient_of("Pow")
def power(op: Op) -> Partials:
    """Y = A^B: dA = dY B A^(B-1) (0 where B = 0), dB = dY Y log A (0 where A <= 0, as the limit at A = 0, B > 0)."""
    a, b = op.x(0), op.x(1).cast(op.x(0).elem)

    def of_base() -> Tensor:
        slope = b * a.op("Pow", b - 1)
        known = op.value(1)
        if known is None or not known.all():
            slope = slope.where(b.equals(0).op("Not"))
        return (op.dy * slope).summed_like(a)

    def of_exponent() -> Tensor:
        positive = a > 0
        return (op.dy * op.y() * a.where(positive, 1).op("Log")).where(positive).summed_like(op.x(1))

    return {0: of_base, 1: of_exponent}


@gradient_of("Mod")
def mod(op: Op) -> Partials:
    """Y = A - B trunc(A / B) (fmod): dA = dY, dB = -dY trunc(A / B) = dY (Y - A) / B."""
    if not op.integer("fmod", 0):
        raise NoRuleError("Mod of floating-point numbers needs fmod = 1")
    return {
        0: lambda: op.dy.summed_like(op.x(0)),
        1: lambda: (op.dy * (op.y() - op.x(0)) / op.x(1)).summed_like(op.x(1)),
    }


@gradient_of("Sum")
def variadic_sum(op: Op) -> Partials:
    """Y = X1 + X2 + ...: dXi = dY."""
    return {place: partial(_summed, op.dy, op.x(place)) for place in range(len(op.node.input))}


@gradient_of("Mean")
def variadic_mean(op: Op) -> Partials:
    """Y = (X1 + ... + Xn) / n: dXi = dY / n."""
    number = len(op.node.input)
    return {place: partial(_summed, op.dy / number, op.x(place)) for place in range(number)}


@gradient_of("Max", "Min")
def extreme(op: Op) -> Partials:
    """Y = max(X1, X2, ...): dY goes where Xi = Y, in equal parts where several are (as PyTorch does)."""
    places = range(len(op.node.input))

    def hits(place: int) -> Tensor:
        return op.x(place).equals(op.y()).cast(op.y().elem)

    def part(place: int) -> Tensor:
        total = hits(0)
        for other in places[1:]:
            total = total + hits(other)
        return (op.dy * hits(place) / total).summed_like(op.x(place))

    return {place: partial(part, place) for place in places}


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.summed_like(like)


@gradient_of("Where")
def where(op: Op) -> Partials:
    """Y = C ? A : B: dA = C ? dY : 0, dB = C ? 0 : dY."""
    return {
        1: lambda: op.dy.where(op.x(0)).summed_like(op.x(1)),
        2: lambda: op.dy.where(op.x(0).op("Not")).summed_like(op.x(2)),
    }


@gradient_of("Abs")
def absolute(op: Op) -> Partials:
    """Y = |X|: dX = dY sign X."""
    return {0: lambda: op.dy * op.x(0).op("Sign")}


@gradient_of("Neg")
def neg(op: Op) -> Partials:
    """Y = -X: dX = -dY."""
    return {0: lambda: -op.dy}


@gradient_of("Reciprocal")
def reciprocal(op: Op) -> Partials:
    """Y = 1 / X: dX = -dY Y²."""
    return {0: lambda: -(op.dy * op.y() * op.y())}


@gradient_of("Sqrt")
def square_root(op: Op) -> Partials:
    """Y = √X: dX = dY / (2 Y)."""
    return {0: lambda: op.dy / (op.y() * 2)}


@gradient_of("Exp")
def exp(op: Op) -> Partials:
    """Y = e^X: dX = dY Y."""
    return {0: lambda: op.dy * op.y()}


@gradient_of("Log")
def log(op: Op) -> Partials:
    """Y = log X: dX = dY / X."""
    return {0: lambda: op.dy / op.x(0)}


@gradient_of("Erf")
def erf(op: Op) -> Partials:
    """Y = erf X: dX = dY 2/√π e^(-X²)."""
    return {0: lambda: op.dy * ((-(op.x(0) * op.x(0))).exp() * (2 / pi**0.5))}


@gradient_of("Sin")
def sin(op: Op) -> Partials:
    """Y = sin X: dX = dY cos X."""
    return {0: lambda: op.dy * op.x(0).op("Cos")}


@gradient_of("Cos")
def cos(op: Op) -> Partials:
    """Y = cos X: dX = -dY sin X."""
    return {0: lambda: -(op.dy * op.x(0).op("Sin"))}


@gradient_of("Tan")
def tan(op: Op) -> Partials:
    """Y = tan X: dX = dY (1 + Y²)."""
    return {0: lambda: op.dy * (op.y() * op.y() + 1)}


@gradient_of("Asin")
def asin(op: Op) -> Partials:
    """Y = arcsin X: dX = dY / √(1 - X²)."""
    return {0: lambda: op.dy / (1 - op.x(0) * op.x(0)).sqrt()}


@gradient_of("Acos")
def acos(op: Op) -> Partials:
    """Y = arccos X: dX = -dY / √(1 - X²)."""
    return {0: lambda: -(op.dy / (1 - op.x(0) * op.x(0)).sqrt())}


@gradient_of("Atan")
def atan(op: Op) -> Partials:
    """Y = arctan X: dX = dY / (1 + X²)."""
    return {0: lambda: op.dy / (op.x(0) * op.x(0) + 1)}


@gradient_of("Sinh")
def sinh(op: Op) -> Partials:
    """Y = sinh X: dX = dY cosh X."""
    return {0: lambda: op.dy * op.x(0).op("Cosh")}


@gradient_of("Cosh")
def cosh(op: Op) -> Partials:
    """Y = cosh X: dX = dY sinh X."""
    return {0: lambda: op.dy * op.x(0).op("Sinh")}


@gradient_of("Asinh")
def asinh(op: Op) -> Partials:
    """Y = arsinh X: dX = dY / √(X² + 1)."""
    return {0: lambda: op.dy / (op.x(0) * op.x(0) + 1).sqrt()}


@gradient_of("Acosh")
def acosh(op: Op) -> Partials:
    """Y = arcosh X: dX = dY / √(X² - 1)."""
    return {0: lambda: op.dy / (op.x(0) * op.x(0) - 1).sqrt()}


@gradient_of("Atanh")
def atanh(op: Op) -> Partials:
    """Y = artanh X: dX = dY / (1 - X²)."""
    return {0: lambda: op.dy / (1 - op.x(0) * op.x(0))}
