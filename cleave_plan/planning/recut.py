r"""Cutting boxes of a GEMM anew, over devices that have other work already: what is left of devices that are gone.

A device that is busy for t more seconds is, to bound and tilings, one whose latency is longer by t; so the code that plans
whole GEMMs (:mod:`~cleave_plan.planning.bounds`, :mod:`~cleave_plan.planning.strips`,
:mod:`~cleave_plan.planning.batched`) cuts a box as it is. Boxes are taken one by one, the heaviest first:

1. If some device would finish the whole box before the ``horizon`` (the time by which the last device is done in any case), or
   if there are many boxes, the device that finishes it first takes it whole: nothing is gained by cutting.
2. Otherwise the least number of devices, ablest first and doubling, whose bound meets the horizon or is within
   :data:`ENOUGH` of the bound of all, share it by strips (of several batch items: by whole items and rows).

K is never cut: what was one partial sum stays one in every element, so that sums are added as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import BOX, Tiles, price
from cleave_plan.planning.batched import share_items
from cleave_plan.planning.bounds import FREE, capacity, gemm_bound
from cleave_plan.planning.boxes import boxes_of_items
from cleave_plan.planning.rounding import round_strips
from cleave_plan.planning.strips import group_into_strips
from cleave_plan.planning.terms import Terms, eligible, terms_of
from cleave_plan.workload.gemm import Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ENOUGH = 1.05
"""A bound that is this near the least one is as good: fewer devices are disturbed, and less is sent."""

MOST_TAKERS = 64
"""Devices that one box is shared by at the most."""

_Row = tuple[int, ...]
"""A device and the eight numbers of a box, in the order of :data:`~cleave_plan.cost.tile.BOX`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recut:
    """``tiles`` in place of the boxes; ``origin``: which box each comes from; ``busy_s``: when each device is done now.

    ``left``: boxes (places) that no device can take.
    """

    tiles: Tiles
    origin: Ints
    busy_s: Floats
    left: tuple[int, ...]


def recut(gemm: Gemm, boxes: Tiles, devices: DeviceColumns, busy_s: Floats, *, horizon_s: float | None = None) -> Recut:
    """``boxes`` of ``gemm`` (whoever held them) cut over ``devices``, which are free after ``busy_s`` seconds (inf: never).

    ``horizon_s``: default is when the last device of those that take part is free. Times are executed ones.
    """
    busy = np.array(busy_s, dtype=float)
    work = _Recutting(gemm, devices, busy, horizon_s)
    flop = price(gemm, replace(boxes, device=np.zeros_like(boxes.device)), devices).flop if len(boxes) else np.zeros(0)
    rows: list[_Row] = []
    origin: list[int] = []
    left: list[int] = []
    table = np.stack([boxes.column(name) for name in BOX], axis=1)
    for place in np.argsort(-flop, kind="stable").tolist():
        pieces = work.place(tuple(table[place].tolist()), alone=len(boxes) > len(devices))
        if not pieces:
            left.append(place)
        rows += pieces
        origin += [place] * len(pieces)
    order = np.argsort(np.array(origin, dtype=np.int64), kind="stable")
    return Recut(
        tiles=Tiles.of([rows[place] for place in order]), origin=np.array(origin, dtype=np.int64)[order], busy_s=work.busy,
        left=tuple(sorted(left)),
    )  # fmt: skip


