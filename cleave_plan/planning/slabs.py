r"""Slabs of the inner axis: where few footprints fit the plane, devices with unlike uplinks work at different depths.

With M*N/mean p below about a dozen footprints neither their shapes nor the spread of p inside a group can be good in one
layout. So K is cut in slabs, each done by an interval of the devices in order of p and laid out by itself: the depth that an
interval reaches by T is found by grouping and laying out with ever better guesses of it (the groups depend on it), and which
intervals reach most together is a dynamic programme that keeps the best few answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.bararrangement import Arrangement
from cleave_plan.planning.barlayout import Strips, best_strips
from cleave_plan.planning.groups import SQUARE, Abilities, members, started
from cleave_plan.planning.regroup import improved
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]

LEAST_SHARE = 0.1
"""An interval of devices with less than this share of all operand bytes makes no slab."""

_GUESSES, _SWEEPS, _NEAR, _FEASIBLE = 3, 6, 2e-3, 0.995
"""Guesses of a slab's depth, sweeps for each, how near to 1 a cover is near enough, and the least that makes a slab."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slab:
    """``devices`` (indices) with the labels of their groups (0, 1, ...), laid out in ``strips``; about ``depth`` deep."""

    depth: float
    devices: Ints
    group: Ints
    strips: Strips


def slab_of(terms: Terms, able: Abilities, devices: Ints, seed: int) -> Slab | None:
    """The deepest slab found for ``devices`` (indices into ``able``); None where they never cover the plane."""
    own = able.take(devices)
    volume = float((own.operand * np.sqrt(own.cut)).sum()) / (2 * own.side)
    depth, eta, best = 0.97 * volume / terms.area, SQUARE, None
    group: Ints | None = None
    for guess in range(_GUESSES):
        if depth <= 0:
            break
        own = replace(own, depth=depth)
        smooth = group is None
        group = improved(own, started(own, eta) if group is None else group, eta, _SWEEPS, seed + guess, smooth=smooth)
        group = np.unique(group, return_inverse=True)[1].astype(np.int64)
        now = members(own, group, int(group.max()) + 1)
        budget, limit = now.operand / depth, now.limit(own)
        strips = best_strips(terms, budget, limit)
        reached = depth * (strips.share if strips.share < 1 else min(strips.share, 1.2) ** 0.7)
        if best is None or reached > best.depth:
            best = Slab(depth=reached, devices=devices, group=group, strips=strips)
        if abs(strips.share - 1) < _NEAR or strips.share < 0.3:
            break
        depth, eta = reached, strips.slack(budget, limit)
    return best if best is not None and best.strips.share >= _FEASIBLE else None


def partitions(terms: Terms, able: Abilities, places: Ints, keep: int, seed: int) -> list[Arrangement]:
    """The ``keep`` deepest stacks of slabs, deepest first; intervals of devices in order of p end at ``places``."""
    order = np.argsort(-able.cut, kind="stable")
    ends = np.unique(np.concatenate([[0], places, [len(order)]]))
    least = LEAST_SHARE * float(able.operand.sum())
    best: list[list[tuple[float, tuple[Slab, ...]]]] = [[(0.0, ())]]
    for stop in range(1, len(ends)):
        stacks: list[tuple[float, tuple[Slab, ...]]] = []
        for start in range(stop):
            mine = order[ends[start] : ends[stop]]
            if not best[start] or float(able.operand[mine].sum()) < least:
                continue
            slab = slab_of(terms, able, mine, seed)
            if slab is not None:
                stacks += [(depth + slab.depth, (*stack, slab)) for depth, stack in best[start]]
        stacks.sort(key=lambda stack: -stack[0])
        best.append(stacks[:keep])
    return [arranged(stack) for _, stack in best[-1]]


def even_places(able: Abilities, count: int, shift: float = 0.0) -> Ints:
    """Places that cut the devices, in order of p, in ``count`` intervals of about equal operand bytes times root of p."""
    order = np.argsort(-able.cut, kind="stable")
    reached = np.cumsum((able.operand * np.sqrt(able.cut))[order])
    marks = (np.arange(1, count + (shift > 0)) - shift) / count
    return np.asarray(np.searchsorted(reached, marks * reached[-1]) + 1, dtype=np.int64)


def arranged(slabs: Sequence[Slab]) -> Arrangement:
    """The slabs on top of each other, as one arrangement."""
    devices, bars, strips, starts = [], [], [], []
    device_count = bar_count = strip_count = 0
    for slab in slabs:
        rank = np.empty(len(slab.strips.order), dtype=np.int64)
        rank[slab.strips.order] = np.arange(len(rank))
        bar = rank[slab.group]
        order = np.argsort(bar, kind="stable")
        devices.append(slab.devices[order])
        bars.append(device_count + np.searchsorted(bar[order], np.arange(len(rank))))
        strips.append(bar_count + slab.strips.starts)
        starts.append(strip_count)
        device_count, bar_count, strip_count = device_count + len(bar), bar_count + len(rank), strip_count + len(strips[-1])
    return Arrangement(
        devices=np.concatenate(devices), bars=np.concatenate(bars), strips=np.concatenate(strips),
        slabs=np.array(starts, dtype=np.int64), transposed=np.array([slab.strips.plane.transposed for slab in slabs]),
    )  # fmt: skip
