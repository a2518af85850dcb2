"""Tilings of a mode that a user pins: plain rows, plain columns, two strips for those who want both sides cut, depth alone.

The search offers what is fast, and a pinned mode may not be among that; these are simple, and always there where devices
can take part at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.batched import balanced_groups
from cleave_plan.planning.bounds import FREE, capacity, gemm_bound
from cleave_plan.planning.boxes import Boxes, boxes_of_items
from cleave_plan.planning.rounding import round_strips
from cleave_plan.planning.strips import Groups
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]


def line_tilings(terms: Terms, devices: DeviceColumns, order: Ints, modes: frozenset[Mode]) -> Iterator[Boxes]:
    """Tilings over all of ``order``'s devices, every batch item cut alike, in each of ``modes``."""
    one = replace(terms, items=1)
    shared = replace(devices, latency=devices.latency / terms.items)  # paid once for the range of items
    floor_s = max(gemm_bound(one, shared.take(order), FREE), 1e-12)
    if Mode.ROW in modes:
        yield boxes_of_items(round_strips(one, shared, _one_line(one, order, floor_s)), terms.depth, 0, terms.items)
    turned = one.transposed()
    if Mode.COLUMN in modes and turned.rows > 0:
        found = round_strips(turned, shared, _one_line(turned, order, floor_s))
        yield boxes_of_items(found, terms.depth, 0, terms.items, turned=True)
    if Mode.TWO_DIMENSIONAL in modes and len(order) > 1 and one.columns > 1:
        found = round_strips(one, shared, _two_strips(one, shared, order, floor_s))
        yield boxes_of_items(found, terms.depth, 0, terms.items)
    if Mode.INNER in modes and not one.whole_depth and one.depth > 1:
        yield _depths(one, shared, order, terms.items)


def _depths(terms: Terms, devices: DeviceColumns, order: Ints, items: int) -> Boxes:
    """The whole plane on every device, depth in proportion to what a unit of it takes; what is left goes where least lies."""
    own = devices.take(order)
    unit_bytes = (terms.rows * terms.row_bytes + terms.columns * terms.col_bytes) / terms.depth
    pace = 1 / np.maximum(unit_bytes / own.downlink, 2.0 * terms.area / own.flop_per_s)
    exact = terms.depth * pace / pace.sum()
    depth = np.floor(exact).astype(np.int64)
    depth[np.argsort(depth - exact, kind="stable")[: terms.depth - int(depth.sum())]] += 1
    stops = np.cumsum(depth)
    plane = np.array([0, terms.rows, 0, terms.columns])
    boxes = np.column_stack(
        [order, np.tile(plane, (len(order), 1)), stops - depth, stops, np.zeros_like(stops), np.full_like(stops, items)]
    )
    return np.asarray(boxes[depth > 0], dtype=np.int64)


def _one_line(terms: Terms, order: Ints, near_s: float) -> Groups:
    """All devices in one strip of the whole width."""
    return Groups(devices=order, starts=np.zeros(1, dtype=np.int64), widths=np.array([float(terms.columns)]), seconds=near_s)


def _two_strips(terms: Terms, devices: DeviceColumns, order: Ints, near_s: float) -> Groups:
    """Two strips of half the width, with devices of about the same ability together in each."""
    ability = capacity(terms, devices.take(order)).area(near_s)
    first, second = balanced_groups(ability, 2)
    return Groups(
        devices=np.concatenate([order[first], order[second]]), starts=np.array([0, len(first)], dtype=np.int64),
        widths=np.full(2, terms.columns / 2), seconds=near_s,
    )  # fmt: skip
