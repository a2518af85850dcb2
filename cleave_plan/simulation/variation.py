"""How devices differ from their figures while they work: jitter of every piece of work, and heat.

Jitter: each phase's arithmetic takes ``exp(N(-s^2/2, s))`` of its figure's time, and each transfer's rate is divided by such
a factor (mean 1, relative spread about s). Heat: a device that has been busy for ``after_s`` in a row falls to ``fraction``
of its FLOP/s until it has been idle for ``cool_s`` in all; busy time is counted level by level. (A phone loses nearly half of
its throughput when hot: arXiv 2603.23640.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """Seconds of work after which a device is hot, the share of its FLOP/s that is then left, seconds of rest that cool it."""

    after_s: float
    fraction: float
    cool_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Relative spreads (standard deviation of the logarithm; 0: none) of arithmetic, downlinks and uplinks; scalars, or
    columns over the fleet's devices. ``throttling``: None for devices that never get hot."""

    flop: float | Floats = 0.0
    downlink: float | Floats = 0.0
    uplink: float | Floats = 0.0
    throttling: Throttling | None = None

    @property
    def still(self) -> bool:
        """Whether every device always does what its figures say."""
        return self.throttling is None and not any(np.any(np.asarray(s) > 0) for s in (self.flop, self.downlink, self.uplink))


STEADY = Variation()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factors:
    """Columns over phases: by how much longer arithmetic, downloads and uploads take than the figures say."""

    flop: Floats
    down: Floats
    up: Floats


def draw(variation: Variation, device: NDArray[np.int64], heat: Heat, rng: np.random.Generator) -> Factors:
    """Factors for phases on ``device``."""

    def longer(spread: float | Floats) -> Floats:
        sigma = np.asarray(spread, dtype=float)
        own = sigma[device] if sigma.ndim else np.full(len(device), float(sigma))
        return np.exp(own * rng.standard_normal(len(device)) - own**2 / 2)

    flop = longer(variation.flop) / heat.fraction[device]
    return Factors(flop=flop, down=longer(variation.downlink), up=longer(variation.uplink))


class Heat:
    """Which devices are hot, from the seconds they worked and rested."""

    def __init__(self, devices: int, throttling: Throttling | None) -> None:
        self._throttling = throttling
        self._busy, self._rest = np.zeros(devices), np.zeros(devices)
        self.hot = np.zeros(devices, dtype=bool)

    @property
    def fraction(self) -> Floats:
        """The share of each device's FLOP/s that is left."""
        return np.where(self.hot, 1.0 if self._throttling is None else self._throttling.fraction, 1.0)

    def pass_level(self, busy_s: Floats, seconds: float) -> None:
        """A level of ``seconds`` in which each device worked for ``busy_s``."""
        if self._throttling is None:
            return
        idle = np.maximum(seconds - busy_s, 0)
        self._busy = np.where(idle > busy_s, np.maximum(self._busy - idle, 0), self._busy + busy_s)
        self._rest = np.where(self.hot, self._rest + idle, 0)
        cooled = self.hot & (self._rest >= self._throttling.cool_s)
        self._busy[cooled] = self._rest[cooled] = 0
        self.hot = (self.hot & ~cooled) | (self._busy >= self._throttling.after_s)
