r"""The lower bound of levels that share the devices' memory for what they keep.

Of a level device i holds h_i bytes when it starts (a frozen operand from the batch before, X or W from the forward pass). By a
time T it can do weighted work of at most min(A_i(T) + w_i(T)*h_i, A'_i(T)) (:mod:`cleave_plan.planning.heldwork`), all of the
level's work being 1. So a level that ends by T satisfies

    sum_i min( A_i + w_i*h_i , A'_i ) + servers  >=  1

and another condition for the servers' egress: the work that E*T bytes sent and sum_i h_i bytes held can feed. The least sum
of p_i*h_i that lets a level end by T is a fractional knapsack, N(T), and falls as T grows. Memory ties the levels: what
device i holds for all of them is at most H_i = 0.9*m_i. For any price lambda >= 0

    total  >=  sum_levels min_T ( T + lambda*N(T) )  -  lambda * sum_i p_i*H_i

(weak duality), and the largest of these is the bound. The minimum over T is taken over intervals of a grid, each by the T
where it starts and the N where it ends. A level's part of the bound is the T at which its minimum is reached, scaled so that
the parts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.bounds import Links
from cleave_plan.planning.heldwork import HeldWork

Floats = NDArray[np.float64]

_POINTS = 12
"""Points of a level's first grid over T."""

_PARTS, _SPLITS, _NARROW = 4, 16, 5e-4
"""An interval is split in so many parts, at most so often for one price, until its ends are that near each other."""

_REFINEMENTS = 2
"""Prices that levels are settled at."""

_HALVINGS, _NEARLY = 24, 1e-3
"""Steps of a search for the largest T, which ends when it is as near as this."""

_TINY = 1e-300


@dataclass(kw_only=True)
class TiedLevel:
    """A level class that may find operands held: ``count`` copies of ``work``; ``floor_s``: what it takes whatever is held.

    ``prices`` are p_i, ``grid`` and ``needs`` the T and N(T) known so far.
    """

    work: HeldWork
    links: Links
    count: int
    floor_s: float = 0.0
    prices: Floats = field(default_factory=lambda: np.empty(0))
    grid: Floats = field(default_factory=lambda: np.empty(0))
    needs: Floats = field(default_factory=lambda: np.empty(0))

    def start(self, prices: Floats) -> None:
        """A first grid, from where even held operands do not help to where nothing need be held; one point if they are one."""
        self.prices = prices
        top = self.work.top_s
        if self._impossible(top):
            self.grid, self.needs = np.array([top, top]), np.zeros(2)
            return
        low = _last(self._impossible, 0.0, top)
        low = min(max(low, self.floor_s, 1e-12 * top), top)
        self.grid = np.geomspace(low, top, _POINTS)
        self.needs = np.array([self._need(T) for T in self.grid[:-1]] + [0.0])

    def best(self, price: float) -> tuple[float, int]:
        """min T + price*N(T), and the interval in which it lies."""
        possible = np.isfinite(self.needs[1:])  # an interval whose end is impossible is impossible
        values = np.where(possible, self.grid[:-1] + price * np.where(possible, self.needs[1:], 0.0), np.inf)
        place = int(values.argmin())
        return float(min(values[place], self.grid[-1])), place

    def settle(self, price: float) -> None:
        """Points in the interval where the minimum lies, until that is narrow: others may take over meanwhile."""
        for _ in range(_SPLITS):
            place = self.best(price)[1]
            if self.grid[place + 1] <= self.grid[place] * (1 + _NARROW):
                return
            self._split(place)

    def _split(self, place: int) -> None:
        """More points in interval ``place``."""
        inside = np.geomspace(self.grid[place], self.grid[place + 1], _PARTS + 1)[1:-1]
        self.grid = np.insert(self.grid, place + 1, inside)
        self.needs = np.insert(self.needs, place + 1, [self._need(T) for T in inside])

    def _impossible(self, T: float) -> bool:
        """Can the level not end by T, even when everything that may be held is held?"""
        left = 1 - self.work.served(T)
        return float(self.work.most(T).sum()) < left or left * self.work.out_bytes > self.links.ingress * T

    def _need(self, T: float) -> float:
        """N(T)."""
        short = 1 - self.work.served(T)
        alone, slope = self.work.alone(T), self.work.slopes(T)
        gain = np.minimum(np.maximum(self.work.most(T) - alone, 0.0), slope * self.work.room)
        need = _cheapest(short - float(alone.sum()), gain, slope, self.prices)
        if np.isinf(self.links.egress):
            return need
        held = _bytes_for(alone + gain, self.work.efficiency(T), short) - self.links.egress * T
        return max(need, held * float(self.prices.min()))


