"""Tilings by straight cuts from edge to edge, found independently of the planner: subset dynamic programming over shape
curves, one subset at a time, with plain integers.

``rows[S][c]`` is the most rows that the devices of bit mask S finish by time T when they have c columns. A set covers
what two parts of it cover one above the other (rows add up at equal widths) or side by side (widths add up at equal
rows). Seconds of one device are those of planning.md section 1, written out for one pass after another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.fleet.device import Device


@dataclass(frozen=True)
class Case:
    """One plain product with the whole K: C is ``m`` by ``n``; ``size`` bytes an element, ``wide`` bytes to accumulate."""

    m: int
    n: int
    k: int
    size: int = 2
    wide: int = 4

    def turned(self) -> Case:
        """Rows and columns exchanged."""
        return Case(self.n, self.m, self.k, self.size, self.wide)


def may_take_part(case: Case, device: Device) -> bool:
    """One row and one column of whole depth fit the stream buffers."""
    return 2 * case.k * case.size <= 0.1 * device.memory_bytes


def seconds(case: Case, device: Device, rows: int, columns: int) -> float:
    """One rectangle on one device, one pass after the other, each of as many rows as the memory takes at this width."""
    kept, line = 0.9 * device.memory_bytes, case.k * case.size
    most = rows if columns * line <= kept else max(int(kept // line), int(kept // (columns * case.wide)), 1)
    total, left = 0.0, rows
    while left > 0:
        part = min(most, left)
        total += device.latency_s + max(
            (part + columns) * line / device.downlink_bytes_per_s,
            2 * part * columns * case.k / device.flop_per_s["any"],
            part * columns * case.size / device.uplink_bytes_per_s,
        )
        left -= part
    return total


def device_rows(case: Case, device: Device, T: float) -> NDArray[np.int64]:
    """Rows that one device finishes by T at each width 0..n (at 0: all), its passes cut along either side."""
    rows = np.zeros(case.n + 1, dtype=np.int64)
    rows[0] = case.m
    if not may_take_part(case, device):
        return rows
    tall = 0
    for width in range(case.n, 0, -1):  # a narrower piece is never shorter
        while tall < case.m and _by(case, device, tall + 1, width, T):
            tall += 1
        rows[width] = tall
    return rows


def _by(case: Case, device: Device, rows: int, columns: int, T: float) -> bool:
    return min(seconds(case, device, rows, columns), seconds(case.turned(), device, columns, rows)) <= T


def covers(case: Case, devices: list[Device], T: float) -> bool:
    """Can the devices finish the item by time T, cut in whole rows and columns by straight cuts?"""
    return best_rows([device_rows(case, device, T) for device in devices], case.m) >= case.m


def best_rows(singles: list[NDArray[np.int64]], most: int) -> int:
    """Rows that all devices together cover at the whole width; ``singles[i][c]``: those of device i at width c."""
    every = 2 ** len(singles) - 1
    rows: dict[int, NDArray[np.int64]] = {1 << place: np.minimum(own, most) for place, own in enumerate(singles)}
    widths = {1 << place: widths_of(own, most) for place, own in rows.items() for place in [place.bit_length() - 1]}
    for members in range(1, every + 1):
        if members in rows:
            continue
        tall, wide = np.zeros_like(singles[0]), np.zeros(most + 1, dtype=np.int64)
        part = (members - 1) & members
        while part > members - part:
            np.maximum(tall, rows[part] + rows[members - part], out=tall)
            np.maximum(wide, widths[part] + widths[members - part], out=wide)
            part = (part - 1) & members
        wide = np.minimum(wide, len(tall) - 1)
        tall = np.minimum(np.maximum(tall, widths_of(wide, len(tall) - 1)), most)
        rows[members], widths[members] = tall, widths_of(tall, most)
    return int(rows[every][-1])


def widths_of(falling: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The inverse: for each 0..most the last place at which ``falling`` still has that much."""
    return len(falling) - 1 - np.searchsorted(falling[::-1], np.arange(most + 1))
