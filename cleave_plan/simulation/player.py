"""The clock of batches during which devices come and go: operators, levels, and what is settled between them.

Between levels (never inside one) the server settles what has changed since the last time; a level in which nothing happens, and
nothing is late, just takes its time; any other is played (:mod:`~cleave_plan.simulation.disturbed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cleave_plan.chronicle import BATCHES, LEVELS, OPERATORS, RECOVERIES, SETTLED, Chronicle
from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.lateness import GRACE_S
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Plan
from cleave_plan.simulation.attendance import Attendance
from cleave_plan.simulation.churnrun import ChurnRun, Tally
from cleave_plan.simulation.covers import Cover, Covers
from cleave_plan.simulation.crowd import NOBODY, Crowd, Floats
from cleave_plan.simulation.disturbed import Disturbed
from cleave_plan.simulation.due import expected
from cleave_plan.simulation.effort import Effort
from cleave_plan.simulation.seats import Seats
from cleave_plan.simulation.seatwork import SeatWork
from cleave_plan.simulation.task import Box, Task
from cleave_plan.simulation.work import plan_work
from cleave_plan.workload.graph import Workload


def _forgetful(plan: Plan) -> Plan:
    """``plan`` with devices that keep nothing."""
    nothing = np.empty(0, dtype=np.int64)
    return replace(plan, assignments=tuple(replace(one, held_a=nothing, held_b=nothing) for one in plan.assignments))


class Player:
    """``now_s`` of virtual time; ``kinds`` of levels, the ``crowd`` and its ``attendance``; ``planned_batch_s`` without churn.

    ``result``: where each tile that was computed in a level is put, if that is asked for. ``upcoming``: the next event.
    """

    def __init__(
        self, plan: Plan, workload: Workload, fleet: Fleet, events: Iterable[Event], detect_s: float, gain: float,
        grace_s: float = GRACE_S, chronicle: Chronicle | None = None,
    ) -> None:  # fmt: skip
        plan = _forgetful(plan)
        laid = plan_work(plan, workload, fleet)
        view, assignments = products_of(workload, plan.assignments)
        owner = {name: assignment for assignment in assignments for name in assignment.gemms}
        products = {gemm.name: gemm for gemm in view.workload.gemms}
        self.kinds = [SeatWork(work, products, owner, fleet) for work in laid.kinds]
        self._kind_of, self._operators_s = laid.kind_of.tolist(), laid.operators_s.tolist()
        self._fleet, self._gain, self._grace_s = fleet, gain, grace_s
        self._figures: dict[DType, DeviceColumns] = {}
        self.crowd = Crowd([device.name for device in fleet.devices])
        planned = np.array([kind.planned_s for kind in self.kinds])
        self._seats = Seats(self.crowd, self.kinds, np.bincount(laid.kind_of, minlength=len(planned)))
        self._covers = Covers(self.crowd, self.kinds, self._columns)
        places = {device.name: place for place, device in enumerate(fleet.devices)}
        self.attendance = Attendance(self.crowd, self._seats, places, detect_s)
        self._effort = Effort(len(fleet.devices))
        self._chronicle = chronicle or Chronicle(0)
        self._events: Iterator[Event] = iter(events)
        self.upcoming = next(self._events, None)
        self._tally = Tally()
        self.now_s = 0.0
        self.planned_batch_s = float(planned[laid.kind_of].sum()) + sum(self._operators_s)
        self.result: list[tuple[int, Box]] | None = None

    def batch(self, level_done: Callable[[float], None] = lambda share: None, number: int = 0) -> float:
        """The batch of that ``number``; its seconds. ``level_done`` is told the share of its levels that are done."""
        begun, levels = self.now_s, len(self._kind_of)
        for place, kind in enumerate(self._kind_of):
            self._effort.begin(f"level {place}", self.now_s, self.kinds[kind].planned_s)
            self.rest(self._operators_s[place])
            level_s = self.now_s
            self._level(kind)
            self._chronicle.add(LEVELS, f"level {place}", level_s, self.now_s, batch=number, GEMMs=self.kinds[kind].name)
            level_done((place + 1) / levels)
        self._effort.begin("the end of the batch", self.now_s, self._operators_s[levels])
        self.rest(self._operators_s[levels])
        self._chronicle.add(BATCHES, f"batch {number}", begun, self.now_s)
        return self.now_s - begun

    def told(self, batch_s: tuple[float, ...]) -> ChurnRun:
        """All counts."""
        return self._tally.told(batch_s, self.planned_batch_s, moves=self._seats.moves, excluded=self.attendance.given_up)

    def _columns(self, dtype: DType) -> DeviceColumns:
        if dtype not in self._figures:
            self._figures[dtype] = device_columns(self._fleet.devices, dtype)
        return self.crowd.columns(self._figures[dtype])

    # ------------------------------------------------------------------------------------------------- between levels

    def rest(self, seconds: float) -> None:
        """Time in which no device works."""
        begun_s = self.now_s
        self._until(begun_s + seconds)
        if seconds:
            self._chronicle.add(OPERATORS, "operators", begun_s, self.now_s)

    def _until(self, end_s: float) -> None:
        """No device works until then; what has changed is settled."""
        while self.upcoming is not None and self.upcoming.time_s <= end_s:
            self._happen(self.upcoming, None)
        self.now_s = end_s
        self.attendance.notice(self.now_s)
        if self.attendance.changed:
            self.attendance.changed = False
            self._tally.settled += 1
            moves = self._seats.settle(self._gain)
            self._chronicle.add(SETTLED, "settled", self.now_s, moves=moves, empty=len(self._seats.empty))

    def _wait(self) -> bool:
        """Nobody works until a device joins; False when none does any more."""
        begun_s = self.now_s
        while self.upcoming is not None:
            event = self.upcoming
            self._until(max(event.time_s, self.now_s))
            if event.change is Change.JOIN:
                self._tally.waited_s += self.now_s - begun_s
                return True
        return False

    def _happen(self, event: Event, level: Disturbed | None) -> None:
        """The next event, inside a level or between two."""
        self.upcoming = next(self._events, None)
        self._tally.events[event.change] += 1
        self._effort.change(event.time_s, self.crowd.unnoticed)
        self._chronicle.add(str(event.change), event.device, event.time_s)
        self.attendance.happen(event, level)

    # ----------------------------------------------------------------------------------------------------- one level

    def _level(self, number: int) -> None:
        kind, crowd = self.kinds[number], self.crowd
        busy, empty, covers = self._given(number)
        done, due = expected(crowd, self.now_s, busy, self._grace_s)
        end = max(self.now_s + kind.servers_s, float(done.max(initial=0.0)))
        self._tally.level(kind.macs, len(empty))
        calm = self.upcoming is None or self.upcoming.time_s > end
        if calm and self.result is None and not (done > due).any() and bool(crowd.alive[busy > 0].all()):
            self.now_s = end
            return
        self._disturbed(number, busy, covers)

    def _given(self, number: int) -> tuple[Floats, list[int], list[Cover]]:
        """What each row has to do in a level of kind ``number`` (seconds at factor 1), the empty seats, their covers: as soon as
        there is somebody for them."""
        while True:
            seats, busy = self._seats, np.zeros(len(self.crowd))
            held = np.flatnonzero((seats.holder >= 0) & (seats.taken_s[number] > 0))
            busy[seats.holder[held]] = seats.taken_s[number, held]
            empty = seats.empty.tolist()
            try:
                return busy, empty, self._covers.over(number, empty, busy)
            except InfeasibleError:
                if not self._wait():
                    raise

    def _disturbed(self, number: int, busy: Floats, covers: Sequence[Cover]) -> None:
        kind, crowd, seat_of = self.kinds[number], self.crowd, self._seats.seat_of.tolist()

        def tasks_on(row: int) -> list[Task]:
            own = [] if row >= len(seat_of) or seat_of[row] == NOBODY else kind.tasks(seat_of[row], int(crowd.like[row]))
            taken = (cover.tasks[place] for cover in covers for place in np.flatnonzero(cover.rows == row).tolist())
            return [*own, *taken]

        level = Disturbed(
            crowd=crowd, parts=kind.parts, columns=self._columns, start_s=self.now_s, servers_s=kind.servers_s,
            busy_s=busy, tasks_of=tasks_on, result=self.result, grace_s=self._grace_s,
            effort=self._effort,
        )  # fmt: skip
        self._play(level)
        self.now_s = level.end_s
        level.finish()
        if level.losses.tiles:
            figures = {"tiles": level.losses.tiles, "pieces": level.losses.pieces, "multiply-adds": level.losses.redone}
            self._chronicle.add(RECOVERIES, "lost or late tiles", level.noticed_s, max(self.now_s, level.noticed_s), **figures)
        self.attendance.excuse(busy, level.late, self.now_s)
        self.attendance.changed = True
        self._tally.disturbed(level.losses, level.waited_s)

    def _play(self, level: Disturbed) -> None:
        """Events and what the server notices, in order, until the ``level`` is over."""
        while level.unsettled or (self.upcoming is not None and self.upcoming.time_s <= level.end_s):
            event_s = np.inf if self.upcoming is None else self.upcoming.time_s
            if level.next_s < np.inf and level.next_s <= event_s:
                level.notice()
            elif self.upcoming is not None:
                self._happen(self.upcoming, level)
            else:
                raise level.nobody()
