"""One level while devices come, go and become slow: what was lost is noticed, cut anew over the others, and computed.

Each device computes its tiles one after the other, at planned pacing. When it is gone, tiles that it had not sent back are lost;
the server notices some time later (at once if it said that it leaves), spends ``REPLAN_S`` on cutting them anew
(:mod:`cleave_plan.planning.recut`, as a run does), and the takers compute their pieces after what else they have.

What nobody who is there can take waits for the next device that joins.

A device that is slow, or does nothing without being gone, is late as in a run (:mod:`cleave_plan.cost.lateness`, by the least
spread that a run assumes). When it is, devices that have nothing to do are given copies of its tiles, whole; the first answer
counts, and who is late goes on with what others have done by then, in the next level too. After ``PATIENCE`` levels running it
is excluded.

The level ends when nothing is missing. The servers' own time is the plan's; pieces and copies are not charged to their links,
and whoever is given a copy is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.lateness import GRACE_S, level_factor, margin
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.planning.recut import recut
from cleave_plan.simulation.crowd import Crowd, Floats
from cleave_plan.simulation.effort import Effort, nobody_can
from cleave_plan.simulation.task import Box, Task, tasks_of
from cleave_plan.workload.gemm import Gemm

REPLAN_S = 0.02
"""Seconds until lost tiles of a level are cut anew (benchmarks/replanning.py: 15 ms at 1,000 devices)."""

MARGIN = margin()

Columns = Callable[[DType], DeviceColumns]
"""The figures of all rows for an element type, as the server knows them."""

Seconds = TypeVar("Seconds", float, Floats)
"""Of one row, or of all of them."""


def due(sent_s: float, seconds: Seconds, grace_s: float, level: float = 1.0) -> Seconds:
    """When work of ``seconds`` (at factor 1) that was sent at ``sent_s`` is late; ``level``: the factor of its level."""
    return sent_s + level * MARGIN * seconds + grace_s


def expected(crowd: Crowd, start_s: float, busy_s: Floats, grace_s: float) -> tuple[Floats, Floats]:
    """When each row will be done with ``busy_s`` seconds (at factor 1) of work sent at ``start_s``, and when it is late; 0 for
    those that have none."""
    given = busy_s > 0
    done = np.where(given, np.maximum(start_s, crowd.until_s) + busy_s * crowd.factor, 0.0)
    return done, np.where(given, due(start_s, busy_s, grace_s), 0.0)


@dataclass(slots=True, kw_only=True)
class Losses:
    """What a level lost or had late: ``tiles``, ``pieces`` in their place, multiply-adds of ``redone`` work, and of what is
    ``missing`` (0 at its end)."""

    tiles: int = 0
    pieces: int = 0
    redone: float = 0.0
    missing: float = 0.0


@dataclass(kw_only=True)
class Disturbed:
    """A level from ``start_s`` on. ``busy_s``: seconds of what each row has to do at factor 1, and ``tasks_of`` what that is, in
    order; ``servers_s``: how long after its start the servers are done. ``late``: rows that others had to help; ``waited_s``: how
    long tiles waited for somebody who could take them; ``noticed_s``: when the first loss or lateness was noticed.
    Raises InfeasibleError when too much is lost (``effort``)."""

    crowd: Crowd
    parts: Sequence[Gemm]
    columns: Columns
    start_s: float
    servers_s: float
    busy_s: Floats
    tasks_of: Callable[[int], list[Task]]
    effort: Effort
    losses: Losses = field(default_factory=Losses)
    result: list[tuple[int, Box]] | None = None
    grace_s: float = GRACE_S
    late: set[int] = field(default_factory=set)
    waited_s: float = 0.0
    noticed_s: float = np.inf
    _done: Floats = field(init=False)
    _sent_s: Floats = field(init=False)
    _load_s: Floats = field(init=False)
    _work: dict[int, list[tuple[float, Task]]] = field(default_factory=dict)
    _pending: list[tuple[float, int, int, list[Task]]] = field(default_factory=list)
    _lost: dict[int, tuple[float, list[Task]]] = field(default_factory=dict)
    _waiting: list[Task] = field(default_factory=list)
    _waiting_s: float = 0.0
    _number: int = 0

    def __post_init__(self) -> None:
        crowd, given = self.crowd, self.busy_s > 0
        self._done, due_s = expected(crowd, self.start_s, self.busy_s, self.grace_s)
        self._sent_s, self._load_s = np.full(len(given), self.start_s), self.busy_s.copy()
        for row in np.flatnonzero(given & ~crowd.alive).tolist():
            self.lose(row, max(self.start_s, float(crowd.noticed_s[row])), self.start_s)
        for row in np.flatnonzero(given & crowd.alive & (self._done > due_s)).tolist():
            self._watch(row, self.start_s)

    @property
    def end_s(self) -> float:
        """When the level ends, as far as is known."""
        return max(self.start_s + self.servers_s, float(self._done.max(initial=0.0)))

    @property
    def next_s(self) -> float:
        """When the server notices the next loss; infinite when there is none."""
        return self._pending[0][0] if self._pending else np.inf

    @property
    def unsettled(self) -> bool:
        """Whether something is still to be noticed, or to be given to somebody."""
        return bool(self._pending or self._waiting)

    def nobody(self) -> InfeasibleError:
        """What to say when nobody comes any more who could take what waits."""
        return nobody_can(self.parts[self._waiting[0].part], len(self._waiting), "lost ones")

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

    def joined(self, now_s: float) -> None:
        """Somebody has come: what waits for that is cut anew, and devices that are late and without help are looked at again."""
        self._entry(0)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self.waited_s += now_s - self._waiting_s
            self._cut_anew(waiting, now_s)
        owing = self.crowd.alive & (self._done > now_s)
        for row in np.flatnonzero(owing & (due(0.0, self._load_s, self.grace_s) <= now_s - self._sent_s)).tolist():
            self._push(now_s, row, [])

    def notice(self) -> None:
        """The server notices the next loss and has it cut anew (``forget`` is the caller's), or that a device is late."""
        when, _, row, tasks = heapq.heappop(self._pending)
        self.noticed_s = min(self.noticed_s, when)
        if self.crowd.alive[row]:
            self._late(row, when)
            return
        self.crowd.forget(row)
        self._lost.pop(row, None)
        self.losses.tiles += len(tasks)
        self.effort.loss(len(tasks), when)
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
            for name in ("_done", "_sent_s", "_load_s", "busy_s"):
                setattr(self, name, np.concatenate([getattr(self, name), more]))
        return float(self._done[row])

    def _of(self, row: int, factor: float) -> list[tuple[float, Task]]:
        """What ``row`` does and when each tile is done; ``factor``: its own, where nothing has happened to it so far."""
        if row not in self._work:
            now, work = max(self.start_s, float(self.crowd.until_s[row])), []
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

    def _due_now(self, row: int, now_s: float) -> float:
        """When ``row`` is late, by what the level takes those who are done by ``now_s``."""
        given = (self._load_s > 0) & self.crowd.known[: len(self._load_s)]
        done = given & (self._done <= now_s) & (self._done > self._sent_s)
        done[[*self.late, *self._lost]] = False  # others were in their place, or nobody was
        offs = np.log((self._done[done] - self._sent_s[done]) / self._load_s[done])
        factor = level_factor(offs.tolist(), int(np.count_nonzero(given)))
        return due(float(self._sent_s[row]), float(self._load_s[row]), self.grace_s, factor or 1.0)

    def _watch(self, row: int, now_s: float) -> None:
        """A row that will not be done when it is due is late then."""
        due_s = due(float(self._sent_s[row]), float(self._load_s[row]), self.grace_s)
        if row not in self.late and self._done[row] > due_s:
            self._push(max(due_s, now_s), row, [])

    def _late(self, row: int, now_s: float) -> None:
        """What ``row`` owes at ``now_s`` is given to idle rows, too, as soon as there are any; the first answer counts."""
        if row in self.late or self._entry(row) <= now_s:
            return
        due_s = self._due_now(row, now_s)
        if now_s < due_s:  # it was sent more since, or the level takes most devices longer
            self._push(due_s, row, [])
            return
        crowd = self.crowd
        able = np.flatnonzero(crowd.used & crowd.known & crowd.alive & (np.arange(len(crowd)) != row))
        free_s = np.maximum(self._done[able], crowd.until_s[able])
        idle = able[free_s <= now_s].tolist()
        if not idle:
            if len(able):
                self._push(float(free_s.min()), row, [])
            return
        self.late.add(row)
        work = self._of(row, float(crowd.factor[row]))
        owed = [(end, task) for end, task in work if end > now_s]
        kept = [*((end, task) for end, task in work if end <= now_s), *self._copied(owed, idle, now_s)]
        self._work[row] = kept
        self._done[row] = max((end for end, _ in kept), default=now_s)
        crowd.until_s[row] = max(end for end, _ in owed)

    def _copied(self, owed: Sequence[tuple[float, Task]], idle: Sequence[int], now_s: float) -> list[tuple[float, Task]]:
        """Copies of ``owed`` tiles, with when they will be there, go to the ``idle`` row with the least of them each; those that
        the copies will not be faster with."""
        crowd, kept = self.crowd, []
        load, sent_s, end_s = dict.fromkeys(idle, 0.0), dict.fromkeys(idle, 0.0), dict.fromkeys(idle, now_s)
        given: dict[int, list[tuple[float, float, Task]]] = {}
        for own_s, task in owed:
            row, gemm = min(load, key=lambda one: load[one]), self.parts[task.part]
            macs = task.macs
            copy = Tiles.of([(row, *task.box)])
            seconds = float(price(gemm, copy, self.columns(gemm.dtype)).executed_s[0])
            load[row], sent_s[row] = load[row] + macs, sent_s[row] + seconds
            end_s[row] += seconds * float(crowd.factor[row])
            given.setdefault(row, []).append((own_s, end_s[row], replace(task, seconds=seconds)))
            self.losses.tiles, self.losses.pieces = self.losses.tiles + 1, self.losses.pieces + 1
            self.losses.redone += macs
        for row, copies in given.items():
            due_s = due(now_s, sent_s[row], self.grace_s)
            mine = self._of(row, float(crowd.factor[row]))
            for own_s, copy_s, task in copies:
                if own_s <= min(copy_s, due_s):
                    kept.append((own_s, task))
                else:
                    mine.append((copy_s, task))
                    self._done[row] = max(self._done[row], copy_s)
            self._sent_s[row], self._load_s[row] = now_s, sent_s[row]
            self._watch(row, now_s)
        return kept

    def _put(self, when_s: float, row: int, tasks: list[Task]) -> None:
        """``row`` has lost ``tasks``, which the server will notice at ``when_s``: all that it has by then at once."""
        self.losses.missing += self._macs(tasks)
        noticed_s, lost = self._lost.get(row, (when_s, []))
        if lost and noticed_s == when_s:
            lost += tasks
            return
        lost = list(tasks)
        self._lost[row] = when_s, lost
        self._push(when_s, row, lost)

    def _push(self, when_s: float, row: int, tasks: list[Task]) -> None:
        self._number += 1
        heapq.heappush(self._pending, (when_s, self._number, row, tasks))

    @staticmethod
    def _macs(tasks: Sequence[Task]) -> float:
        return sum(task.macs for task in tasks)

    def _cut_anew(self, tasks: list[Task], now_s: float) -> None:
        """Give ``tasks`` to whom the server counts on, each busy with what he has; what nobody can take waits."""
        crowd = self.crowd
        busy = np.where(crowd.used & crowd.known, 0.0, np.inf)
        self._entry(0)
        busy += np.maximum(np.maximum(self._done, crowd.until_s) - now_s, 0.0)
        for part in sorted({task.part for task in tasks}):
            mine, gemm = [task for task in tasks if task.part == part], self.parts[part]
            columns = self.columns(gemm.dtype)
            horizon_s = max(self.end_s - now_s, REPLAN_S)  # cutting finer what is done so soon gains nothing
            found = recut(gemm, Tiles.of((0, *task.box) for task in mine), columns, busy, horizon_s=horizon_s)
            if found.left:
                self._waiting_s = self._waiting_s if self._waiting else now_s
                self._waiting += [mine[place] for place in found.left]
            self._take(part, gemm, found.tiles, columns, now_s + REPLAN_S)
            busy = found.busy_s

    def _take(self, part: int, gemm: Gemm, pieces: Tiles, columns: DeviceColumns, now_s: float) -> None:
        seconds = price(gemm, pieces, columns).executed_s
        for row, task in zip(pieces.device.tolist(), tasks_of(part, pieces, seconds), strict=True):
            self.losses.pieces += 1
            macs = task.macs
            self.losses.missing, self.losses.redone = self.losses.missing - macs, self.losses.redone + macs
            if not self.crowd.alive[row]:  # gone, but nobody knows yet
                self._put(max(now_s, float(self.crowd.noticed_s[row])), row, [task])
                continue
            factor = float(self.crowd.factor[row])
            work, end = self._of(row, factor), max(float(self._done[row]), now_s) + task.seconds * factor
            work.append((end, task))
            self._done[row] = end
            self._sent_s[row], self._load_s[row] = now_s, (end - now_s) / factor
            self._watch(row, now_s)
