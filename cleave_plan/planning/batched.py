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

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.heights import area_rate, heights
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ItemBox = tuple[int, ...]
"""``(device, row_start, row_stop, column_start, column_stop, item_start, item_stop)``, with ``k_start, k_stop`` before the
items where K is cut"""


def balanced_groups(ability: Floats, count: int) -> list[Ints]:
    """Devices in ``count`` groups of nearly equal summed ability (largest first to the poorest group), each sorted."""
    heap = [(0.0, 0, group) for group in range(count)]  # of equally poor groups the one with fewer devices is served first
    members: list[list[int]] = [[] for _ in range(count)]
    for device in np.argsort(-ability, kind="stable").tolist():
        total, size, group = heapq.heappop(heap)
        members[group].append(device)
        heapq.heappush(heap, (total + float(ability[device]), size + 1, group))
    return [np.array(sorted(group), dtype=np.int64) for group in members]


def share_items(terms: Terms, devices: DeviceColumns, order: Ints, floor_s: float) -> list[ItemBox]:
    """All items over the devices ``order``: whole items, and rows of the rest, at the least T found above ``floor_s``."""
    own = devices.take(order)
    low, high = floor_s, floor_s * 1.05
    while not _fits(terms, own, high):
        low, high = high, high * 2
        if high > 1e9 * floor_s:
            return []
    for _ in range(40):
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


def _packed(rows: Ints, needed: int, items: int) -> list[Ints] | None:
    """Devices (places in ``rows``) that fill each of ``items`` items of ``needed`` rows, tallest first; None if short."""
    order = np.argsort(-rows, kind="stable")
    order = order[rows[order] > 0]
    total = np.concatenate([[0], np.cumsum(rows[order])])
    filled: list[Ints] = []
    start = 0
    for _ in range(items):
        stop = int(np.searchsorted(total, total[start] + needed))
        if stop >= len(total):
            return None
        filled.append(order[start:stop])
        start = stop
    return filled


def _fits(terms: Terms, devices: DeviceColumns, T: float) -> bool:
    whole, rows = _whole_and_rows(terms, devices, T)
    rest = terms.items - int(whole.sum())
    if rest <= 0:
        return True
    return int(rows.sum()) >= rest * terms.rows and _packed(rows, terms.rows, rest) is not None


def _boxes(terms: Terms, devices: DeviceColumns, order: Ints, T: float) -> list[ItemBox]:
    whole, rows = _whole_and_rows(terms, devices, T)
    whole = np.diff(np.minimum(np.cumsum(np.append(0, whole)), terms.items))  # no more than there are
    boxes: list[ItemBox] = []
    item = 0
    for device, count in zip(order.tolist(), whole.tolist(), strict=True):
        if count:
            boxes.append((device, 0, terms.rows, 0, terms.columns, item, item + count))
            item += count
    for members in _packed(rows, terms.rows, terms.items - item) or []:
        row = 0
        for place in members.tolist():
            stop = min(row + int(rows[place]), terms.rows)
            boxes.append((int(order[place]), row, stop, 0, terms.columns, item, item + 1))
            row = stop
        item += 1
    return boxes
