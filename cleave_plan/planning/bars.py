r"""Tilings with inner splits: groups of devices share a footprint of the plane by splitting its depth (a bar).

At a trial time T devices are grouped (:mod:`cleave_plan.planning.groups`) and the groups laid out in strips
(:mod:`cleave_plan.planning.barlayout`); the layout tells the shape of its footprints, with which the devices are grouped
again. T follows what the strips cover. Where few footprints fit the plane, several slabs of the inner axis are tried too
(:mod:`cleave_plan.planning.slabs`). The arrangement with the least time is rounded
(:mod:`cleave_plan.planning.bararrangement`); with a budget it is searched on first
(:mod:`cleave_plan.planning.barsearch`). A group of one is an ordinary two-dimensional tile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bands import HUGE
from cleave_plan.planning.bararrangement import Arrangement, Fit, boxes_of, fitted
from cleave_plan.planning.barlayout import best_strips
from cleave_plan.planning.barsearch import refined
from cleave_plan.planning.batched import balanced_groups
from cleave_plan.planning.bounds import FREE
from cleave_plan.planning.boxes import Boxes
from cleave_plan.planning.groups import SQUARE, Abilities, abilities, members, started
from cleave_plan.planning.regroup import improved
from cleave_plan.planning.slabs import Slab, arranged, even_places, partitions
from cleave_plan.planning.strips import LARGE
from cleave_plan.planning.terms import Terms
from cleave_plan.planning.volume import volume_bound, volume_capacity

Ints = NDArray[np.int64]

SEED = 20240613
"""Where all drawing starts; the same devices give the same tiling."""

FEW = 16.0
"""Slabs are tried where fewer mean footprints than this fill the plane."""

_ABOVE, _ABOVE_SLABS = 1.015, 1.03
"""The first trial time over the volume bound, with one slab and with several."""

_TRIALS, _ROUNDS, _LIKE = 6, 2, 0.03
"""Trial times, groupings with the shape that the layout before them had, and how near to 1 a cover must be for the groups
of one trial to start the next."""

_ALIKE = 0.02
"""Large fleets are not grouped again for a shape that differs by less (of (h + w)/sqrt(hw), 2 for squares)."""

_NEAR, _NEAR_HUGE = 2e-3, 1e-2
"""A cover so near to 1 (in huge fleets the second) ends the trials: the arrangement's own time is found exactly afterwards."""

_STRETCH, _STRETCHES = 1.15, 24
"""How a time is stretched whose groups cannot cover the plane, and how often."""

_KEPT = 4
"""Stacks of slabs whose times are found exactly (three times as many in a longer search)."""

_PLACES, _CLOSER = (10, 14, 18, 22, 26), 0.99
"""Intervals of devices in the turns of a longer search, and the time for which slabs are then made, of the best known."""

_POOL, _STEPS = 3, 500
"""Arrangements that are annealed in turn, and the steps of one turn."""

_WORTH = 1.01
"""An arrangement is dropped when its time is over this much of another's."""

Found = tuple[Arrangement, Fit]


def bar_tilings(terms: Terms, devices: DeviceColumns, order: Ints, *, budget_s: float = 0.0) -> Iterator[Boxes]:
    """Candidates for all items of ``terms`` over the devices ``order`` (indices into ``devices``), inner axis cut.

    Boxes cover items x M x N x K exactly. Nothing is yielded for convolutions (their operands are regions that overlap)
    nor for more batch items than devices, nor where memory is so small that one footprint for each device never covers the
    plane (tiles in passes do: :mod:`cleave_plan.planning.heights`). ``budget_s``: seconds of processor time for further
    search; without it the answer is the same on every machine.
    """
    if terms.halo_bytes > 0 or terms.items > len(order) or terms.items * terms.depth * terms.area == 0:
        return
    own = devices.take(order)
    single = replace(terms, items=1)
    ability = volume_capacity(single, own).volume(volume_bound(terms, own, FREE))
    made = []
    for item, places in enumerate(balanced_groups(ability, terms.items)):
        found = _one_item(single, own.take(places), budget_s / terms.items)
        if found is None:
            return
        boxes = boxes_of(single, own.take(places), *found)
        boxes[:, 0], boxes[:, 7:] = order[places[boxes[:, 0]]], boxes[:, 7:] + item
        made.append(boxes)
    yield np.concatenate(made)


