"""One level while devices come, go and become slow: what was lost is noticed, cut anew over the others, and computed.

Each device computes its tiles one after the other, at planned pacing. When it is gone, tiles that it had not sent back are lost;
the server notices some time later (at once if it said that it leaves), spends ``REPLAN_S`` on cutting them anew
(:mod:`cleave_plan.planning.recut`, as a run does), and the takers compute their pieces after what else they have. A device
that is not done after ``PATIENCE`` times the level's time is no longer waited for: its tiles are cut anew too. The level ends
when nothing is missing. The servers' own time is the plan's; pieces are not charged to their links.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import BOX, Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.planning.recut import recut
from cleave_plan.simulation.crowd import Crowd, Floats
from cleave_plan.simulation.dispatch import PATIENCE
from cleave_plan.workload.gemm import Gemm

REPLAN_S = 0.02
"""Seconds until lost tiles of a level are cut anew (benchmarks/replanning.py: 15 ms at 1,000 devices)."""

Box = tuple[int, ...]
Columns = Callable[[DType], DeviceColumns]
"""The figures of all rows for an element type, as the server knows them."""


@dataclass(slots=True, kw_only=True)
class Task:
    """A tile of the level's product ``part`` on a row: its box, its seconds at factor 1."""

    part: int
    box: Box
    seconds: float


def tasks_of(part: int, tiles: Tiles, seconds: Floats) -> list[Task]:
    """A task for each of ``tiles``, which take ``seconds`` at factor 1."""
    boxes = np.stack([tiles.column(name) for name in BOX], axis=1).tolist()
    return [Task(part=part, box=tuple(box), seconds=s) for box, s in zip(boxes, seconds.tolist(), strict=True)]


@dataclass(slots=True, kw_only=True)
class Losses:
    """What a level lost: ``tiles``, ``pieces`` in their place, FLOP of ``redone`` work, and FLOP ``missing`` (0 at its end)."""

    tiles: int = 0
    pieces: int = 0
    redone: float = 0.0
    missing: float = 0.0


