"""What tiles find on their devices, from the assignments of a whole plan: whole columns at a time.

The rules are those of the plan file (docs/plan-format.md): a frozen piece is found again by its own tile in the next batch;
in a training step a tile finds the largest overlap of what it reads with any one piece that its device was sent of that tensor
before; ``held_a`` and ``held_b`` cap the rows of A and the columns of B. All that is ever found takes memory all the time,
except that of what is found in the level in which it arrived only one level's counts, the fullest.
:mod:`cleave_plan.plan.keeping` says the same tile by tile, for the second opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.tile import Held, Ints, Tiles
from cleave_plan.plan.plan import Assignment
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.reuse import SIDES, Reading, Side, frozen, operand_of, readings

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boxes:
    """Pieces of one operand as columns: device, and ranges of its rows and columns."""

    device: Ints
    row: Ints
    row_stop: Ints
    column: Ints
    column_stop: Ints

    def turned(self) -> Boxes:
        """The same pieces of the transposed operand."""
        return Boxes(device=self.device, row=self.column, row_stop=self.column_stop, column=self.row, column_stop=self.row_stop)


def pieces(tiles: Tiles, side: Side) -> Boxes:
    """The pieces of an operand that ``tiles`` read; rows and columns of A are M and K, those of B are K and N."""
    k = (tiles.k_start, tiles.k_stop)
    (row, row_stop), (column, column_stop) = (
        ((tiles.m_start, tiles.m_stop), k) if side == "a" else (k, (tiles.n_start, tiles.n_stop))
    )
    return Boxes(device=tiles.device, row=row, row_stop=row_stop, column=column, column_stop=column_stop)


def largest_overlap(need: Boxes, had: Boxes) -> tuple[Ints, Ints]:
    """Rows and columns that each piece of ``need`` shares most of with any one of its device's pieces ``had``."""
    order = np.argsort(had.device, kind="stable")
    devices = had.device[order]
    first, last = np.searchsorted(devices, need.device, "left"), np.searchsorted(devices, need.device, "right")
    rows, columns = np.zeros(len(need.device), dtype=np.int64), np.zeros(len(need.device), dtype=np.int64)
    for place in range(int((last - first).max(initial=0))):
        other = order[np.minimum(first + place, len(order) - 1)]
        shared = np.minimum(need.row_stop, had.row_stop[other]) - np.maximum(need.row, had.row[other])
        across = np.minimum(need.column_stop, had.column_stop[other]) - np.maximum(need.column, had.column[other])
        some = (first + place < last) & (shared > 0) & (across > 0)
        better = some & (shared * across > rows * columns)
        rows, columns = np.where(better, shared, rows), np.where(better, across, columns)
    return rows, columns


def found_elements(tiles: Tiles, held: Ints, side: Side, reading: Reading | None, had: Tiles | None) -> Ints:
    """Elements of one batch item of an operand that each tile finds: of its own piece of a frozen operand (no ``reading``),
    or of what tiles ``had`` were sent."""
    need = pieces(tiles, side)
    if reading is None or had is None:
        rows, columns = need.row_stop - need.row, need.column_stop - need.column
    else:
        sent = pieces(had, reading.keeper_side)
        rows, columns = largest_overlap(need, sent.turned() if reading.turned else sent)
    return np.asarray(np.minimum(held, rows) * columns if side == "a" else rows * np.minimum(held, columns))


class Holding:
    """What tiles find under ``assignments`` (of products of ``workload``, one name for each).

    ``resident``: bytes that each device keeps.
    """

    def __init__(self, workload: Workload, assignments: Sequence[Assignment], devices: int) -> None:
        self._workload, self._devices = workload, devices
        self._assignment = {name: assignment for assignment in assignments for name in assignment.gemms}
        self._gemms = {gemm.name: gemm for gemm in workload.gemms}
        some = any(assignment.finds for assignment in assignments)
        self._sources = {(r.reader, r.reader_side): r for r in (readings(workload) if some else ())}
        self._found: dict[tuple[int, ...], dict[Side, Ints]] = {}
        self.resident = self._resident(assignments) if some else np.zeros(devices)

    def kind(self, gemm: Gemm) -> tuple[int, ...]:
        """GEMMs of one class and one assignment with equal kinds find the same."""
        sources = [self._sources.get((gemm.name, side)) for side in SIDES]
        return tuple(0 if source is None else id(self._assignment[source.keeper]) for source in sources)

    def held(self, gemm: Gemm, *, first_batch: bool = False) -> Held | None:
        """What the tiles of ``gemm`` find, and what their devices keep; None where no device keeps anything."""
        tiles = self._assignment[gemm.name].tiles
        if not self.resident.any() or not len(tiles):
            return None
        items, elements = (tiles.batch_stop - tiles.batch_start).astype(float), self._elements(gemm)
        item: dict[Side, Floats] = {side: elements[side].astype(np.float64) * (operand_of(gemm, side).bits / 8) for side in SIDES}
        spared = {side: 0.0 if first_batch and frozen(self._workload, gemm, side) else 1.0 for side in SIDES}
        return Held(
            a_bytes=spared["a"] * items * item["a"], b_bytes=spared["b"] * items * item["b"], a_item=item["a"],
            b_item=item["b"], resident=np.append(self.resident, 0.0)[tiles.device],
        )  # fmt: skip

    def _elements(self, gemm: Gemm) -> dict[Side, Ints]:
        """Elements of one batch item of each operand that each tile finds."""
        assignment = self._assignment[gemm.name]
        kind = (id(assignment), *self.kind(gemm))
        if kind not in self._found:
            self._found[kind] = {side: self._elements_of(gemm, assignment, side) for side in SIDES}
        return self._found[kind]

    def _elements_of(self, gemm: Gemm, assignment: Assignment, side: Side) -> Ints:
        held = column_of(assignment, side)
        reading = self._sources.get((gemm.name, side))
        if not held.any() or (reading is None and not frozen(self._workload, gemm, side)):
            return np.zeros(len(assignment.tiles), dtype=np.int64)
        had = None if reading is None else self._assignment[reading.keeper].tiles
        return found_elements(assignment.tiles, held, side, reading, had)

    def _resident(self, assignments: Sequence[Assignment]) -> Floats:
        lasting = np.zeros(self._devices)
        passing: dict[int, Floats] = {}
        for assignment in assignments:
            for name in assignment.gemms if assignment.finds else ():
                gemm, tiles = self._gemms[name], assignment.tiles
                for side, elements in self._elements(gemm).items():
                    if not elements.any():
                        continue
                    each = on_devices(gemm, tiles, elements, side, self._devices)
                    source = self._sources.get((name, side))
                    if source is not None and source.same_level:
                        passing[gemm.level] = passing.get(gemm.level, np.zeros(self._devices)) + each
                    else:
                        lasting = lasting + each
        return np.asarray(np.max([np.zeros(self._devices), *passing.values()], axis=0) + lasting)


def on_devices(gemm: Gemm, tiles: Tiles, elements: Ints, side: Side, devices: int) -> Floats:
    """Bytes on each device of ``elements`` (of one batch item) of an operand for each of ``tiles``."""
    size = (tiles.batch_stop - tiles.batch_start) * elements * (operand_of(gemm, side).bits / 8)
    return np.asarray(np.bincount(tiles.device, size, minlength=devices + 1)[:devices], dtype=np.float64)


def column_of(assignment: Assignment, side: Side) -> Ints:
    """Rows of A or columns of B of which each tile finds something."""
    held = assignment.held_a if side == "a" else assignment.held_b
    return held if len(held) else np.zeros(len(assignment.tiles), dtype=np.int64)