def _one_item(terms: Terms, devices: DeviceColumns, budget_s: float) -> Found | None:
    """The arrangement of least time that was found for one item."""
    deadline = time.thread_time() + budget_s
    floor_s = volume_bound(terms, devices, FREE)
    pool = _one_slab(terms, devices, floor_s * _ABOVE)
    footprints = terms.area / max(float(abilities(terms, devices, floor_s).cut.mean()), 1e-300)
    few = footprints < FEW and len(devices) > 1 and terms.depth > 1
    if few:
        T = min([floor_s * _ABOVE_SLABS, *(fit.seconds for _, fit in pool)])
        able = abilities(terms, devices, T, terms.depth / 2)
        count = 8 if len(devices) <= 128 else 6
        pool += _fits(terms, devices, partitions(terms, able, even_places(able, count), _KEPT, SEED), T)
    if pool and budget_s > 0:
        pool = _searched(terms, devices, pool, few, deadline)
    return min(pool, key=_seconds, default=None)


def _searched(terms: Terms, devices: DeviceColumns, pool: list[Found], few: bool, deadline: float) -> list[Found]:
    """Ever finer stacks of slabs and annealing, in turns, until the ``deadline``."""
    turn = 0
    while time.thread_time() < deadline:
        if few and turn < len(_PLACES):
            T = min(map(_seconds, pool)) * _CLOSER
            able = abilities(terms, devices, T, terms.depth / 2)
            stacks = partitions(terms, able, even_places(able, _PLACES[turn]), 3 * _KEPT, SEED)
            pool += _fits(terms, devices, stacks, T)
        pool = sorted(pool, key=_seconds)[:_POOL]
        place, fit = pool[turn % min(_POOL, len(pool))]
        pool += _fits(terms, devices, [refined(terms, devices, place, fit, _STEPS, deadline, SEED + turn)], fit.seconds)
        turn += 1
    return pool


def _seconds(found: Found) -> float:
    return found[1].seconds


def _fits(terms: Terms, devices: DeviceColumns, places: Sequence[Arrangement], near_s: float) -> list[Found]:
    """Those of ``places`` that can be done and are nearly as good as the best before them, with their sizes."""
    found: list[Found] = []
    for place in places:
        limit_s = min(map(_seconds, found), default=np.inf) * _WORTH
        fit = fitted(terms, devices, place, near_s, limit_s)
        if fit is not None:
            found.append((place, fit))
    return found


def _one_slab(terms: Terms, devices: DeviceColumns, T: float) -> list[Found]:
    """Groups and strips over the whole depth; none when they never cover the plane.

    Where the memory limits footprints, groups made for too short a time cover it at no time: it is stretched then."""
    for _ in range(_STRETCHES):
        found = _fits(terms, devices, [_grouped(terms, devices, T, SEED)], T)
        if found:
            return found
        T *= _STRETCH
    return []


def _grouped(terms: Terms, devices: DeviceColumns, T: float, seed: int) -> Arrangement:
    """One slab of whole depth: that of the trial time which covered the plane best for its length."""
    found: list[tuple[float, Slab]] = []
    group: Ints | None = None
    for trial in range(_TRIALS):
        slab = _trial(terms, abilities(terms, devices, T), group, seed + trial)
        share = slab.strips.share
        group = slab.group if abs(share - 1) < _LIKE else None  # at an unlike time another number of groups is right
        T *= float(np.clip(share, 0.1, 10.0)) ** -0.6
        found.append((T, slab))
        if abs(share - 1) < (_NEAR if len(devices) < HUGE else _NEAR_HUGE):
            break
    return arranged([min(found, key=lambda trial: trial[0])[1]])


def _trial(terms: Terms, able: Abilities, group: Ints | None, seed: int) -> Slab:
    """Group, lay out, group again with the layout's shape; what covered most. ``group``: labels to start from."""
    eta = SQUARE
    found: list[Slab] = []
    smooth = group is None
    for _ in range(_ROUNDS):
        group = improved(able, started(able, eta) if group is None else group, eta, 10, seed, smooth=smooth)
        group = np.unique(group, return_inverse=True)[1].astype(np.int64)
        now = members(able, group, int(group.max()) + 1)
        budget, limit = now.operand / able.depth, now.limit(able)
        strips = best_strips(terms, budget, limit)
        found.append(Slab(depth=able.depth, devices=np.arange(len(able)), group=group, strips=strips))
        before, eta = eta, strips.slack(budget, limit)
        if len(able) >= LARGE and abs(eta - before) < _ALIKE:
            break
    return max(found, key=lambda slab: slab.strips.share)