def coupled_bound(levels: Sequence[TiedLevel]) -> list[float]:
    """Each level's part (one copy) of the bound of all ``levels``; count-weighted they add up to a proven lower bound."""
    slopes = [level.work.slopes(level.work.top_s) for level in levels]
    prices = np.mean([slope / max(float(slope.max()), _TINY) for slope in slopes], axis=0)
    prices = np.maximum(prices, 1e-6 * max(float(prices.max()), _TINY))
    for level in levels:
        level.start(prices)
    budget = float((prices * levels[0].work.memory).sum())
    price = 0.0
    for _ in range(_REFINEMENTS):
        price = _best_price(levels, budget)
        for level in levels:
            level.settle(price)
    price = _best_price(levels, budget)
    total = _dual(levels, budget, price)
    reached = [float(level.grid[level.best(price)[1]]) for level in levels]
    summed = sum(level.count * T for level, T in zip(levels, reached, strict=True))
    return [T * total / max(summed, _TINY) for T in reached]


def _dual(levels: Sequence[TiedLevel], budget: float, price: float) -> float:
    return sum(level.count * level.best(price)[0] for level in levels) - price * budget


def _best_price(levels: Sequence[TiedLevel], budget: float) -> float:
    """The lambda with the largest dual value: it is concave in lambda."""
    if budget <= 0:
        return 0.0
    high = sum(level.count * level.work.top_s for level in levels) / budget
    low, floor = 0.0, _dual(levels, budget, 0.0)
    step = high
    while step > 1e-9 * high and _dual(levels, budget, step / 4) > _dual(levels, budget, step):
        step /= 4
    high = min(high, 4 * step)
    for _ in range(60):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if _dual(levels, budget, left) < _dual(levels, budget, right):
            low = left
        else:
            high = right
    price = (low + high) / 2
    return price if _dual(levels, budget, price) > floor else 0.0


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Nearly the largest T under ``high`` at which ``holds`` is still true, as it is at ``low``."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2 if 4 * low >= high else high / 4
        low, high = (middle, high) if holds(middle) else (low, middle)
        if high - low < _NEARLY * high:
            break
    return low


def _cheapest(short: float, gain: Floats, slope: Floats, prices: Floats) -> float:
    """Least sum of prices*h with sum of slope*h >= short, slope*h <= gain; infinite when that is not possible."""
    if short <= 0:
        return 0.0
    order = np.argsort(prices / np.maximum(slope, _TINY), kind="stable")
    own, each = gain[order], (prices / np.maximum(slope, _TINY))[order]
    filled = np.cumsum(own)
    if filled[-1] < short:
        return float("inf")
    last = int(np.searchsorted(filled, short))
    before = float(filled[last - 1]) if last else 0.0
    return float((own[:last] * each[:last]).sum() + (short - before) * each[last])


def _bytes_for(work: Floats, efficiency: Floats, size: float) -> float:
    """Operand bytes without which ``size`` cannot be done, each device doing at most ``work`` of it."""
    if size <= 0:
        return 0.0
    order = np.argsort(-efficiency, kind="stable")
    own, each = work[order], 1 / np.maximum(efficiency[order], _TINY)
    filled = np.cumsum(own)
    last = min(int(np.searchsorted(filled, size)), len(own) - 1)
    before = float(filled[last - 1]) if last else 0.0
    return float((own[:last] * each[:last]).sum() + (size - before) * each[last])
