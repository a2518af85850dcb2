r"""The least time at which one item can be covered by the straight cuts that a family allows.

The cover of a trial T, the share of the item that all devices reach by their best cut, grows with T; the least T at
which it is 1 is closed in on from a time to beat down, with guesses from how far the last cover was off. The cuts are read
off the curves from the top and made exact in integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.boxes import Rectangles
from cleave_plan.planning.heights import heights, pass_cap
from cleave_plan.planning.shapes import Axis, Curves, Family, device_curves, set_curves
from cleave_plan.planning.slicing_rounding import Node, round_tree
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]

WORTH = 1e-3
"""A tiling this near the bound is not looked for again, and a search ends when it is this near its best."""

EXACT_SIDE, _EXACT = 64, 1e-9
"""Items whose sides are no longer are searched to the end: the share that is worth a search is this."""

_GROWTH = 1.5
"""Cover grows about with this power of time (2 where downlinks bind, 1 where uplinks or arithmetic do)."""

Tiling = tuple[float, Rectangles]
"""Ideal seconds of the slowest device, and the rectangles."""


def makespan(terms: Terms, devices: DeviceColumns, table: Rectangles) -> float:
    """Ideal seconds of the slowest device over rectangles of one item."""
    own = devices.take(table[:, 0])
    rows, columns = table[:, 2] - table[:, 1], table[:, 4] - table[:, 3]
    down_s = (rows * terms.row_bytes + columns * terms.col_bytes + terms.halo_bytes) / own.downlink
    flop = rows * columns * terms.flop
    up_s = rows * columns * terms.out_bytes / own.uplink
    seconds = own.latency + np.maximum(np.maximum(down_s, flop / own.rate(flop)), up_s)
    return float(np.bincount(table[:, 0], seconds).max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Item:
    """One batch item and the devices that share it; ``down`` and ``across`` are its axes."""

    terms: Terms
    devices: DeviceColumns
    down: Axis
    across: Axis

    @property
    def whole(self) -> bool:
        """Curves at every integer of both sides: what they say can be done."""
        return self.down.whole and self.across.whole

    @property
    def worth(self) -> float:
        """The share of a time that is worth a search."""
        return _EXACT if max(self.down.side, self.across.side) <= EXACT_SIDE else WORTH

    def curves(self, family: Family, T: float) -> Curves:
        """Curves of the sets of ``family`` at time T."""
        return set_curves(device_curves(self.terms, self.devices, T, self.down, self.across), family)

    def cover(self, curves: Curves, family: Family) -> float:
        """Share of the item that all devices together cover by their best cut; over 1 where there is time left."""
        if not family.layers:
            return float(curves.rows[family.atoms[0], -1]) / self.down.side
        return curves.best_cut(family, family.everything, float(self.down.side), float(self.across.side)).cover

    def tree(self, curves: Curves, family: Family, T: float) -> Node:
        """The cuts that ``curves`` of time T hold."""
        return self.cut(curves, family, T, family.everything, float(self.down.side), float(self.across.side))

    def tiling(self, tree: Node, T: float) -> Tiling:
        """``tree`` in integers; infinite seconds where the cuts cannot be made near T."""
        boxes = round_tree(self.terms, self.devices, tree, T)
        return makespan(self.terms, self.devices, boxes) if len(boxes) else np.inf, boxes

    def cut(self, curves: Curves, family: Family, T: float, number: int, height: float, width: float) -> Node:
        """The cuts of set ``number`` for ``height`` rows of ``width`` columns."""
        device = family.device_of(number)
        if device is not None:
            return Node(width=width, device=device, lengthwise=self._lengthwise(device, T, height, width))
        cut = curves.best_cut(family, number, height, width)
        side = height if cut.above else width
        if cut.first <= 0 or cut.first >= side:  # the other part's devices are left out
            return self.cut(curves, family, T, cut.parts[0 if cut.first > 0 else 1], height, width)
        shapes = [(share, width) if cut.above else (height, share) for share in (cut.first, side - cut.first)]
        parts = tuple(self.cut(curves, family, T, part, *shape) for part, shape in zip(cut.parts, shapes, strict=True))
        return Node(width=width, above=cut.above, parts=parts)

    def _lengthwise(self, device: int, T: float, height: float, width: float) -> bool:
        """Does the device need passes for this rectangle, and reach more of it when they are cut across the columns?"""
        own = self.devices.take(np.array([device]))
        if height <= pass_cap(self.terms, own, width)[0]:
            return False
        rows, columns = heights(self.terms, own, T, width)[0], heights(self.terms.transposed(), own, T, height)[0]
        return bool(columns / width > rows / height)


def fastest(item: Item, family: Family, beat_s: float, floor_s: float) -> Tiling | None:
    """The fastest tiling by cuts of ``family``, when it takes less than ``beat_s`` seconds; none takes less than ``floor_s``."""
    search = _fastest_whole if item.whole else _fastest_near
    best = search(item, family, beat_s, floor_s)
    return best if best is not None and best[0] < beat_s else None


def _fastest_whole(item: Item, family: Family, beat_s: float, floor_s: float) -> Tiling | None:
    """Curves and tilings agree: every trial is rounded at once, and the next starts below what that takes."""
    low, high, best, step = floor_s, beat_s, None, item.worth
    trial = high * (1 - step)
    while trial > low:
        curves = item.curves(family, trial)
        if item.cover(curves, family) >= 1:
            made = item.tiling(item.tree(curves, family, trial), trial)
            # Where the curves' tolerance lets a tiling take no less than before, longer steps get past it.
            step = item.worth if made[0] < high else 4 * step
            best = made if best is None or made[0] < best[0] else best
            high = min(made[0], trial)
        else:
            low = trial
        near = high - low < WORTH * high  # is there anything faster at all?
        trial = high * (1 - step) if near else (low + high) / 2
    return best


def _fastest_near(item: Item, family: Family, beat_s: float, floor_s: float) -> Tiling | None:
    """Curves are a little off: T is narrowed down by them alone, and the last cuts found are rounded."""
    low, high, found = floor_s, beat_s, None
    trial = beat_s * (1 - item.worth)
    while high - low > WORTH / 2 * high:
        curves = item.curves(family, trial)
        off = item.cover(curves, family) ** (1 / _GROWTH)
        if off >= 1:
            high, found = trial, (curves, trial)
        elif found is None:
            return None
        else:
            low = trial
        if 1 <= off < 1 + WORTH / 4:
            break
        guess = trial / off * (1 + WORTH / 8)
        trial = guess if off >= 1 and guess > low else (low + high) / 2
    if found is None:
        return None
    curves, T = found
    return item.tiling(item.tree(curves, family, T), T)
