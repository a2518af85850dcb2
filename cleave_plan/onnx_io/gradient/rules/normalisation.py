"""Softmax and normalisations. Σ and mean run over the normalised axes; x̂ is what is scaled.

Of x̂ = (X - μ) r with r = 1/√(σ² + ε): dX = r (dx̂ - mean(dx̂) - x̂ mean(dx̂ x̂)); without μ (RMS): dX = r (dx̂ - x̂ mean(dx̂ x̂)).
Narrow floats are computed in float32, as the forward operators do.
"""

from __future__ import annotations

from collections.abc import Sequence

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor, wide


@gradient_of("Softmax")
def softmax(op: Op) -> Partials:
    """Y = e^X / Σ e^X: dX = Y (dY - Σ dY Y)."""

    def of_x() -> Tensor:
        flowing = op.dy * op.y()
        return flowing - op.y() * flowing.sum(op.integer("axis", -1))

    return {0: of_x}


@gradient_of("LogSoftmax")
def log_softmax(op: Op) -> Partials:
    """Y = X - log Σ e^X: dX = dY - e^Y Σ dY."""
    return {0: lambda: op.dy - op.y().exp() * op.dy.sum(op.integer("axis", -1))}


@gradient_of("LayerNormalization")
def layer_normalization(op: Op) -> Partials:
    """Y = S x̂ + B over the axes from ``axis`` on: dS = Σ dY x̂, dB = Σ dY (over the other axes), dx̂ = dY S."""
    x = op.x(0)
    axes = list(range(op.axis(-1, x.rank), x.rank))
    dy = wide(op.dy)

    def unit() -> Tensor:
        mean, inverse = op.y(1), op.y(2)
        return (wide(x) - mean.cast(dy.elem)) * inverse.cast(dy.elem)

    def of_x() -> Tensor:
        return _through_unit(dy * op.x(1).cast(dy.elem), unit(), op.y(2).cast(dy.elem), axes, centred=True).cast(x.elem)

    return {
        0: of_x,
        1: lambda: (dy * unit()).summed_like(op.x(1)).cast(op.x(1).elem),
        2: lambda: dy.summed_like(op.x(2)).cast(op.x(2).elem),
    }


@gradient_of("RMSNormalization")
def rms_normalization(op: Op) -> Partials:
    """Y = S x̂ with x̂ = X r, r = 1/√(mean(X²) + ε): dS = Σ dY x̂, dx̂ = dY S."""
    x = op.x(0)
    axes = list(range(op.axis(-1, x.rank), x.rank))
    dy = wide(op.dy)
    inverse = 1 / ((wide(x) * wide(x)).mean(*axes) + op.number("epsilon", 1e-5)).sqrt()
    unit = wide(x) * inverse
    return {
        0: lambda: _through_unit(dy * op.x(1).cast(dy.elem), unit, inverse, axes, centred=False).cast(x.elem),
        1: lambda: (dy * unit).summed_like(op.x(1)).cast(op.x(1).elem),
    }


@gradient_of("InstanceNormalization")
def instance_normalization(op: Op) -> Partials:
    """Y = S x̂ + B, each channel of each image normalised by itself: dS = Σ dY x̂, dB = Σ dY, dx̂ = dY S."""
    axes = list(range(2, op.x(0).rank))
    mean, variance = _moments(op.x(0), axes)
    return _by_channel(op, axes, mean, 1 / (variance + op.number("epsilon", 1e-5)).sqrt(), follows=True)


@gradient_of("BatchNormalization", passive=(3, 4))
def batch_normalization(op: Op) -> Partials:
    """Y = S x̂ + B by channel: dS = Σ dY x̂, dB = Σ dY, dx̂ = dY S.

    In training mode μ and σ² are those of the batch, and dX follows from x̂ as above. Otherwise they are the running statistics,
    which are constants: dX = dY S / √(σ² + ε).
    """
    x, epsilon = op.x(0), op.number("epsilon", 1e-5)
    axes = [axis for axis in range(x.rank) if axis != 1]
    follows = bool(op.integer("training_mode", 0))
    mean, variance = batch_statistics(x) if follows else (_across(wide(op.x(place)), x.rank) for place in (3, 4))
    return _by_channel(op, axes, mean, 1 / (variance + epsilon).sqrt(), follows=follows)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """μ and σ² of each channel of ``x [image, channel, ...]``, the other axes having size 1; float32 or wider."""
    return _moments(x, [axis for axis in range(x.rank) if axis != 1])


def _moments(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    mean = wide(x).mean(*axes)
    apart = wide(x) - mean
    return mean, (apart * apart).mean(*axes)


def _across(vector: Tensor, rank: int) -> Tensor:
    """One value for each channel, as it broadcasts over ``[image, channel, ...]``."""
    return vector.reshape([1, -1] + [1] * (rank - 2))


def _by_channel(op: Op, axes: Sequence[int], mean: Tensor, inverse: Tensor, *, follows: bool) -> Partials:
    """``follows``: whether mean and variance depend on X."""
    x, dy = op.x(0), wide(op.dy)
    scale = _across(op.x(1), x.rank).cast(dy.elem)
    mean, inverse = mean.cast(dy.elem), inverse.cast(dy.elem)
    others = [axis for axis in range(x.rank) if axis != 1]

    def unit() -> Tensor:
        return (wide(x) - mean) * inverse

    def of_x() -> Tensor:
        if not follows:
            return (dy * (scale * inverse)).cast(x.elem)
        return _through_unit(dy * scale, unit(), inverse, axes, centred=True).cast(x.elem)

    return {
        0: of_x,
        1: lambda: (dy * unit()).sum(*others, keep=False).cast(op.x(1).elem),
        2: lambda: dy.sum(*others, keep=False).cast(op.x(2).elem),
    }


def _through_unit(gradient: Tensor, unit: Tensor, inverse: Tensor, axes: Sequence[int], *, centred: bool) -> Tensor:
    """The gradient of X from that of x̂ (the module's formula)."""
    rest = gradient - unit * (gradient * unit).mean(*axes)
    return inverse * (rest - gradient.mean(*axes) if centred else rest)


@gradient_of("LpNormalization")
def lp_normalization(op: Op) -> Partials:
    """Y = X / n. p = 2: n = √(Σ X²), dX = (dY - Y Σ dY Y) / n; p = 1: n = Σ |X|, dX = (dY - sign(X) Σ dY Y) / n."""
    x, axis, order = op.x(0), op.integer("axis", -1), op.integer("p", 2)
    if order not in (1, 2):
        raise NoRuleError(f"LpNormalization of order {order}")

    def of_x() -> Tensor:
        size = x.op("ReduceL1" if order == 1 else "ReduceL2", x.ints(axis), keepdims=1)
        along = (op.dy * op.y()).sum(axis)
        return (op.dy - (x.op("Sign") if order == 1 else op.y()) * along) / size

    return {0: of_x}
