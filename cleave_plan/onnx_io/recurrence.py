"""The steps of LSTM, GRU and RNN in NumPy, given the input's part of every gate.

All directions, layouts [steps, batch, ...], activations with their parameters, clipping, peepholes, sequence lengths.
Gate order, as in ONNX: i o f c (LSTM), z r h (GRU), one (RNN).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cleave_plan.kernels.quantised import dynamically_quantised

Array = NDArray[Any]
Activation = Callable[[Array], Array]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

_FUNCTIONS: dict[str, Callable[[Array, Any, Any], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x >= a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}  # fmt: skip
_PARAMETERS = {
    "affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0),
}  # fmt: skip
_WITH_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})


def known_activations(names: Sequence[str]) -> bool:
    """Whether each of these can be applied."""
    return all(name.lower() in _FUNCTIONS for name in names)


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """The functions; parameters are taken in order by those functions that have one, defaults fill in."""
    first, second = list(alphas), list(betas)
    made = []
    for name in map(str.lower, names):
        alpha, beta = _PARAMETERS.get(name, (0.0, 0.0))
        alpha = first.pop(0) if first and name in _PARAMETERS else alpha
        beta = second.pop(0) if second and name in _WITH_BETA else beta
        made.append(_applied(_FUNCTIONS[name], alpha, beta))
    return made


def _applied(function: Callable[[Array, Any, Any], Array], alpha: float, beta: float) -> Activation:
    return lambda x: function(x, x.dtype.type(alpha), x.dtype.type(beta))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """One recurrent layer: ``kind``, directions, activations of all directions in order, and the attributes that change steps.

    ``scales`` [directions, gates * H or 1]: R holds integers of these scales, and each step quantises its hidden state.
    """

    kind: str
    direction: str
    functions: Sequence[Activation]
    clip: float = 0.0
    input_forget: bool = False
    linear_before_reset: bool = False
    scales: Array | None = None

    def run(
        self, given: Array, recurrent: Array, bias: Array | None, lengths: Array | None, hidden: Array | None,
        cell: Array | None, peepholes: Array | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """``(Y [steps, directions, batch, H], Y_h, Y_c [directions, batch, H])``.

        ``given`` [steps, batch, directions, gates * H] is X W^T; the other arrays are ONNX's R, B, sequence_lens, initial_h,
        initial_c and P.
        """
        steps, batch, directions, _ = given.shape
        size = recurrent.shape[-1]
        wide = np.promote_types(given.dtype, np.float32)
        out = np.zeros((steps, directions, batch, size), wide)
        states = np.zeros((2, directions, batch, size), wide)
        for place, initial in enumerate((hidden, cell)):
            states[place] = 0 if initial is None else initial
        ends = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
        per_direction = len(self.functions) // directions
        for d in range(directions):
            functions = self.functions[d * per_direction : (d + 1) * per_direction]
            weights = recurrent[d].astype(wide).T
            terms = np.zeros((2, weights.shape[1]), wide) if bias is None else bias[d].astype(wide).reshape(2, -1)
            peeps = None if peepholes is None else peepholes[d].astype(wide).reshape(3, size)
            scale = None if self.scales is None else self.scales[d]
            backward = self.direction == "reverse" or d == 1
            for step in range(steps):
                alive = step < ends
                at = np.where(alive, ends - 1 - step, 0) if backward else np.full(batch, step)
                x = given[at, np.arange(batch), d].astype(wide)
                h, c = self._step(x, states[0, d], states[1, d], weights, scale, terms, peeps, functions)
                keep = alive[:, None]
                states[0, d], states[1, d] = np.where(keep, h, states[0, d]), np.where(keep, c, states[1, d])
                out[at[alive], d, alive.nonzero()[0]] = h[alive]
        h, c = states.astype(given.dtype)
        return out.astype(given.dtype), h, c

    def _step(
        self, x: Array, h: Array, c: Array, weights: Array, scale: Array | None, bias: Array, peeps: Array | None,
        f: Sequence[Activation],
    ) -> tuple[Array, Array]:  # fmt: skip
        """The next hidden state and cell."""
        if self.kind == "LSTM":
            return self._lstm(x + _times(h, weights, scale) + bias[0] + bias[1], c, peeps, f)
        if self.kind == "GRU":
            return self._gru(x + bias[0], h, weights, bias[1], f), c
        return f[0](self._clipped(x + h @ weights + bias[0] + bias[1])), c

    def _lstm(self, gates: Array, c: Array, peeps: Array | None, f: Sequence[Activation]) -> tuple[Array, Array]:
        i, o, forget, new = np.split(gates, 4, axis=-1)
        if peeps is not None:
            i, forget = i + peeps[0] * c, forget + peeps[2] * c
        i, forget = f[0](self._clipped(i)), f[0](self._clipped(forget))
        forget = 1 - i if self.input_forget else forget
        c = forget * c + i * f[1](self._clipped(new))
        if peeps is not None:
            o = o + peeps[1] * c
        return f[0](self._clipped(o)) * f[2](c), c

    def _gru(self, x: Array, h: Array, weights: Array, bias: Array, f: Sequence[Activation]) -> Array:
        size = h.shape[-1]
        (xz, xr, xh), (wz, wr, wh), (bz, br, bh) = (np.split(part, 3, axis=-1) for part in (x, weights, bias))
        both = h @ np.concatenate([wz, wr], axis=-1)
        z = f[0](self._clipped(xz + both[:, :size] + bz))
        r = f[0](self._clipped(xr + both[:, size:] + br))
        new = r * (h @ wh + bh) if self.linear_before_reset else (r * h) @ wh + bh
        state: Array = (1 - z) * f[1](self._clipped(xh + new)) + z * h
        return state

    def _clipped(self, x: Array) -> Array:
        return np.clip(x, -self.clip, self.clip) if self.clip else x


def _times(h: Array, weights: Array, scale: Array | None) -> Array:
    """``h @ weights``; by quantised states where the weights are integers of ``scale``."""
    if scale is None:
        plain: Array = h @ weights
        return plain
    codes, step, zero = dynamically_quantised(h)
    product: Array = ((codes.astype(h.dtype) - zero) @ weights) * (step * scale)
    return product
