r"""Exact tilings of tiny cases: up to four devices, small sides, at most one rectangle for each device.

Any partition of a rectangle into at most four rectangles can be cut edge to edge (the smallest that cannot is the
pinwheel of five), so the best ones are found by recursion over straight cuts and subsets of devices. Two things are
minimised, the makespan and the bytes out of the servers, so each state keeps its Pareto front:

    front(S, r, c) = non-dominated of
        (time_i(r, c), down_i(r, c))                                          for i in S
        (max(t1, t2), d1 + d2)     of front(S1, r1, c) and front(S - S1, r - r1, c)       for every cut r1, every S1
        the same along c

Leaving devices out is included. The bytes into the servers are the same for every tiling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from cleave_plan.planning.terms import Terms

MAX_DEVICES = 4
MAX_SIDE = 8

Rectangle = tuple[int, int, int, int, int]
"""``(device, row_start, row_stop, column_start, column_stop)``"""


def tiny(terms: Terms, devices: int) -> bool:
    """Is the case small enough for exact tilings?"""
    return devices <= MAX_DEVICES and terms.items == 1 and max(terms.rows, terms.columns) <= MAX_SIDE


@dataclass(frozen=True, slots=True)
class Layout:
    """One point of a front: ``seconds``, ``down_bytes``, and how it is made (a device, or two layouts side by side)."""

    seconds: float
    down_bytes: float
    device: int = -1
    along_rows: bool = False
    at: int = 0
    parts: tuple[Layout, ...] = ()

    def rectangles(self, rows: int, columns: int, row: int = 0, column: int = 0) -> list[Rectangle]:
        """The layout's rectangles, its corner at (row, column)."""
        if not self.parts:
            return [(self.device, row, row + rows, column, column + columns)]
        first, second = self.parts
        if self.along_rows:
            return first.rectangles(self.at, columns, row, column) + second.rectangles(
                rows - self.at, columns, row + self.at, column
            )
        return first.rectangles(rows, self.at, row, column) + second.rectangles(rows, columns - self.at, row, column + self.at)


def front(rows: int, columns: int, devices: list[int], price: Callable[[int, int, int], tuple[float, float]]) -> list[Layout]:
    """Pareto front of all tilings; ``price(device, r, c)`` is ``(seconds, down_bytes)``, infinite where it does not fit."""

    @cache
    def best(members: tuple[int, ...], r: int, c: int) -> tuple[Layout, ...]:
        found = [Layout(*price(device, r, c), device) for device in members]
        for first, second in _splits(members):
            for at in range(1, r):
                found += _joined(best(first, at, c), best(second, r - at, c), True, at)
            for at in range(1, c):
                found += _joined(best(first, r, at), best(second, r, c - at), False, at)
        return _non_dominated(found)

    return list(best(tuple(sorted(devices)), rows, columns))


def _joined(first: tuple[Layout, ...], second: tuple[Layout, ...], along_rows: bool, at: int) -> list[Layout]:
    return [
        Layout(max(one.seconds, two.seconds), one.down_bytes + two.down_bytes, -1, along_rows, at, (one, two))
        for one in first
        for two in second
    ]


def _non_dominated(layouts: list[Layout]) -> tuple[Layout, ...]:
    kept: list[Layout] = []
    for layout in sorted(layouts, key=lambda layout: (layout.seconds, layout.down_bytes)):
        if not kept or layout.down_bytes < kept[-1].down_bytes:
            kept.append(layout)
    return tuple(kept)


def _splits(members: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every way to give some devices the first part and the others the second."""
    splits = []
    for mask in range(1, 2 ** len(members) - 1):
        first = tuple(device for place, device in enumerate(members) if mask >> place & 1)
        splits.append((first, tuple(device for device in members if device not in first)))
    return splits
