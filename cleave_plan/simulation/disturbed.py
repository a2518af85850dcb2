"""One level while devices come, go and become slow: what was lost is noticed, cut anew over the others, and computed.

Each device computes its tiles one after the other, at planned pacing. When it is gone, tiles that it had not sent back are lost;
the server notices some time later (at once if it said that it leaves), spends ``REPLAN_S`` on cutting them anew
(:mod:`cleave_plan.planning.recut`, as a run does), and the takers compute their pieces after what else they have.

What nobody who is there can take waits for the next device that joins.

A device that is slow, or does nothing without being gone, is late and helped (:mod:`cleave_plan.simulation.latecomers`).

The level ends when nothing is missing. The servers' own time is the plan's; pieces and copies are not charged to their links,
and whoever is given a copy is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.lateness import GRACE_S
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.errors import InfeasibleError
from cleave_plan.planning.recut import recut
from cleave_plan.simulation.crowd import Columns, Crowd, Floats
from cleave_plan.simulation.effort import Effort, nobody_can
from cleave_plan.simulation.inhand import InHand
from cleave_plan.simulation.latecomers import Latecomers
from cleave_plan.simulation.losses import Losses
from cleave_plan.simulation.notices import Notices
from cleave_plan.simulation.task import Box, Task, tasks_of
from cleave_plan.workload.gemm import Gemm

REPLAN_S = 0.02
"""Seconds until lost tiles of a level are cut anew (benchmarks/replanning.py: 15 ms at 1,000 devices)."""


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
    waited_s: float = 0.0
    noticed_s: float = np.inf
    _hand: InHand = field(init=False)
    _late: Latecomers = field(init=False)
    _notices: Notices = field(default_factory=Notices)
    _waiting: list[Task] = field(default_factory=list)
    _waiting_s: float = 0.0

    def __post_init__(self) -> None:
        self._hand = InHand(self.crowd, self.start_s, self.busy_s, self.tasks_of, self.grace_s)
        self._late = Latecomers(
            crowd=self.crowd, parts=self.parts, columns=self.columns, grace_s=self.grace_s, hand=self._hand,
            notices=self._notices, losses=self.losses,
        )  # fmt: skip
        for row in self._hand.gone:
            self.lose(row, max(self.start_s, float(self.crowd.noticed_s[row])), self.start_s)
        for row in self._hand.behind:
            self._late.watch(row, self.start_s)

    @property
    def end_s(self) -> float:
        """When the level ends, as far as is known."""
        return max(self.start_s + self.servers_s, float(self._hand.done_s.max(initial=0.0)))

    @property
    def next_s(self) -> float:
        """When the server notices the next loss; infinite when there is none."""
        return self._notices.next_s

    @property
    def unsettled(self) -> bool:
        """Whether something is still to be noticed, or to be given to somebody."""
        return bool(self._notices or self._waiting)

    @property
    def late(self) -> set[int]:
        """Rows that others had to help."""
        return self._late.helped

    def nobody(self) -> InfeasibleError:
        """What to say when nobody comes any more who could take what waits."""
        return nobody_can(self.parts[self._waiting[0].part], len(self._waiting), "lost ones")

    def lose(self, row: int, noticed_s: float, now_s: float) -> None:
        """Whatever ``row`` has not finished by ``now_s`` is gone; the server notices at ``noticed_s``."""
        if self._hand.until(row) <= now_s:
            return
        self._lost(row, noticed_s, self._hand.take_back(row, now_s))

    def slow(self, row: int, factor: float, now_s: float) -> None:
        """From ``now_s`` on ``row`` takes ``factor`` times as long."""
        if self._hand.until(row) <= now_s:
            return
        self._hand.slow_down(row, factor, now_s)
        self._late.watch(row, now_s)

    def joined(self, now_s: float) -> None:
        """Somebody has come: what waits for that is cut anew, and devices that are late and without help are looked at again."""
        self._hand.fit()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self.waited_s += now_s - self._waiting_s
            self._cut_anew(waiting, now_s)
        self._late.joined(now_s)

    def notice(self) -> None:
        """The server notices the next loss and has it cut anew (``forget`` is the caller's), or that a device is late."""
        when, row, tasks = self._notices.pop()
        self.noticed_s = min(self.noticed_s, when)
        if self.crowd.alive[row]:
            self._late.look_at(row, when)
            return
        self.crowd.forget(row)
        self._notices.settle(row)
        self.losses.tiles += len(tasks)
        self.effort.loss(len(tasks), when)
        self._cut_anew(tasks, when)

    def finish(self) -> None:
        """The level is over: what was computed goes to ``result``, if it is asked for."""
        if self.result is not None:
            self.result += self._hand.computed()

    def _lost(self, row: int, when_s: float, tasks: list[Task]) -> None:
        """``row`` has lost ``tasks``, which the server will notice at ``when_s``."""
        self.losses.gone(tasks)
        self._notices.lose(row, when_s, tasks)

    def _cut_anew(self, tasks: list[Task], now_s: float) -> None:
        """Give ``tasks`` to whom the server counts on, each busy with what he has; what nobody can take waits."""
        crowd = self.crowd
        busy = np.where(crowd.used & crowd.known, 0.0, np.inf)
        busy += np.maximum(self._hand.free_s() - now_s, 0.0)
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
        """Each piece goes to its row."""
        seconds = price(gemm, pieces, columns).executed_s
        for row, task in zip(pieces.device.tolist(), tasks_of(part, pieces, seconds), strict=True):
            self.losses.given_out(task)
            if not self.crowd.alive[row]:  # gone, but nobody knows yet
                self._lost(row, max(now_s, float(self.crowd.noticed_s[row])), [task])
                continue
            self._hand.add(row, task, now_s)
            self._late.watch(row, now_s)
