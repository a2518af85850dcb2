r"""Batch items (or identical GEMMs of one level) with a group of devices each, which cuts its item by strips.

A few items are cut one by one, as any GEMM is. Many items of thousands of devices are alike, and so are their groups: devices
in falling order of ability are dealt out to the items in turns there and back, so that every item has devices of nearly the
same kind at each place. The strips of an item whose devices are the middle ones of each turn are those of all items; the widths
and rows follow each item's own devices, for all items at once (:func:`~cleave_plan.planning.rounding.round_items`). One
strip for each item is the other way, over groups of nearly equal ability in which no device is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.batched import balanced_groups
from cleave_plan.planning.bounds import FREE, capacity, gemm_bound
from cleave_plan.planning.boxes import Boxes, Rectangles, boxes_of_items, turned
from cleave_plan.planning.rounding import round_items, round_strips
from cleave_plan.planning.strips import Groups, group_into_strips
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

APART = 128
"""Up to so many items are cut one by one."""


def shared_by_groups(terms: Terms, devices: DeviceColumns, order: Ints) -> Boxes | None:
    """One group of the devices ``order`` (at least as many as items) for each item; None where no time is enough."""
    own = devices.take(order)
    ability = capacity(terms, own).area(gemm_bound(terms, own, FREE))
    single = replace(terms, items=1)
    if terms.items > APART:
        return _all_at_once(single, devices, order[np.argsort(-ability, kind="stable")], -np.sort(-ability), terms.items)
    found: list[Boxes] = []
    for item, places in enumerate(balanced_groups(ability, terms.items)):
        group = order[places[np.argsort(-ability[places], kind="stable")]]
        best = _best_strips(single, devices, group)
        if best is None:
            return None
        found.append(boxes_of_items(best[1], terms.depth, item, item + 1, turned=best[0]))
    return np.concatenate(found)


def _ways(terms: Terms) -> list[tuple[bool, Terms]]:
    """Strips along the rows, and along the columns where there are several (a chain has one)."""
    return [(False, terms), (True, terms.transposed())][: 1 if terms.columns == 1 else 2]


def _best_strips(terms: Terms, devices: DeviceColumns, order: Ints) -> tuple[bool, Rectangles] | None:
    """The orientation whose strips need the least time for one item."""
    floor_s = gemm_bound(terms, devices.take(order), FREE)
    best: tuple[float, bool, Rectangles] | None = None
    for transposed, own in _ways(terms):
        groups = group_into_strips(own, devices, order, floor_s)
        if groups is not None and (best is None or groups.seconds < best[0]):
            best = (groups.seconds, transposed, round_strips(own, devices, groups))
    return None if best is None else best[1:]


def _all_at_once(terms: Terms, devices: DeviceColumns, order: Ints, ability: Floats, items: int) -> Boxes | None:
    """The better of strips dealt to all items alike and of one strip each; ``order`` and ``ability`` fall."""
    best: tuple[float, Boxes] | None = None
    for transposed, own in _ways(terms):
        for groups, item_of in _groupings(own, devices, order, ability, items):
            seconds, boxes = round_items(own, devices, groups, item_of)
            if best is None or seconds < best[0]:
                best = seconds, turned(boxes) if transposed else boxes
    return None if best is None else best[1]


def _groupings(terms: Terms, devices: DeviceColumns, order: Ints, ability: Floats, items: int) -> Iterator[tuple[Groups, Ints]]:
    """Strips of all items and the item of each."""
    turns = len(order) // items
    place = np.arange(turns * items).reshape(turns, items)
    place[1::2] = place[1::2, ::-1]
    middle = order[place[:, items // 2]]
    floor_s = gemm_bound(terms, devices.take(middle), FREE)
    pattern = group_into_strips(terms, devices, middle, floor_s) if terms.columns > 1 else None
    if pattern is not None and len(pattern.starts) > 1:
        which = np.flatnonzero(np.isin(middle, pattern.devices))  # those that stand in strips, still in falling order
        starts = pattern.starts + len(which) * np.arange(items)[:, None]
        alike = Groups(
            devices=order[place[which].T.ravel()], starts=starts.ravel(), widths=np.tile(pattern.widths, items),
            seconds=pattern.seconds,
        )  # fmt: skip
        yield alike, np.repeat(np.arange(items), len(pattern.starts))
    members = balanced_groups(ability, items)
    sizes = np.array([len(own) for own in members])
    whole = Groups(
        devices=order[np.concatenate(members)], starts=np.cumsum(sizes) - sizes,
        widths=np.full(items, float(terms.columns)), seconds=floor_s if pattern is None else pattern.seconds,
    )  # fmt: skip
    yield whole, np.arange(items)
