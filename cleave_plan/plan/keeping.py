r"""What tiles find on their devices under a plan, worked out a second time, tile by tile.

An assignment's columns ``held_a`` and ``held_b`` say of how many rows of its piece of A, and of how many columns of its piece
of B, a tile finds on its device what the device had before. What that is, the model says (:mod:`cleave_plan.workload.reuse`):

- a frozen operand was there in the batch before: the first rows (columns) of the piece, whole. In the first batch it is sent;
- in a training step a GEMM before read the tensor too: of all pieces of it that the device was sent, the one that has most of
  what the tile reads, and of that the first rows (columns).

What is found is not sent, and was kept: memory is counted as if a device had all that its tiles ever find at all times; of what
is found in the level in which it arrived, that of one level, the fullest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cleave_plan.plan.plan import Assignment
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.reuse import SIDES, Reading, Side, frozen, operand_of, readings

Box = tuple[int, int, int, int]
"""Rows and columns of an operand: (row start, row stop, column start, column stop). Of A they are M and K, of B K and N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileHold:
    """Of one tile: elements of A and of B (all batch items) that are not sent, and elements of one batch item that are in
    memory all the time."""

    a_spared: int = 0
    b_spared: int = 0
    a_there: int = 0
    b_there: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """One assignment's tiles, and what they find, as lists."""

    device: list[int]
    rows: list[tuple[int, int]]
    columns: list[tuple[int, int]]
    depth: list[tuple[int, int]]
    items: list[int]
    held_a: list[int]
    held_b: list[int]

    @classmethod
    def of(cls, assignment: Assignment) -> _Columns:
        """Of ``assignment``; a column of what is found that is empty is one of zeros."""
        tiles, none = assignment.tiles, [0] * len(assignment.tiles)

        def ranges(axis: str) -> list[tuple[int, int]]:
            return list(zip(tiles.column(f"{axis}_start").tolist(), tiles.column(f"{axis}_stop").tolist(), strict=True))

        return cls(
            device=tiles.device.tolist(), rows=ranges("m"), columns=ranges("n"), depth=ranges("k"),
            items=[stop - start for start, stop in ranges("batch")],
            held_a=assignment.held_a.tolist() or none, held_b=assignment.held_b.tolist() or none,
        )  # fmt: skip

    def held(self, side: Side) -> list[int]:
        """Rows of A or columns of B of which each tile finds something."""
        return self.held_a if side == "a" else self.held_b

    def piece(self, side: Side, tile: int) -> Box:
        """The piece of an operand that a tile reads."""
        return (*self.rows[tile], *self.depth[tile]) if side == "a" else (*self.depth[tile], *self.columns[tile])


