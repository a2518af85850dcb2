"""Tiles of seats that nobody sits on, cut over those who are there: once for each kind of level, until a taker is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cleave_plan.cost.tile import price
from cleave_plan.planning.recut import recut
from cleave_plan.simulation.crowd import Columns, Crowd, Floats, Ints
from cleave_plan.simulation.effort import nobody_can
from cleave_plan.simulation.seatwork import SeatWork
from cleave_plan.simulation.task import Task, tasks_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cover:
    """An empty seat's tiles on others: rows, who was born there, and each row's task."""

    rows: Ints
    born: Ints
    tasks: tuple[Task, ...]


class Covers:
    """The covers of ``kinds`` of levels by the rows of ``crowd``, whose figures are ``columns``."""

    def __init__(self, crowd: Crowd, kinds: Sequence[SeatWork], columns: Columns) -> None:
        self._crowd, self._kinds, self._columns = crowd, kinds, columns
        self._known: dict[tuple[int, int], Cover] = {}

    def over(self, number: int, empty: Sequence[int], busy: Floats) -> list[Cover]:
        """The tiles of ``empty`` seats in a level of kind ``number`` over others, as they were cut before where all who took them
        are still there; counts their seconds (at factor 1) into ``busy``. Raises InfeasibleError when nobody can take a tile."""
        crowd = self._crowd
        covers, new = [], []
        for seat in empty:
            known = self._known.get((number, seat))
            if known is None or not (crowd.known[known.rows] & (crowd.born[known.rows] == known.born)).all():
                new.append(seat)
                continue
            covers.append(known)
            np.add.at(busy, known.rows, [task.seconds for task in known.tasks])
        for seat in new:
            cover = self._known[number, seat] = self._cover(number, seat, busy)
            covers.append(cover)
            np.add.at(busy, cover.rows, [task.seconds for task in cover.tasks])
        return covers

    def _cover(self, number: int, seat: int, busy_s: Floats) -> Cover:
        """An empty seat's tiles cut over the others, who are ``busy_s`` (at factor 1) with what else they have."""
        crowd, kind = self._crowd, self._kinds[number]
        busy = np.where(crowd.used & crowd.known, busy_s, np.inf)
        tasks: list[Task] = []
        rows: list[int] = []
        for part, gemm in enumerate(kind.parts):
            columns = self._columns(gemm.dtype)
            found = recut(gemm, kind.of_seat(part, seat), columns, busy)
            if found.left:
                raise nobody_can(gemm, len(found.left), "one that is gone")
            rows += found.tiles.device.tolist()
            tasks += tasks_of(part, found.tiles, price(gemm, found.tiles, columns).executed_s)
            busy = found.busy_s
        at = np.array(rows, dtype=np.int64)
        return Cover(rows=at, born=crowd.born[at].copy(), tasks=tuple(tasks))
