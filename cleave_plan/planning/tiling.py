"""Candidate tilings of one GEMM (or of identical GEMMs of one level) over given devices, as integer tiles.

Modes: ``row`` and ``column`` cut one side only (each device has whole rows or whole columns), ``two-dimensional`` cuts
both. Every candidate covers every element exactly once; which is best is for the pricing to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.batched import share_items
from cleave_plan.planning.bounds import FREE, gemm_bound
from cleave_plan.planning.boxes import Boxes, Rectangles, boxes_of_items, turned
from cleave_plan.planning.clusters import clustered
from cleave_plan.planning.itemgroups import shared_by_groups
from cleave_plan.planning.rounding import round_strips
from cleave_plan.planning.slicing import MOST, slicing_tilings
from cleave_plan.planning.slicing_item import makespan
from cleave_plan.planning.strips import Groups, group_into_strips
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]

SMALL_FLEET = 64
"""Up to this many devices plain rows and columns are offered apart (strips include them; more devices want squares)."""

_SEARCHED = 1500
"""Up to this many devices tilings by nested cuts are looked for where strips are not near the bound."""

_ABOUT_AS_GOOD = 1.02
"""Strips along the other side are rounded too, in small fleets, when their trial time is within this ratio."""

_IN_TURN, _GROUPS, _WHOLE_ITEMS = 16, 2, 4
"""Devices per batch item: below the first all devices may cut every item alike, from the second on groups of devices
take one item each, below the third devices may take whole items."""


def tilings(terms: Terms, devices: DeviceColumns, order: Ints, *, enough_s: float = 0.0) -> Iterator[Boxes]:
    """Candidates for all items of ``terms`` over the devices ``order`` (indices into ``devices``).

    ``enough_s``: what the part takes anyway, for the servers' links; the long search of a large fleet's nested cuts is for
    tilings above it.
    """
    if terms.items == 1:
        for transposed, found in _one_item(terms, devices, order, enough_s):
            yield boxes_of_items(found, terms.depth, 0, 1, turned=transposed)
        return
    per_item = len(order) / terms.items
    if per_item < _IN_TURN:
        one, shown = replace(terms, items=1), _with_latency_shared(devices, terms.items)
        for transposed, found in _one_item(one, shown, order, np.inf):
            yield boxes_of_items(found, terms.depth, 0, terms.items, turned=transposed)
    if per_item >= _GROUPS:
        grouped = shared_by_groups(terms, devices, order)
        if grouped is not None:
            yield grouped
    if per_item < _WHOLE_ITEMS:
        floor_s = gemm_bound(terms, devices.take(order), FREE)
        for transposed, own in ((False, terms), (True, terms.transposed())):
            shared = share_items(own, devices, order, floor_s)
            if shared is not None:
                yield turned(shared) if transposed else shared


def _one_item(terms: Terms, devices: DeviceColumns, order: Ints, enough_s: float) -> Iterator[tuple[bool, Rectangles]]:
    """Strips both ways, where they are about as good; for fleets of up to ``SMALL_FLEET`` plain rows and columns too, and
    for up to ``MOST`` devices, or ``_SEARCHED`` above ``enough_s`` seconds, nested cuts where these are better."""
    floor_s = gemm_bound(terms, devices.take(order), FREE)
    ways = [(transposed, terms.transposed() if transposed else terms) for transposed in (False, True)]
    found = [group_into_strips(own, devices, order, floor_s) for _, own in ways]
    best = min((groups.seconds for groups in found if groups is not None), default=np.inf)
    searched, beat_s = 1 < len(order) <= _SEARCHED, np.inf
    for (transposed, own), groups in zip(ways, found, strict=True):
        made = []
        if groups is not None and groups.seconds <= best * _ABOUT_AS_GOOD:
            made.append(round_strips(own, devices, groups))
        if len(order) <= SMALL_FLEET:
            made.append(round_strips(own, devices, _one_line(own, order, max(best, floor_s))))
        for boxes in made:
            beat_s = min(beat_s, makespan(own, devices, boxes)) if searched else beat_s
            yield transposed, boxes
    if searched:
        nested = (
            slicing_tilings(terms, devices, order, beat_s, floor_s) if len(order) <= MOST
            else clustered(terms, devices, order, beat_s, max(floor_s, enough_s))
        )  # fmt: skip
        if nested is not None:
            yield False, nested


def _one_line(terms: Terms, order: Ints, near_s: float) -> Groups:
    """All devices in one strip of the whole width."""
    return Groups(devices=order, starts=np.zeros(1, dtype=np.int64), widths=np.array([float(terms.columns)]), seconds=near_s)


def _with_latency_shared(devices: DeviceColumns, items: int) -> DeviceColumns:
    """Figures for one item of a tile that holds all of them: its latency is paid once for the whole range."""
    return replace(devices, latency=devices.latency / items)