class Keeping:
    """What tiles find on their devices under ``assignments`` (of products of ``workload``, one name for each).

    ``resident``: bytes that each device keeps, by its place, devices that keep nothing left out.
    """

    def __init__(self, workload: Workload, assignments: Sequence[Assignment]) -> None:
        self._workload = workload
        self._columns = [_Columns.of(assignment) for assignment in assignments]
        self._names = [assignment.gemms for assignment in assignments]
        self._place = {name: place for place, assignment in enumerate(assignments) for name in assignment.gemms}
        self._gemms = {gemm.name: gemm for gemm in workload.gemms}
        self._sources: dict[tuple[str, Side], Reading] = {
            (reading.reader, reading.reader_side): reading for reading in readings(workload)
        }
        self._pieces_of: dict[tuple[int, Side], dict[int, list[Box]]] = {}
        self.resident = self._resident()

    def kind(self, gemm: Gemm) -> tuple[int, ...]:
        """GEMMs of one class whose assignments, and those of whom they read after, are the same find the same."""
        sources = [self._sources.get((gemm.name, side)) for side in SIDES]
        return tuple(-1 if source is None else self._place[source.keeper] for source in sources)

    def from_nowhere(self) -> Iterator[tuple[int, Side, str]]:
        """Assignments (by place) whose tiles find what no device ever had, with the operand and the name of a GEMM."""
        for place, names in enumerate(self._names):
            for side in SIDES:
                for name in names if any(self._columns[place].held(side)) else ():
                    if not frozen(self._workload, self._gemms[name], side) and (name, side) not in self._sources:
                        yield place, side, name
                        break

    def holds(self, gemm: Gemm, *, first_batch: bool = False) -> list[TileHold] | None:
        """One entry per tile of the GEMM's assignment, None where its tiles find nothing."""
        columns = self._columns[self._place[gemm.name]]
        if not any(columns.held_a) and not any(columns.held_b):
            return None
        sent = {side: first_batch and frozen(self._workload, gemm, side) for side in SIDES}
        found = []
        for tile, items in enumerate(columns.items):
            a, b = (self._elements(gemm, side, tile) for side in SIDES)
            found.append(
                TileHold(
                    a_spared=0 if sent["a"] else items * a, b_spared=0 if sent["b"] else items * b, a_there=a, b_there=b
                )
            )  # fmt: skip
        return found

    def _elements(self, gemm: Gemm, side: Side, tile: int) -> int:
        """Elements of one batch item of an operand that a tile finds."""
        columns = self._columns[self._place[gemm.name]]
        most = columns.held(side)[tile]
        if most == 0:
            return 0
        need, across = columns.piece(side, tile), side == "a"
        if frozen(self._workload, gemm, side):
            return most * (need[3] - need[2] if across else need[1] - need[0])
        source = self._sources.get((gemm.name, side))
        if source is None:
            return 0
        pieces = self._pieces(self._place[source.keeper], source.keeper_side).get(columns.device[tile], [])
        rows, others = max((_overlap(need, _turned(piece, source.turned)) for piece in pieces), key=_area, default=(0, 0))
        return min(most, rows) * others if across else rows * min(most, others)

    def _pieces(self, place: int, side: Side) -> dict[int, list[Box]]:
        """The pieces of one operand that an assignment sends, by device."""
        if (place, side) not in self._pieces_of:
            columns = self._columns[place]
            found: dict[int, list[Box]] = defaultdict(list)
            for tile, device in enumerate(columns.device):
                found[device].append(columns.piece(side, tile))
            self._pieces_of[place, side] = found
        return self._pieces_of[place, side]

    def _resident(self) -> dict[int, float]:
        lasting: dict[int, float] = defaultdict(float)
        passing: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        sizes: dict[tuple[int, ...], dict[int, float]] = {}
        for place, names in enumerate(self._names):
            for number, side in enumerate(SIDES):
                for name in names if any(self._columns[place].held(side)) else ():
                    kind = (place, number, *self.kind(self._gemms[name]))
                    if kind not in sizes:
                        sizes[kind] = self._bytes_of(self._gemms[name], side)
                    source = self._sources.get((name, side))
                    brief = source is not None and source.same_level
                    total = passing[self._gemms[name].level] if brief else lasting
                    for device, size in sizes[kind].items():
                        total[device] += size
        fullest: dict[int, float] = defaultdict(float)
        for level in passing.values():
            for device, size in level.items():
                fullest[device] = max(fullest[device], size)
        return {device: lasting[device] + fullest[device] for device in sorted({*lasting, *fullest})}

    def _bytes_of(self, gemm: Gemm, side: Side) -> dict[int, float]:
        """Bytes of what the tiles of one GEMM find on each device."""
        columns = self._columns[self._place[gemm.name]]
        found: dict[int, float] = defaultdict(float)
        for tile, device in enumerate(columns.device):
            elements = columns.items[tile] * self._elements(gemm, side, tile)
            if elements:
                found[device] += elements * operand_of(gemm, side).bits / 8
        return found


def _turned(box: Box, turned: bool) -> Box:
    return (*box[2:], *box[:2]) if turned else box


def _overlap(one: Box, two: Box) -> tuple[int, int]:
    """Rows and columns that two boxes share; (0, 0) where they share nothing."""
    rows = min(one[1], two[1]) - max(one[0], two[0])
    columns = min(one[3], two[3]) - max(one[2], two[2])
    return (rows, columns) if rows > 0 and columns > 0 else (0, 0)


def _area(shared: tuple[int, int]) -> int:
    return shared[0] * shared[1]