@dataclass(kw_only=True)
class Disturbed:
    """A level from ``start_s`` on. ``busy_s``: seconds of what each row has to do at factor 1, and ``tasks_of`` what that is, in
    order; ``servers_s``: when the servers are done, and ``planned_s`` how long the level should take, from its start."""

    crowd: Crowd
    parts: Sequence[Gemm]
    columns: Columns
    start_s: float
    servers_s: float
    planned_s: float
    busy_s: Floats
    tasks_of: Callable[[int], list[Task]]
    losses: Losses = field(default_factory=Losses)
    result: list[tuple[int, Box]] | None = None
    _done: Floats = field(init=False)
    _work: dict[int, list[tuple[float, Task]]] = field(default_factory=dict)
    _pending: list[tuple[float, int, int, list[Task]]] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        crowd, given = self.crowd, self.busy_s > 0
        self._done = np.where(given, self.start_s + self.busy_s * crowd.factor, 0.0)
        for row in np.flatnonzero(given & ~crowd.alive).tolist():
            self.lose(row, max(self.start_s, float(crowd.noticed_s[row])), self.start_s)
        for row in np.flatnonzero(given & crowd.alive & (crowd.factor > crowd.seen)).tolist():
            self._watch(row, self.start_s)

    @property
    def end_s(self) -> float:
        """When the level ends, as far as is known."""
        return max(self.start_s + self.servers_s, float(self._done.max(initial=0.0)))

    @property
    def next_s(self) -> float:
        """When the server notices the next loss; infinite when there is none."""
        return self._pending[0][0] if self._pending else np.inf

    def lose(self, row: int, noticed_s: float, now_s: float) -> None:
        """Whatever ``row`` has not finished by ``now_s`` is gone; the server notices at ``noticed_s``."""
        if self._entry(row) <= now_s:
            return
        gone = self._left(row, now_s)
        self._put(noticed_s, row, gone)

    def slow(self, row: int, factor: float, now_s: float) -> None:
        """From ``now_s`` on ``row`` takes ``factor`` times as long."""
        if self._entry(row) <= now_s:
            return
        work = self._of(row, self.crowd.factor[row] / factor)
        self._work[row] = [(end if end <= now_s else now_s + (end - now_s) * factor, task) for end, task in work]
        self._done[row] = now_s + (self._done[row] - now_s) * factor
        self._watch(row, now_s)

    def notice(self) -> None:
        """The server notices the next loss and has it cut anew; ``forget`` the row is the caller's."""
        when, _, row, tasks = heapq.heappop(self._pending)
        if self.crowd.alive[row]:  # late, not lost: its first answers count, the rest is not waited for
            tasks = self._left(row, when)
            self.crowd.seen[row] = self.crowd.factor[row]
            self.losses.missing += self._flop(tasks)
        else:
            self.crowd.forget(row)
        self.losses.tiles += len(tasks)
        self._cut_anew(tasks, when)

    def finish(self) -> None:
        """The level is over: what was computed goes to ``result``, if it is asked for."""
        if self.result is not None:
            rows = {*np.flatnonzero(self.busy_s > 0).tolist(), *self._work}
            self.result += [(task.part, task.box) for row in sorted(rows) for _, task in self._of(row, 1.0)]

    def _entry(self, row: int) -> float:
        """When ``row`` is done with what it has; rows that came in since the level began have nothing."""
        if len(self._done) < len(self.crowd):
            more = np.zeros(len(self.crowd) - len(self._done))
            self._done, self.busy_s = np.concatenate([self._done, more]), np.concatenate([self.busy_s, more])
        return float(self._done[row])

    def _of(self, row: int, factor: float) -> list[tuple[float, Task]]:
        """What ``row`` does and when each tile is done; ``factor``: its own, where nothing has happened to it so far."""
        if row not in self._work:
            now, work = self.start_s, []
            for task in self.tasks_of(row) if self.busy_s[row] > 0 else ():
                now += task.seconds * factor
                work.append((now, task))
            self._work[row] = work
        return self._work[row]

    def _left(self, row: int, now_s: float) -> list[Task]:
        """Take away from ``row`` what it has not done by ``now_s``."""
        work = self._of(row, float(self.crowd.factor[row]))
        self._work[row] = [(end, task) for end, task in work if end <= now_s]
        self._done[row] = min(self._done[row], now_s)
        return [task for end, task in work if end > now_s]

    def _watch(self, row: int, now_s: float) -> None:
        """A row that takes longer than the server knows is not waited for beyond its patience."""
        deadline = max(self.start_s + PATIENCE * self.planned_s, now_s)
        if self.crowd.factor[row] > self.crowd.seen[row] and self._done[row] > deadline:
            self._push(deadline, row, [])

    def _put(self, when_s: float, row: int, tasks: list[Task]) -> None:
        self.losses.missing += self._flop(tasks)
        self._push(when_s, row, tasks)

    def _push(self, when_s: float, row: int, tasks: list[Task]) -> None:
        self._number += 1
        heapq.heappush(self._pending, (when_s, self._number, row, tasks))

    def _flop(self, tasks: Sequence[Task]) -> float:
        """Multiply-adds of the boxes, whole numbers."""
        return float(sum(np.prod([task.box[i + 1] - task.box[i] for i in (0, 2, 4, 6)], dtype=float) for task in tasks))

    def _cut_anew(self, tasks: list[Task], now_s: float) -> None:
        """Give ``tasks`` to whom the server counts on, each busy with what he has."""
        crowd = self.crowd
        busy = np.where(crowd.used & crowd.known, 0.0, np.inf)
        self._entry(0)
        busy += np.maximum(self._done - now_s, 0.0)
        for part in sorted({task.part for task in tasks}):
            mine, gemm = [task for task in tasks if task.part == part], self.parts[part]
            columns = self.columns(gemm.dtype)
            found = recut(gemm, Tiles.of((0, *task.box) for task in mine), columns, busy, horizon_s=max(self.end_s - now_s, 0.0))
            if found.left:
                raise InfeasibleError(
                    f"no device that is there can take {len(found.left)} tiles of lost ones", where=f"GEMM {gemm.name}",
                    facts={"gemm": gemm.name, "unit": "tile", "left": len(found.left)}, remedy="plan for a fleet with a reserve",
                )  # fmt: skip
            self._take(part, gemm, found.tiles, columns, now_s + REPLAN_S)
            busy = found.busy_s

    def _take(self, part: int, gemm: Gemm, pieces: Tiles, columns: DeviceColumns, now_s: float) -> None:
        seconds = price(gemm, pieces, columns).executed_s / self.crowd.seen[pieces.device]
        for row, task in zip(pieces.device.tolist(), tasks_of(part, pieces, seconds), strict=True):
            self.losses.pieces += 1
            flop = self._flop([task])
            self.losses.missing, self.losses.redone = self.losses.missing - flop, self.losses.redone + flop
            if not self.crowd.alive[row]:  # gone, but nobody knows yet
                self._put(max(now_s, float(self.crowd.noticed_s[row])), row, [task])
                continue
            factor = float(self.crowd.factor[row])
            work, end = self._of(row, factor), max(float(self._done[row]), now_s) + task.seconds * factor
            work.append((end, task))
            self._done[row] = end