class _Recutting:
    """The devices of one GEMM and how long each is busy, box after box."""

    def __init__(self, gemm: Gemm, devices: DeviceColumns, busy: Floats, horizon_s: float | None) -> None:
        self.gemm, self.devices, self.busy = gemm, devices, busy
        self._terms = terms_of(gemm)
        self._able = np.flatnonzero(eligible(self._terms, devices) & np.isfinite(busy))
        self._horizon_s = float(busy[self._able].max(initial=0.0)) if horizon_s is None else horizon_s

    def place(self, box: _Row, *, alone: bool) -> list[_Row]:
        """Pieces of ``box`` with their devices; none when no device can take any. Counts their seconds in."""
        if not len(self._able):
            return []
        whole = self._whole(box)
        pieces = whole
        if not whole or not (alone or self._finish(whole) <= self._horizon_s):
            shared = self._shared(box)
            if shared and (not whole or self._finish(shared) < self._finish(whole)):
                pieces = shared
        if pieces:
            np.add.at(self.busy, [row[0] for row in pieces], self._seconds(pieces))
        return pieces

    def _whole(self, box: _Row) -> list[_Row]:
        """The box on the device that is done with it first; nothing where it fits no device."""
        everywhere = np.repeat(np.array([box], dtype=np.int64), len(self._able), axis=0)
        done = self.busy[self._able] + self._seconds(np.column_stack([self._able, everywhere]))
        best = int(done.argmin())
        return [(int(self._able[best]), *box)] if np.isfinite(done[best]) else []

    def _shared(self, box: _Row) -> list[_Row]:
        """The box cut over the devices that are done with it together first."""
        terms = _of_box(self._terms, self.gemm, box)
        late = replace(self.devices, latency=self.devices.latency + np.where(np.isfinite(self.busy), self.busy, 0.0))
        every_s = gemm_bound(terms, late.take(self._able), FREE)
        area = capacity(terms, late.take(self._able)).area(every_s * ENOUGH)
        order = self._able[np.argsort(-area, kind="stable")][: min(MOST_TAKERS, int(np.count_nonzero(area)))]
        goal_s = max(self._horizon_s, every_s * ENOUGH)
        count, floor_s = 1, 0.0
        while count < len(order):
            count = min(2 * count, len(order))
            floor_s = gemm_bound(terms, late.take(order[:count]), FREE)
            if floor_s <= goal_s:
                break
        ways = _cut(terms, late, order[:count], floor_s, box) if floor_s > 0 else []
        return min(ways, key=self._finish, default=[])

    def _seconds(self, rows: list[_Row] | Ints) -> Floats:
        table = np.asarray(rows, dtype=np.int64)
        tiles = Tiles(device=table[:, 0], **{name: table[:, 1 + place] for place, name in enumerate(BOX)})
        costs = price(self.gemm, tiles, self.devices)
        return np.where(costs.kept == 3, np.inf, costs.executed_s)

    def _finish(self, rows: list[_Row]) -> float:
        """When the last of the devices is done with its pieces."""
        done = self.busy.copy()
        np.add.at(done, [row[0] for row in rows], self._seconds(rows))
        return float(max(done[row[0]] for row in rows))


def _of_box(terms: Terms, gemm: Gemm, box: _Row) -> Terms:
    """Coefficients of a box as a GEMM of its own."""
    m_start, m_stop, n_start, n_stop, k_start, k_stop, first, last = box
    depth = k_stop - k_start
    part = depth / max(gemm.shape.k, 1)
    return replace(
        terms, rows=m_stop - m_start, columns=n_stop - n_start, depth=depth, items=last - first,
        row_bytes=terms.row_bytes * part, col_bytes=terms.col_bytes * part, flop=terms.flop * part,
        bound_row_bytes=terms.bound_row_bytes * part, bound_rows=m_stop - m_start,
        out_bytes=terms.out_bytes if depth == gemm.shape.k else terms.accumulator_bytes,
    )  # fmt: skip


def _cut(terms: Terms, devices: DeviceColumns, order: Ints, floor_s: float, box: _Row) -> list[list[_Row]]:
    """Ways to cut ``box`` for the devices ``order``: strips of the better orientation, or items shared out either way."""
    ways = [(terms, False)] if terms.columns == 1 else [(terms, False), (terms.transposed(), True)]
    if terms.items > 1:
        shared = ((share_items(own, devices, order, floor_s), turned) for own, turned in ways)
        return [[_placed(piece, box, turned) for piece in found.tolist()] for found, turned in shared if found is not None]
    groups = [(group_into_strips(own, devices, order, floor_s), own, turned) for own, turned in ways]
    strips = [(found.seconds, place) for place, (found, _, _) in enumerate(groups) if found is not None]
    if not strips:
        return []
    best, own, turned = groups[min(strips)[1]]
    assert best is not None, "only those that were found are compared"
    return [
        [_placed(piece, box, turned) for piece in boxes_of_items(round_strips(own, devices, best), terms.depth, 0, 1).tolist()]
    ]


def _placed(piece: Sequence[int], box: _Row, turned: bool) -> _Row:
    """A piece (its numbers from the box's corner, depth whole) as a row, turned back where the box was."""
    device, a, a_stop, b, b_stop, _, _, first, last = piece
    m, _, n, _, k, k_stop, item, _ = box
    top, bottom, left, right = (b, b_stop, a, a_stop) if turned else (a, a_stop, b, b_stop)
    return (device, m + top, m + bottom, n + left, n + right, k, k_stop, item + first, item + last)
