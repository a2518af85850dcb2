r"""From groups of devices to integer tiles: joint rounding of strip widths and rows.

Widths are first fitted in real numbers: the least T at which the strips' widest widths add up to N. They are rounded
down together, and the columns left over go where the fraction lost was largest. Rows are integers too, so a strip's real time
may be some columns away from that: the widths nearby are then found at which the slowest strip takes least (:func:`_balance`).
Within a strip, rows are exact: the least T with sum_i floor(h_i(w, T)) >= M, rows beyond M taken back from the devices that are
last to finish.

Many items of one shape are rounded together (:func:`round_items`): all their strips at once, widths as they are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bands import HUGE
from cleave_plan.planning.boxes import Boxes, Rectangles, before_in_run, boxes_of_items, place_in_run, rounded_runs, run_of
from cleave_plan.planning.heights import heights, pass_cap
from cleave_plan.planning.roots import log_root
from cleave_plan.planning.strips import Groups
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BISECTIONS, _FEWER = 32, 18
"""Halvings of a strip's time; in huge fleets the second."""

_INSTANT = 1e-30
"""Seconds under which a strip's time is as good as none (its devices have no latency and next to no work)."""

_TABLE, _FARTHEST = 8192, 16
"""Heights of devices that a table of strips' times may hold, and columns that a strip wins or loses in a round, at the most."""

_ROUNDS, _STEPS, _NEAR, _POWER = 6, 7, 1e-4, 0.6
"""Of the real widths: times that are tried, steps for the widths at each, how near to N their sum is near enough, and about which
power of what is covered the time is of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Strips:
    terms: Terms
    devices: DeviceColumns  # columns of groups.devices, in strip order
    starts: Ints
    strip_of: Ints

    def several(self, widths: Ints, near_s: float) -> Floats:
        """:meth:`times` of every strip at each of its ``widths``, of shape (strips, widths)."""
        count, devices, most = len(self.starts), len(self.devices), widths.shape[1]
        again = np.arange(most)[:, None]
        copies = _Strips(
            terms=self.terms, devices=self.devices.take(np.tile(np.arange(devices), most)),
            starts=(self.starts + devices * again).ravel(), strip_of=(self.strip_of + count * again).ravel(),
        )  # fmt: skip
        return copies.times(widths.T.ravel(), near_s).reshape(most, count).T

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
        for _ in range(_BISECTIONS if len(self.devices) < HUGE else _FEWER):
            middle = (low + high) / 2
            enough = self.rows(middle, wide, whole=True) >= self.terms.rows
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(width > 0, high, 0.0)


def round_strips(terms: Terms, devices: DeviceColumns, groups: Groups) -> Rectangles:
    """Integer rectangles that cover one item exactly, in the orientation of ``terms``."""
    strips = _strips(terms, devices, groups)
    one = np.zeros(len(groups.widths), dtype=np.int64)
    widths, times = _balance(strips, _rounded_widths(strips, groups.widths, one, groups.seconds), groups.seconds)
    return _rectangles(strips, groups.devices, _rows(strips, widths, times), widths)


def round_items(terms: Terms, devices: DeviceColumns, groups: Groups, item_of: Ints) -> tuple[float, Boxes]:
    """Integer boxes that cover every item exactly, each by its own strips, in the orientation of ``terms``, and the seconds of
    the slowest strip; ``item_of``: the item (0, 1, ...) of each strip, rising."""
    strips = _strips(terms, devices, groups)
    widths = _rounded_widths(strips, groups.widths, item_of, groups.seconds)
    times = strips.times(widths, groups.seconds)
    found = _rectangles(strips, groups.devices, _rows(strips, widths, times), widths)  # the items' planes side by side
    item = found[:, 3] // terms.columns
    found[:, 3:] -= (item * terms.columns)[:, None]
    return float(times.max()), boxes_of_items(found, terms.depth, item, item + 1)


def _strips(terms: Terms, devices: DeviceColumns, groups: Groups) -> _Strips:
    starts = groups.starts.astype(np.int64)
    strip_of = run_of(starts, len(groups.devices))
    return _Strips(terms=terms, devices=devices.take(groups.devices), starts=starts, strip_of=strip_of)


def _rows(strips: _Strips, widths: Ints, times: Floats) -> Ints:
    """Rows of every device in strips of ``widths`` that take ``times``; none in strips without a column."""
    wide = np.maximum(widths, 1)[strips.strip_of]
    rows = heights(strips.terms, strips.devices, times[strips.strip_of], wide, whole=True).astype(np.int64)
    rows[(widths == 0)[strips.strip_of]] = 0
    return _trimmed(rows, strips.strip_of, np.where(widths > 0, strips.terms.rows, 0))


def _rounded_widths(strips: _Strips, guess: Floats, item_of: Ints, near_s: float) -> Ints:
    """Real widths at the least common T of each item's strips, near ``near_s``, then integers with the same sums N."""
    total, count = strips.terms.columns, int(item_of[-1]) + 1
    totals = np.full(count, total, dtype=np.int64)
    if count == len(guess):
        return totals
    guess = guess * (total / np.bincount(item_of, guess))[item_of]
    T, widths = np.full(count, near_s), guess
    for _ in range(_ROUNDS):
        at = T[item_of]
        found = log_root(lambda w, at=at: strips.rows(at, w, whole=False) / strips.terms.rows, guess * 0.7, guess * 1.4, _STEPS)  # type: ignore[misc]
        widths = np.where(found > 0, found, guess * 0.7)
        share = np.bincount(item_of, widths) / total
        if float(np.abs(share - 1).max()) < _NEAR:
            break
        T = T * np.clip(share, 0.9, 1.1) ** -_POWER
    return rounded_runs(widths, item_of, totals)


