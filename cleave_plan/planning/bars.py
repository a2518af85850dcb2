r"""Tilings with inner splits: groups of devices share a footprint of the plane by splitting its depth (a bar).

At a trial time T devices are grouped (:mod:`cleave_plan.planning.groups`) and the groups laid out in strips
(:mod:`cleave_plan.planning.barlayout`); the layout tells the shape of its footprints, with which the devices are grouped
again. T follows what the strips cover, and the best arrangement found is fitted and rounded
(:mod:`cleave_plan.planning.bararrangement`). A group of one is an ordinary two-dimensional tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bararrangement import Arrangement, VolumeBox, boxes_of, fitted
from cleave_plan.planning.barlayout import Strips, best_strips
from cleave_plan.planning.batched import balanced_groups
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.groups import SQUARE, Abilities, abilities, filled, improved, members
from cleave_plan.planning.terms import Terms
from cleave_plan.planning.volume import volume_bound, volume_capacity

Ints = NDArray[np.int64]

SEED = 20240613
"""Where all drawing starts; the same devices give the same tiling."""

_FREE = Links(egress=np.inf, ingress=np.inf, flop_per_s=0.0)

_ABOVE = 1.015
"""The first trial time over the volume bound."""

_TRIALS, _ROUNDS = 5, 2
"""Trial times, and groupings with the shape that the layout before them had."""


def bar_tilings(terms: Terms, devices: DeviceColumns, order: Ints, *, budget_s: float = 0.0) -> Iterator[list[VolumeBox]]:
    """Candidates for all items of ``terms`` over the devices ``order`` (indices into ``devices``), inner axis cut.

    Boxes cover items x M x N x K exactly. Nothing is yielded for convolutions (their operands are regions that overlap)
    nor for more batch items than devices. ``budget_s``: seconds of further search for a better tiling.
    """
    if terms.halo_bytes > 0 or terms.items > len(order) or terms.depth * terms.area == 0:
        return
    if terms.items == 1:
        yield from _one_item(terms, devices, order, 0, budget_s)
        return
    single = replace(terms, items=1)
    boxes: list[VolumeBox] = []
    own = devices.take(order)
    ability = volume_capacity(terms, own).volume(volume_bound(terms, own, _FREE))
    for item, places in enumerate(balanced_groups(ability, terms.items)):
        found = next(_one_item(single, devices, order[places], item, budget_s / terms.items), None)
        if found is None:
            return
        boxes += found
    yield boxes


def _one_item(terms: Terms, devices: DeviceColumns, order: Ints, item: int, budget_s: float) -> Iterator[list[VolumeBox]]:
    own = devices.take(order)
    found = _grouped(terms, own, volume_bound(terms, own, _FREE))
    if found is None:
        return
    place, seconds = found
    fit = fitted(terms, own, place, seconds)
    if fit is not None:
        yield [(int(order[box[0]]), *box[1:]) for box in boxes_of(terms, own, place, fit, item)]


def _grouped(terms: Terms, devices: DeviceColumns, floor_s: float) -> tuple[Arrangement, float] | None:
    """One slab: the arrangement of the least trial time that covered the plane (or nearly did), and that time."""
    T, best = floor_s * _ABOVE, None
    group = None
    for trial in range(_TRIALS):
        able = abilities(terms, devices, T)
        share, place, group = _trial(terms, able, group, SEED + trial)
        expected = T * share ** (-0.6)
        if best is None or expected < best[1]:
            best = (place, expected)
        if abs(share - 1) < 3e-4:
            break
        T = expected
    return best


def _trial(terms: Terms, able: Abilities, group: Ints | None, seed: int) -> tuple[float, Arrangement, Ints]:
    """Group, lay out, group again with the layout's shape; the arrangement that covered most."""
    eta, found = SQUARE, []
    betas = (8.0, np.inf) if group is None else (np.inf,)
    if group is None:
        group, _ = filled(able)
    for _ in range(_ROUNDS):
        group = improved(able, group, eta, betas, 10, seed)
        labels, group = np.unique(group, return_inverse=True)
        now = members(able, group, len(labels))
        strips = best_strips(terms, now.operand / able.depth, now.limit(able))
        found.append((strips.share, _arranged(group, strips), group))
        eta = strips.slack(now.operand / able.depth, now.limit(able))
    return max(found, key=lambda trial: trial[0])


def _arranged(group: Ints, strips: Strips) -> Arrangement:
    rank = np.empty(len(strips.order), dtype=np.int64)
    rank[strips.order] = np.arange(len(strips.order))
    place = rank[group]
    devices = np.argsort(place, kind="stable")
    bars = np.searchsorted(place[devices], np.arange(len(rank)))
    return Arrangement(
        devices=devices,
        bars=bars,
        strips=strips.starts,
        slabs=np.zeros(1, dtype=np.int64),
        transposed=np.array([strips.plane.transposed]),
    )
