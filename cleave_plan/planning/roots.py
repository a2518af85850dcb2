"""Roots of functions that rise or fall: the moment at which something is done, under every bound, and columns of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INSTANT, NEVER = 1e-30, 1e30
"""Seconds between which a time is looked for."""

_SPAN = 60.0
"""Logarithms of shares are cut to this, either way (nothing is done, or all of it at once)."""

_STEEP = 1.5
"""What is done grows about with this power of the time, at first guess."""

_HALVING = 3
"""Every so many steps the bracket is halved, should the secant have been slow."""


def latest_short(done: Callable[[float], float], start: float, tolerance: float = 1e-10) -> float:
    """The latest T that is known to be too short, ``done(T) < 1``, within ``tolerance`` (relative) of one that is not.

    ``done`` is the share that is done by T and never falls; ``start`` > 0 is any guess. 0 where all is done at once, ``NEVER``
    where it never is. Regula falsi (Illinois) on logarithms, in which shares are nearly straight lines; the end that is
    found last is nudged so that the other follows.
    """

    def log_done(log_t: float) -> float:
        share = done(math.exp(log_t))
        return min(max(math.log(share), -_SPAN), _SPAN) if share > 0 else -_SPAN

    low, high, below, above = _bracket(log_done, math.log(start))
    if high <= math.log(INSTANT):
        return 0.0
    if low >= math.log(NEVER):
        return NEVER
    side, step = 0, 0
    while high - low > tolerance:
        step += 1
        part = below / (below - above) if step % _HALVING else 0.5
        x = low + (high - low) * part
        x = min(max(x, low + 0.4 * tolerance), high - 0.4 * tolerance)  # one more step then closes the bracket
        if not low < x < high:
            break  # neighbouring floats
        found = log_done(x)
        if found < 0:
            low, below, above = x, found, above / 2 if side < 0 else above
            side = -1
        else:
            high, above, below = x, found, below / 2 if side > 0 else below
            side = 1
    return math.exp(low)


def _bracket(log_done: Callable[[float], float], start: float) -> tuple[float, float, float, float]:
    """``(low, high)`` with ``log_done`` below 0 at the first and not at the second, and the values there."""
    x, found = start, log_done(start)
    least, most = math.log(INSTANT), math.log(NEVER)
    reach = 0.02
    while True:
        move = -found / _STEEP
        other = x + math.copysign(max(abs(move) * 1.1, reach), 1.0 if found < 0 else -1.0)
        other = min(max(other, least), most)
        value = log_done(other)
        if (value < 0) != (found < 0):
            return (x, other, found, value) if found < 0 else (other, x, value, found)
        if other in (least, most):
            return other, other, value, value
        x, found, reach = other, value, reach * 4


_LEAST = 1e-100
"""What stands for 0 among the arguments of :func:`log_root`."""

_STEPS, _NEAR = 15, 1e-7
"""Steps of :func:`log_root` at the most, and the relative distance from 1 that ends them."""


def log_root(value: Callable[[Floats], Floats], low: Floats, high: Floats, steps: int = _STEPS, near: float = _NEAR) -> Floats:
    """Where falling ``value`` (ratios) passes 1, for every column between ``low`` and ``high`` (both above 0).

    Regula falsi of Illinois on logarithms, in which heights, widths and depths are nearly straight lines, with a halving
    at every third step for the kinks, until every column is within ``near`` of 1 or of its root. Where ``value`` never falls to 1
    ``high`` is returned, where it is below 1 from the start 0.
    """

    def logs(x: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(value(np.exp(x)), 1e-9)))

    left, right = np.log(np.maximum(low, _LEAST)), np.log(np.maximum(high, _LEAST))
    above, below = logs(left), logs(right)
    side, never, always = np.zeros(len(left)), above < 0, below >= 0
    x, settled = left, never | always
    for step in range(steps):
        part = above / np.maximum(above - below, 1e-30) if step % 3 else np.full(len(left), 0.5)
        x = left + (right - left) * np.minimum(np.maximum(part, 0.01), 0.99)
        found = logs(x)
        if bool((settled | (np.abs(found) < near) | (right - left < near)).all()):
            break
        keep = found >= 0
        below = np.where(keep & (side > 0), below / 2, below)
        above = np.where(~keep & (side < 0), above / 2, above)
        left, above = np.where(keep, x, left), np.where(keep, found, above)
        right, below = np.where(keep, right, x), np.where(keep, below, found)
        side = np.where(keep, 1.0, -1.0)
    return np.where(never, 0.0, np.where(always, high, np.exp(x)))
