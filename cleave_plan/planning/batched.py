r"""Tilings of several batch items (or identical GEMMs of one level): whole items first, then cut ones.

At a trial time T device i finishes n_i(T) = floor((T - l)/tau_i) whole items, tau_i = the largest of their download,
arithmetic and upload seconds, in one tile with a range of items (one latency). What is left of its time, if any, goes
to rows of one further item. Items that are not taken whole are filled with such rows, tallest first, each item closed
as soon as its rows are covered. T is bisected.

When items are few, groups of devices that are equally able take one item each and cut it in two dimensions
(:func:`balanced_groups`): with downlink-bound tiles G equal GEMMs then take sqrt(G) times one of them, not G times.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.boxes import Boxes, before_in_run
from cleave_plan.planning.heights import area_rate, heights
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_PRECISION = 1e-9
"""Of the time of items that are shared out, relative."""


def balanced_groups(ability: Floats, count: int) -> list[Ints]:
    """Devices in ``count`` groups of nearly equal summed ability (largest first to the poorest group), each sorted."""
    heap = [(0.0, 0, group) for group in range(count)]  # of equally poor groups the one with fewer devices is served first
    members: list[list[int]] = [[] for _ in range(count)]
    for device in np.argsort(-ability, kind="stable").tolist():
        total, size, group = heapq.heappop(heap)
        members[group].append(device)
        heapq.heappush(heap, (total + float(ability[device]), size + 1, group))
    return [np.array(sorted(group), dtype=np.int64) for group in members]


def share_items(terms: Terms, devices: DeviceColumns, order: Ints, floor_s: float) -> Boxes | None:
    """All items over the devices ``order``: whole items, and rows of the rest, at the least T found above ``floor_s``; None where
    no time is enough."""
    own = devices.take(order)
    low, high = floor_s, floor_s * 1.05
    while not _fits(terms, own, high):
        low, high = high, high * 2
        if high > 1e9 * floor_s:
            return None
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(terms, own, middle) else (middle, high)
    return _boxes(terms, own, order, high)


def _whole_and_rows(terms: Terms, devices: DeviceColumns, T: float) -> tuple[Ints, Ints]:
    """Whole items and, in the time left, rows of one more item, for each device."""
    kept = (1 - STREAM_SHARE) * devices.memory
    item_bytes = terms.rows * terms.row_bytes + terms.columns * terms.col_bytes + terms.halo_bytes
    fits = min(terms.rows * terms.row_bytes + terms.halo_bytes, terms.columns * terms.col_bytes) <= kept
    fits |= terms.area * terms.accumulator_bytes <= kept
    tau = np.maximum(item_bytes / devices.downlink, terms.area / area_rate(terms, devices, T))
    whole = np.where(fits, np.floor(np.maximum(T - devices.latency, 0.0) / tau * (1 + 1e-12)), 0.0)
    whole = np.minimum(whole, terms.items)
    left = T - np.where(whole > 0, devices.latency + whole * tau, 0.0)
    rows = np.minimum(heights(terms, devices, left, float(terms.columns), whole=True), terms.rows)
    return whole.astype(np.int64), rows.astype(np.int64)


def _packed(rows: Ints, needed: int, items: int) -> tuple[Ints, list[int]] | None:
    """How ``items`` items of ``needed`` rows are filled, tallest first: places in ``rows`` in order, and where each item's begin
    (with the end of the last). None if short."""
    order = np.argsort(-rows, kind="stable")
    order = order[: int(np.count_nonzero(rows))]
    total = [0, *np.cumsum(rows[order]).tolist()]
    starts = [0]
    for _ in range(items):
        stop = bisect_left(total, total[starts[-1]] + needed)
        if stop >= len(total):
            return None
        starts.append(stop)
    return order, starts


def _fits(terms: Terms, devices: DeviceColumns, T: float) -> bool:
    whole, rows = _whole_and_rows(terms, devices, T)
    rest = terms.items - int(whole.sum())
    if rest <= 0:
        return True
    return int(rows.sum()) >= rest * terms.rows and _packed(rows, terms.rows, rest) is not None


def _boxes(terms: Terms, devices: DeviceColumns, order: Ints, T: float) -> Boxes:
    whole, rows = _whole_and_rows(terms, devices, T)
    stops = np.minimum(np.cumsum(whole), terms.items)  # no more than there are
    counts = np.diff(stops, prepend=0)
    first = counts > 0
    done = _rows_of(order[first], 0, terms.rows, terms, (stops - counts)[first], stops[first])
    item = int(stops[-1])
    packed = _packed(rows, terms.rows, terms.items - item)
    if packed is None:
        return done
    places, starts = packed
    places = places[: starts[-1]]
    item_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    top = before_in_run(rows[places], item_of)
    bottom = np.minimum(top + rows[places], terms.rows)
    return np.concatenate([done, _rows_of(order[places], top, bottom, terms, item + item_of, item + item_of + 1)])


def _rows_of(device: Ints, top: Ints | int, bottom: Ints | int, terms: Terms, first: Ints, stop: Ints) -> Boxes:
    """Rows from ``top`` to ``bottom`` of whole width, of the items from ``first`` to ``stop``."""
    boxes = np.zeros((len(device), 9), dtype=np.int64)
    boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 4] = device, top, bottom, terms.columns
    boxes[:, 6], boxes[:, 7], boxes[:, 8] = terms.depth, first, stop
    return boxes
