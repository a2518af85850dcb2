"""What devices can do of a GEMM by a time T, counted in elements of C, or in multiply-adds where K may be cut.

One value for both ways of counting, so that the bound of a level, and the groups that share it, need not know which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bounds import Links, capacity, gemm_bound
from cleave_plan.planning.sums import Ways
from cleave_plan.planning.terms import Terms
from cleave_plan.planning.volume import volume_bound, volume_capacity

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """``size`` units of work (all items); FLOP and least result bytes of a unit; ``amount(T)``: units that each device can
    do by T, ``efficiency(T)``: at most so many of them for an operand byte, ``ways(T)``: the same by what is left to add."""

    size: float
    flop: float
    out_bytes: float
    amount: Callable[[float], Floats]
    efficiency: Callable[[float], Floats]
    ways: Callable[[float], Ways]


def cuts_depth(terms: Terms, inner: bool) -> bool:
    """May tilings of this GEMM cut K?"""
    return inner and not terms.whole_depth and terms.depth > 1


def ability_of(terms: Terms, devices: DeviceColumns, *, inner: bool) -> Ability:
    """The ability of ``devices`` for ``terms``; ``inner``: K may be cut."""
    if cuts_depth(terms, inner):
        volume = volume_capacity(terms, devices)
        return Ability(
            size=float(terms.items) * terms.area * terms.depth, flop=2.0, amount=volume.volume, efficiency=volume.efficiency,
            ways=volume.ways, out_bytes=min(terms.out_bytes, terms.accumulator_bytes) / terms.depth,
        )  # fmt: skip
    plane = capacity(terms, devices)
    return Ability(
        size=float(terms.items) * terms.bound_rows * terms.columns, flop=terms.flop, amount=plane.area,
        efficiency=plane.efficiency, ways=lambda T: Ways.whole_only(plane.area(T)), out_bytes=terms.out_bytes,
    )  # fmt: skip


def bound_of(terms: Terms, devices: DeviceColumns, links: Links, *, inner: bool) -> float:
    """Seconds that the GEMM takes at least, by ideal cost; ``inner``: K may be cut."""
    return volume_bound(terms, devices, links) if cuts_depth(terms, inner) else gemm_bound(terms, devices, links)


def capped(ability: Ability, time_s: Floats, amount: Floats) -> Ability:
    """``ability`` of devices that are busy for ``time_s`` at the most and do no more than ``amount`` units (inf: no cap).

    A device that works for less than T does what it can do by then: shares of its time cover shares of that, as without caps.
    """

    def within(T: float) -> Floats:
        found = ability.amount(T)
        for cap in np.unique(time_s[time_s < T]).tolist():
            found = np.where(time_s == cap, ability.amount(cap), found)
        return np.minimum(found, amount)

    return replace(ability, amount=within)
