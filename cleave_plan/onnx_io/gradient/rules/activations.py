"""Activation functions: one input that a gradient reaches (PRelu: two), elementwise. M ? A : B is A where M holds, else B."""

from __future__ import annotations

from math import pi, sqrt

from cleave_plan.onnx_io.gradient.rule import Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@gradient_of("Identity")
def identity(op: Op) -> Partials:
    """Y = X: dX = dY."""
    return {0: lambda: op.dy}


@gradient_of("Cast", "CastLike", passive=(1,))
def cast(op: Op) -> Partials:
    """Y = X in another type: dX = dY in the type of X."""
    return {0: lambda: op.dy.cast(op.x(0).elem)}


@gradient_of("Dropout", passive=(1,))
def dropout(op: Op) -> Partials:
    """Y = X mask / (1 - ratio): dX = dY mask / (1 - ratio); outside training mode dX = dY.

    What is kept is seen from the mask, and the factor is applied by the ratio as the node has it (1/2 when it has none).
    """
    training = op.value(2)
    if not op.has(2) or (training is not None and not training.item()):
        return {0: lambda: op.dy}

    def of_x() -> Tensor:
        kept = op.dy.where(op.y(1))
        ratio = op.x(1).cast(op.dy.elem) if op.has(1) else op.dy.like(0.5)
        scaled = kept / (1 - ratio)
        return scaled if training is not None else op.x(2).op("Where", scaled, op.dy)

    return {0: of_x}


@gradient_of("Relu")
def relu(op: Op) -> Partials:
    """Y = max(X, 0): dX = Y > 0 ? dY : 0."""
    return {0: lambda: op.dy.where(op.y() > 0)}


@gradient_of("LeakyRelu")
def leaky_relu(op: Op) -> Partials:
    """Y = X > 0 ? X : αX: dX = X > 0 ? dY : α dY."""
    return {0: lambda: op.dy.where(op.x(0) > 0, op.dy * op.number("alpha", 0.01))}


@gradient_of("PRelu")
def prelu(op: Op) -> Partials:
    """Y = X > 0 ? X : S X: dX = X > 0 ? dY : S dY, dS = X > 0 ? 0 : X dY, S broadcast to X."""
    return {
        0: lambda: op.dy.where(op.x(0) > 0, op.dy * op.x(1)),
        1: lambda: (op.dy * op.x(0)).where(op.x(0) <= 0).summed_like(op.x(1)),
    }


@gradient_of("ThresholdedRelu")
def thresholded_relu(op: Op) -> Partials:
    """Y = X > α ? X : 0: dX = X > α ? dY : 0."""
    return {0: lambda: op.dy.where(op.x(0) > op.number("alpha", 1.0))}


@gradient_of("Elu")
def elu(op: Op) -> Partials:
    """Y = X > 0 ? X : α (e^X - 1): dX = X > 0 ? dY : dY α e^X."""
    return {0: lambda: op.dy.where(op.x(0) > 0, op.dy * (_of_negative(op.x(0)).exp() * op.number("alpha", 1.0)))}


@gradient_of("Selu")
def selu(op: Op) -> Partials:
    """Y = γ (X > 0 ? X : α (e^X - 1)): dX = γ dY (X > 0 ? 1 : α e^X)."""
    alpha, gamma = op.number("alpha", _SELU_ALPHA), op.number("gamma", _SELU_GAMMA)
    return {0: lambda: (op.dy * gamma).where(op.x(0) > 0, op.dy * (_of_negative(op.x(0)).exp() * (alpha * gamma)))}


@gradient_of("Celu")
def celu(op: Op) -> Partials:
    """Y = X > 0 ? X : α (e^(X/α) - 1): dX = X > 0 ? dY : dY e^(X/α)."""
    return {0: lambda: op.dy.where(op.x(0) > 0, op.dy * (_of_negative(op.x(0)) / op.number("alpha", 1.0)).exp())}


def _of_negative(x: Tensor) -> Tensor:
    """min(X, 0), so that an exponential of it cannot overflow where it is not used."""
    return x.where(x < 0)


@gradient_of("Sigmoid")
def sigmoid(op: Op) -> Partials:
    """Y = 1 / (1 + e^-X): dX = dY Y (1 - Y)."""
    return {0: lambda: op.dy * (op.y() * (1 - op.y()))}


@gradient_of("Tanh")
def tanh(op: Op) -> Partials:
    """Y = tanh X: dX = dY (1 - Y²)."""
    return {0: lambda: op.dy * (1 - op.y() * op.y())}


