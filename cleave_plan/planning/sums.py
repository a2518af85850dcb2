r"""Partial sums: what the servers can add by T limits all devices together, and says how large their footprints may be.

Where K is cut each result element of each piece is a partial sum, and adding one takes 12 bytes of a server's memory
traffic: of A*T sums by T. A device that works t seconds, cut along K, with c sums makes at most (Loomis and Whitney, as in
:mod:`cleave_plan.planning.volume`; sigma = t*d/(2*sqrt(ab)), V_cut and U its limits there)

    V(t, c) = min( sigma*sqrt(c) , V_cut(t) )           c <= U

For any price mu >= 0 of a sum, in multiply-adds, no plan does more by T than

    sum_i max( K*a_i(t_i) ,  max_c V(t_i, c) - mu*c )  +  mu*A*T  +  F_s*T/2

The inner maximum is at c = min(U, (sigma/2mu)^2, (V_cut/sigma)^2). V(s*t, s*c) >= s*V(t, c) for s >= 1, so that over t the
priced term never falls, and tiles of both kinds, or of several GEMMs of a level (each counted p_g/size_g, sum p = 1), are
worth no more than the best of them for the whole time. Every mu gives a bound, the best adds up to A*T sums.

The same c, with the mu at which the devices of a fleet make A*T sums, is the footprint that each should have:
fast downlinks go deep, slow ones keep to small footprints (:func:`footprints`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOLERANCE = 1e-4
"""Of times that are limited by what servers add, relative."""

_STEPS = 18
"""Prices that are tried at one T."""

_LEAST = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """What devices can do of a GEMM by some T, columns over devices: ``whole`` units of work that leave no sums, ``cut`` units
    that leave some, at most ``root`` times the root of their number, which is at most ``results``."""

    whole: Floats
    cut: Floats
    root: Floats
    results: Floats

    @classmethod
    def whole_only(cls, amount: Floats) -> Ways:
        """The ways of a GEMM whose K is never cut."""
        none = np.zeros_like(amount)
        return cls(whole=amount, cut=none, root=none, results=none)

    def priced(self, weight: float, price: float) -> tuple[Floats, Floats]:
        """What each device's work is worth at most, a unit being worth ``weight`` and a sum costing ``price``, and its sums."""
        most = np.minimum(self.results, (self.cut / np.maximum(self.root, _LEAST)) ** 2)
        sums = np.minimum(most, (weight * self.root / (2 * price)) ** 2) if price > 0 else most
        cut = weight * np.minimum(self.root * np.sqrt(sums), self.cut) - price * sums
        whole = weight * self.whole
        return np.maximum(whole, cut), np.where(cut > whole, sums, 0.0)


def most_done(ways: Sequence[Ways], weights: Floats, budget: float) -> float:
    """An upper bound of what devices do of a level's GEMMs, a unit of GEMM g being worth ``weights[g]``, with ``budget`` sums."""

    def at(price: float) -> tuple[float, float]:
        priced = np.array([way.priced(float(weight), price) for way, weight in zip(ways, weights, strict=True)])
        worth, sums = priced[:, 0], priced[:, 1]
        best = worth.argmax(axis=0)[None]
        return float(np.take_along_axis(worth, best, 0).sum()), float(np.take_along_axis(sums, best, 0).sum())

    least, sums = at(0.0)
    if sums <= budget:
        return least
    roots = max(float((weight * way.root).max()) for way, weight in zip(ways, weights, strict=True))
    price = roots / (2 * np.sqrt(max(budget, 1.0) / len(ways[0].root)))
    low, high = np.log(price) - 12.0, np.log(price) + 3.0
    for _ in range(_STEPS):
        price = float(np.exp((low + high) / 2))
        worth, sums = at(price)
        least = min(least, worth + price * budget)
        low, high = (low, (low + high) / 2) if sums <= budget else ((low + high) / 2, high)
    return least


def footprints(root: Floats, most: Floats, budget: float) -> Floats:
    """Sums of each device, at most ``most``, that add up to ``budget`` and make the most volume: as many for the root of each."""
    if float(most.sum()) <= budget:
        return most
    low, high = -60.0, 60.0
    mean = budget / max(float((root**2).sum()), _LEAST)
    for _ in range(2 * _STEPS):
        middle = (low + high) / 2
        enough = float(np.minimum(most, mean * np.exp(middle) * root**2).sum()) >= budget
        low, high = (low, middle) if enough else (middle, high)
    return np.asarray(np.minimum(most, mean * np.exp(high) * root**2))