def _balance(strips: _Strips, widths: Ints, near_s: float) -> tuple[Ints, Floats]:
    """The widths near ``widths``, of the same sum, at which the slowest strip takes least, and the strips' times.

    A strip's time rises with its width. From ``reach`` blocks of columns less in each strip on, blocks are given out one by one,
    each to the strip that takes least with it: the blocks with the least times of all. Blocks double in size for as long as some
    strip gains or loses all that it can in a round, and then halve down to single columns.
    """
    times = strips.times(widths, near_s)
    if len(widths) == 1:
        return widths, times
    reach = int(np.clip(_TABLE // (2 * len(strips.devices)), 1, _FARTHEST))
    block, doubling = 1, True
    while True:
        low = widths - block * np.minimum(reach, widths // block)
        table = strips.several(low[:, None] + block * np.arange(1, 2 * reach + 1), near_s)
        cheapest = np.argsort(table, axis=None, kind="stable")[: int((widths - low).sum()) // block]
        gained = np.bincount(cheapest // (2 * reach), minlength=len(widths))
        found = low + block * gained
        found_s = strips.times(found, near_s)
        far = ((gained == 2 * reach) | ((gained == 0) & (low >= block))).any()
        if better := found_s.max() < times.max():  # so no widths come twice
            widths, times = found, found_s
        if better and far:
            block *= 2 if doubling else 1
        elif block > 1:
            block, doubling = block // 2, False
        else:
            return widths, times


def _trimmed(rows: Ints, strip_of: Ints, totals: Ints) -> Ints:
    """Rows with the surplus over each strip's total taken back, one from each of its busiest devices in turn."""
    while True:
        surplus = np.bincount(strip_of, rows, minlength=len(totals)).astype(np.int64) - totals
        if bool((surplus < 0).any()):
            raise AssertionError(f"strips cover {-int(surplus.min())} rows too few")
        over = np.flatnonzero((surplus[strip_of] > 0) & (rows > 0))
        if len(over) == 0:
            return rows
        over = over[np.lexsort((-rows[over], strip_of[over]))]  # by strip, the busiest first
        strip = strip_of[over]
        each = np.maximum(surplus // np.maximum(np.bincount(strip, minlength=len(totals)), 1), 1)
        rows = rows.copy()
        rows[over] -= np.where(place_in_run(strip) < surplus[strip], np.minimum(rows[over], each[strip]), 0)


def _rectangles(strips: _Strips, devices: Ints, rows: Ints, widths: Ints) -> Rectangles:
    """Strips beside each other, their devices from row 0 down; a device over its memory's cap gets several (passes)."""
    wide, right = np.maximum(widths, 1)[strips.strip_of], np.cumsum(widths)[strips.strip_of]
    top = before_in_run(rows, strips.strip_of)
    cap = np.minimum(np.maximum(np.floor(pass_cap(strips.terms, strips.devices, wide.astype(float))), 1.0), strips.terms.rows)
    most = cap.astype(np.int64)
    of = np.repeat(np.arange(len(rows)), -(-rows // most))
    start = place_in_run(of) * most[of]
    stop = np.minimum(start + most[of], rows[of])
    return np.stack([devices[of], top[of] + start, top[of] + stop, (right - widths[strips.strip_of])[of], right[of]], axis=1)
