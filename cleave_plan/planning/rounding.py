r"""From groups of devices to integer tiles: joint rounding of strip widths and rows.

Widths are first fitted in real numbers: the least T at which the strips' widest widths add up to N. They are rounded
down together, the columns left over go where the fraction lost was largest, and then the slowest strip passes single
columns to the strip that ends up least slow, as long as that lowers the slowest. Within a strip, rows are exact: the
least T with sum_i floor(h_i(w, T)) >= M, rows beyond M taken back from the devices that are last to finish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.heights import heights, pass_cap
from cleave_plan.planning.strips import Groups
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Box = tuple[int, int, int, int, int]
"""``(device, row_start, row_stop, column_start, column_stop)``"""

_BISECTIONS = 32
_INSTANT = 1e-30
"""Seconds under which a strip's time is as good as none (its devices have no latency and next to no work)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Strips:
    terms: Terms
    devices: DeviceColumns  # columns of groups.devices, in strip order
    starts: Ints
    strip_of: Ints

    def rows(self, T: Floats, width: Floats, *, whole: bool) -> Floats:
        """Rows covered in each strip at its own time and width."""
        own = heights(self.terms, self.devices, T[self.strip_of], width[self.strip_of], whole=whole)
        return np.asarray(np.add.reduceat(own, self.starts))

    def times(self, width: Ints, near_s: float) -> Floats:
        """Least T of each strip to cover all rows at integer ``width``; ``near_s`` is a guess, any positive number works."""
        low, high = np.full(len(width), near_s / 2), np.full(len(width), near_s * 1.05)
        wide = np.maximum(width, 1).astype(float)
        while bool((short := self.rows(high, wide, whole=True) < self.terms.rows).any()):
            low, high = np.where(short, high, low), np.where(short, high * 2, high)
        while bool((early := self.rows(low, wide, whole=True) >= self.terms.rows).any()):
            low, high = np.where(early, low / 2, low), np.where(early, low, high)
            if float(high.max()) < _INSTANT:
                break
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            enough = self.rows(middle, wide, whole=True) >= self.terms.rows
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(width > 0, high, 0.0)


def round_strips(terms: Terms, devices: DeviceColumns, groups: Groups) -> list[Box]:
    """Integer boxes that cover one item exactly, in the orientation of ``terms``."""
    starts = groups.starts.astype(np.int64)
    sizes = np.diff(np.append(starts, len(groups.devices)))
    strips = _Strips(
        terms=terms, devices=devices.take(groups.devices), starts=starts, strip_of=np.repeat(np.arange(len(starts)), sizes)
    )
    near_s = groups.seconds
    widths = _balance(strips, _rounded_widths(strips, groups), near_s)
    times = strips.times(widths, near_s)
    rows = heights(terms, strips.devices, times[strips.strip_of], np.maximum(widths, 1)[strips.strip_of], whole=True)
    boxes: list[Box] = []
    column = 0
    for strip, width in enumerate(widths):
        if width > 0:
            mine = slice(starts[strip], starts[strip] + sizes[strip])
            share = _trimmed(rows[mine].astype(np.int64), terms.rows)
            boxes += _strip_boxes(terms, devices, groups.devices[mine], share, column, int(width))
            column += int(width)
    return boxes


def _rounded_widths(strips: _Strips, groups: Groups) -> Ints:
    """Real widths at the least common T near the groups' own, then integers with the same sum N."""
    total, count = strips.terms.columns, len(groups.widths)
    if count == 1:
        return np.array([total], dtype=np.int64)
    guess = groups.widths * (total / groups.widths.sum())
    bottom, top, widths = groups.seconds * 0.98, groups.seconds * 1.03, guess
    for _ in range(9):
        middle = (bottom + top) / 2
        low, high = guess * 0.7, guess * 1.4
        for _ in range(13):
            width = (low + high) / 2
            enough = strips.rows(np.full(count, middle), width, whole=False) >= strips.terms.rows
            low, high = np.where(enough, width, low), np.where(enough, high, width)
        if low.sum() >= total:
            top, widths = middle, low
        else:
            bottom = middle
    widths = widths * (total / widths.sum())
    floor: Ints = np.floor(widths).astype(np.int64)
    spare = total - int(floor.sum())
    floor[np.argsort(floor - widths, kind="stable")[:spare]] += 1
    return floor


def _balance(strips: _Strips, widths: Ints, near_s: float) -> Ints:
    """Move single columns from the slowest strip while the slowest time falls."""
    if len(widths) == 1:
        return widths
    times, more = strips.times(widths, near_s), strips.times(widths + 1, near_s)
    for _ in range(4 * len(widths)):
        worst = int(times.argmax())
        others = np.where(np.arange(len(widths)) == worst, np.inf, more)
        best = int(others.argmin())
        if others[best] >= times[worst] or widths[worst] == 0:
            break
        widths = widths.copy()
        widths[worst] -= 1
        widths[best] += 1
        times, more = strips.times(widths, near_s), strips.times(widths + 1, near_s)
    return widths


def _trimmed(rows: Ints, total: int) -> Ints:
    """Rows with the surplus over ``total`` taken back, one from each of the busiest devices in turn."""
    surplus = int(rows.sum()) - total
    if surplus < 0:
        raise AssertionError(f"a strip covers {rows.sum()} of {total} rows")
    while surplus > 0:
        held = np.flatnonzero(rows > 0)
        order = held[np.argsort(-rows[held], kind="stable")][:surplus]
        each = max(1, surplus // max(len(held), 1))
        taken = np.minimum(rows[order], each)
        rows = rows.copy()
        rows[order] -= taken
        surplus -= int(taken.sum())
        if surplus < 0:
            raise AssertionError("more rows were taken back than there were to spare")
    return rows


def _strip_boxes(terms: Terms, devices: DeviceColumns, members: Ints, rows: Ints, column: int, width: int) -> list[Box]:
    """Boxes of one strip from row 0 down; a device over its memory's cap gets several (passes)."""
    cap = np.maximum(np.floor(pass_cap(terms, devices.take(members), float(width))), 1.0)
    boxes: list[Box] = []
    row = 0
    for device, count, most in zip(members.tolist(), rows.tolist(), cap.tolist(), strict=True):
        while count > 0:
            part = int(min(count, most))
            boxes.append((device, row, row + part, column, column + width))
            row, count = row + part, count - part
    return boxes
