"""The optimizers' arithmetic, on a block of a parameter at a time: element by element, so that blocks do not show.

Everything happens in place, in the type of the parameter's master copy. A block is a flat piece that stays in the cache
while the several passes over it are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.training.settings import OptimizerKind, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A flat piece of a parameter: its values, its state by slot, and a scratch array of its size and type twice."""

    values: Array
    state: Mapping[str, Array]
    scratch: tuple[Array, Array]


class Optimizer(Protocol):
    """``slots`` are the names of the arrays of state, each as large as the parameter and 0 at first."""

    slots: tuple[str, ...]

    def update(self, block: Block, gradient: Array, *, step: int, rate: float, decay: float) -> None:
        """One step (counted from 1) down ``gradient``, which is overwritten; ``rate`` and ``decay`` are the parameter's."""


def optimizer_of(settings: Settings) -> Optimizer:
    """The optimizer that ``settings`` ask for."""
    if settings.optimizer is OptimizerKind.SGD:
        return Sgd(momentum=settings.momentum, nesterov=settings.nesterov)
    return AdamW(betas=settings.betas, epsilon=settings.epsilon)


class Sgd:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013, in the form of PyTorch's SGD without dampening).

    g <- g + λ θ;  b <- μ b + g  (b <- g in the first step);  g <- g + μ b with Nesterov, else b;  θ <- θ - η g
    """

    def __init__(self, *, momentum: float, nesterov: bool) -> None:
        self._momentum, self._nesterov = momentum, nesterov
        self.slots: tuple[str, ...] = ("momentum",) if momentum else ()

    def update(self, block: Block, gradient: Array, *, step: int, rate: float, decay: float) -> None:
        """One step; see the class."""
        first, _ = block.scratch
        if decay:
            np.multiply(block.values, decay, out=first)
            gradient += first
        if self._momentum:
            buffer = block.state["momentum"]
            buffer *= self._momentum
            buffer += gradient
            if self._nesterov:
                np.multiply(buffer, self._momentum, out=first)
                gradient += first
            else:
                gradient = buffer
        np.multiply(gradient, rate, out=first)
        np.subtract(block.values, first, out=block.values)


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2 with λ scaled by η).

    θ <- θ (1 - η λ);  m <- β₁ m + (1 - β₁) g;  v <- β₂ v + (1 - β₂) g²;
    θ <- θ - η / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε)
    """

    slots: tuple[str, ...] = ("first", "second")

    def __init__(self, *, betas: tuple[float, float], epsilon: float) -> None:
        self._betas, self._epsilon = betas, epsilon

    def update(self, block: Block, gradient: Array, *, step: int, rate: float, decay: float) -> None:
        """One step; see the class."""
        (one, two), values, (scratch, other) = self._betas, block.values, block.scratch
        first, second = block.state["first"], block.state["second"]
        if decay:
            np.multiply(values, 1 - rate * decay, out=values)
        first *= one
        np.multiply(gradient, 1 - one, out=scratch)
        first += scratch
        np.multiply(gradient, gradient, out=other)
        other *= 1 - two
        second *= two
        second += other
        np.sqrt(second, out=other)
        other /= math.sqrt(1 - two**step)
        other += self._epsilon
        np.divide(first, other, out=scratch)
        scratch *= rate / (1 - one**step)
        np.subtract(values, scratch, out=values)