@gradient_of("Softplus")
def softplus(op: Op) -> Partials:
    """Y = log(1 + e^X): dX = dY sigmoid X."""
    return {0: lambda: op.dy * op.x(0).op("Sigmoid")}


@gradient_of("Softsign")
def softsign(op: Op) -> Partials:
    """Y = X / (1 + |X|): dX = dY / (1 + |X|)²."""

    def of_x() -> Tensor:
        below = op.x(0).op("Abs") + 1
        return op.dy / (below * below)

    return {0: of_x}


@gradient_of("HardSigmoid")
def hard_sigmoid(op: Op) -> Partials:
    """Y = min(max(αX + β, 0), 1): dX = 0 < Y < 1 ? α dY : 0."""
    inside = (op.y() > 0).op("And", op.y() < 1)
    return {0: lambda: (op.dy * op.number("alpha", 0.2)).where(inside)}


@gradient_of("HardSwish")
def hard_swish(op: Op) -> Partials:
    """Y = X min(max(X/6 + 1/2, 0), 1): dX = X <= -3 ? 0 : X >= 3 ? dY : dY (X/3 + 1/2)."""
    x = op.x(0)
    return {0: lambda: op.dy.where(x >= 3, op.dy * (x / 3 + 0.5)).where(x > -3)}


@gradient_of("Gelu")
def gelu(op: Op) -> Partials:
    """Y = X Φ(X): dX = dY (Φ + X φ), with Φ = (1 + erf(X/√2)) / 2 and φ = e^(-X²/2) / √(2π).

    approximate = tanh: Y = X (1 + t) / 2 with t = tanh u, u = √(2/π) (X + 0.044715 X³):
    dX = dY ((1 + t) / 2 + X (1 - t²) u' / 2), u' = √(2/π) (1 + 3·0.044715 X²).
    """
    x = op.x(0)

    def exact() -> Tensor:
        below = ((x * sqrt(0.5)).op("Erf") + 1) * 0.5
        density = (x * x * -0.5).exp() * (1 / sqrt(2 * pi))
        return op.dy * (below + x * density)

    def approximate() -> Tensor:
        square = x * x
        t = (x * (square * 0.044715 + 1) * sqrt(2 / pi)).op("Tanh")
        inner = (square * (3 * 0.044715) + 1) * (0.5 * sqrt(2 / pi))
        return op.dy * ((t + 1) * 0.5 + x * (1 - t * t) * inner)

    return {0: approximate if op.text("approximate", "none") == "tanh" else exact}


@gradient_of("Swish")
def swish(op: Op) -> Partials:
    """Y = X σ(αX): dX = dY (σ + α Y (1 - σ)), σ the sigmoid of αX."""
    alpha = op.number("alpha", 1.0)

    def of_x() -> Tensor:
        gate = (op.x(0) * alpha).op("Sigmoid")
        return op.dy * (gate + op.y() * (1 - gate) * alpha)

    return {0: of_x}


@gradient_of("Mish")
def mish(op: Op) -> Partials:
    """Y = X t, t = tanh(log(1 + e^X)): dX = dY (t + X (1 - t²) sigmoid X)."""

    def of_x() -> Tensor:
        t = op.x(0).op("Softplus").op("Tanh")
        return op.dy * (t + op.x(0) * (1 - t * t) * op.x(0).op("Sigmoid"))

    return {0: of_x}


@gradient_of("Shrink")
def shrink(op: Op) -> Partials:
    """Y = X < -λ ? X + bias : X > λ ? X - bias : 0: dX = |X| > λ ? dY : 0."""
    return {0: lambda: op.dy.where(op.x(0).op("Abs") > op.number("lambd", 0.5))}


@gradient_of("Clip")
def clip(op: Op) -> Partials:
    """Y = min(max(X, low), high): dX = low <= X <= high ? dY : 0, dlow = Σ (X < low ? dY : 0), dhigh = Σ (X > high ? dY : 0)."""
    x = op.x(0)

    def of_x() -> Tensor:
        kept = op.dy
        if op.has(1):
            kept = kept.where(x >= op.x(1))
        return kept.where(x <= op.x(2)) if op.has(2) else kept

    partials = {0: of_x}
    if op.has(1):
        partials[1] = lambda: op.dy.where(x < op.x(1)).summed_like(op.x(1))
    if op.has(2):
        partials[2] = lambda: op.dy.where(x > op.x(2)).summed_like(op.x(2))
    return partials
