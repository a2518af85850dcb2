r"""Batches of a plan in virtual time while devices come and go.

Levels follow one another, each a barrier (:mod:`~cleave_plan.simulation.disturbed`). Between levels (never inside one) the
server settles what has changed since: empty seats are given to devices that have none (:mod:`~cleave_plan.simulation.seats`); the
tiles of seats that stay empty are cut over the others for each kind of level, once, until one of the takers is gone. Where nobody
is there who could take what is to be done, everything waits for the next device that joins, as long as one does.

    efficiency = batches * seconds of a batch that the plan predicts / seconds that they took

What the plan predicts, with everyone there all the time, is the bound without churn. Devices keep nothing from level to level
here, even where the plan lets them (:mod:`~cleave_plan.plan.keeping`): who sits on a seat now was not sent it before. No
history is kept: memory does not grow with the time that is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.lateness import GRACE_S, PATIENCE
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import Progress, silent
from cleave_plan.simulation.chronicle import BATCHES, LEVELS, OPERATORS, RECOVERIES, SETTLED, Chronicle
from cleave_plan.simulation.covers import Cover, Covers
from cleave_plan.simulation.crowd import NOBODY, Crowd, Floats
from cleave_plan.simulation.disturbed import Disturbed, Losses, expected
from cleave_plan.simulation.effort import Effort
from cleave_plan.simulation.seats import Seats
from cleave_plan.simulation.seatwork import SeatWork
from cleave_plan.simulation.task import Box, Task
from cleave_plan.simulation.work import plan_work
from cleave_plan.workload.graph import Workload

DETECT_S = 1.0
"""Seconds without a heartbeat after which a device counts as lost (assumed)."""

GAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRun:
    """What happened. ``seconds`` of virtual time that the whole ``batch_s`` took; ``planned_batch_s``: without churn.

    ``events``: how many of each kind; ``tiles`` were lost or late and became ``pieces``; ``redone``: share of all multiply-adds
    that these were; ``settled``: how often seats were settled, and ``moves`` how often someone sat down; ``empty``: mean
    number of seats that nobody sat on; ``unfinished``: levels that ended with anything missing (there are none); ``excluded``:
    devices that were late in level after level; ``waited_s``: seconds in which tiles waited for somebody who could take them.
    """

    batch_s: tuple[float, ...]
    planned_batch_s: float
    events: dict[str, int]
    tiles: int
    pieces: int
    redone: float
    settled: int
    moves: int
    empty: float
    unfinished: int
    excluded: int
    waited_s: float

    @property
    def seconds(self) -> float:
        """Virtual seconds of all batches."""
        return sum(self.batch_s)

    @property
    def efficiency(self) -> float:
        """Share of the pace without churn that was kept."""
        return len(self.batch_s) * self.planned_batch_s / self.seconds if self.batch_s and self.seconds else 0.0


def churn(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    events: Iterable[Event],
    *,
    batches: int | None = None,
    duration_s: float | None = None,
    detect_s: float = DETECT_S,
    gain: float = GAIN,
    grace_s: float = GRACE_S,
    chronicle: Chronicle | None = None,
    progress: Progress = silent,
) -> ChurnRun:
    """Play ``batches`` whole batches, or as many as begin before ``duration_s``, while ``events`` happen.

    ``fleet`` has the plan's servers only; ``chronicle``: where to write down what happens. Raises InfeasibleError
    when nobody is left or joins who can take a tile, or a level does not end (:mod:`~cleave_plan.simulation.effort`), and as
    :func:`plan_work` does.
    """
    player = _Player(plan, workload, fleet, events, detect_s, gain, grace_s, chronicle)
    took: list[float] = []
    while (batches is None or len(took) < batches) and (duration_s is None or player.now_s < duration_s):

        def level_done(share: float) -> None:
            whole = (len(took) + share) / batches if batches else min(player.now_s / (duration_s or 1.0), 1.0)
            progress(round(1000 * whole), 1000, f"batch {len(took) + 1}")

        took.append(player.batch(level_done, len(took)))
    return player.told(tuple(took))


def _forgetful(plan: Plan) -> Plan:
    """``plan`` with devices that keep nothing."""
    nothing = np.empty(0, dtype=np.int64)
    return replace(plan, assignments=tuple(replace(one, held_a=nothing, held_b=nothing) for one in plan.assignments))


class _Player:
    """The crowd, the seats and the clock."""

    def __init__(
        self, plan: Plan, workload: Workload, fleet: Fleet, events: Iterable[Event], detect_s: float, gain: float,
        grace_s: float = GRACE_S, chronicle: Chronicle | None = None,
    ) -> None:  # fmt: skip
        self._chronicle = chronicle or Chronicle(0)
        plan = _forgetful(plan)
        laid = plan_work(plan, workload, fleet)
        view, assignments = products_of(workload, plan.assignments)
        owner = {name: assignment for assignment in assignments for name in assignment.gemms}
        products = {gemm.name: gemm for gemm in view.workload.gemms}
        self._kinds = [SeatWork(work, products, owner, fleet) for work in laid.kinds]
        self._kind_of, self._operators_s = laid.kind_of.tolist(), laid.operators_s.tolist()
        self._fleet, self._detect_s, self._gain, self._grace_s = fleet, detect_s, gain, grace_s
        self._place = {device.name: place for place, device in enumerate(fleet.devices)}
        self._figures: dict[DType, DeviceColumns] = {}
        self._crowd = Crowd([device.name for device in fleet.devices])
        planned = np.array([kind.planned_s for kind in self._kinds])
        self._seats = Seats(self._crowd, self._kinds, np.bincount(laid.kind_of, minlength=len(planned)))
        self._covers = Covers(self._crowd, self._kinds, self._columns)
        self._effort = Effort(len(fleet.devices))
        self._events: Iterator[Event] = iter(events)
        self._next = next(self._events, None)
        self._count: Counter[str] = Counter()
        self._gone: list[int] = []
        self._excluded: set[str] = set()
        self._given_up = 0
        self._changed = False
        self._total = Losses()
        self._macs = 0.0
        self._levels = self._settled = self._unfinished = 0
        self._empty = self._waited_s = 0.0
        self.now_s = 0.0
        self.planned_batch_s = float(planned[laid.kind_of].sum()) + sum(self._operators_s)
        self.result: list[tuple[int, Box]] | None = None

    def batch(self, level_done: Callable[[float], None] = lambda share: None, number: int = 0) -> float:
        """The batch of that ``number``; its seconds. ``level_done`` is told the share of its levels that are done."""
        begun, levels = self.now_s, len(self._kind_of)
        for place, kind in enumerate(self._kind_of):
            self._effort.begin(f"level {place}", self.now_s, self._kinds[kind].planned_s)
            self._pass(self._operators_s[place])
            level_s = self.now_s
            self._level(kind)
            self._chronicle.add(LEVELS, f"level {place}", level_s, self.now_s, batch=number, GEMMs=self._kinds[kind].name)
            level_done((place + 1) / levels)
        self._effort.begin("the end of the batch", self.now_s, self._operators_s[levels])
        self._pass(self._operators_s[levels])
        self._chronicle.add(BATCHES, f"batch {number}", begun, self.now_s)
        return self.now_s - begun

    def told(self, batch_s: tuple[float, ...]) -> ChurnRun:
        """All counts."""
        return ChurnRun(
            batch_s=batch_s, planned_batch_s=self.planned_batch_s, events={str(change): self._count[change] for change in Change},
            tiles=self._total.tiles, pieces=self._total.pieces, redone=self._total.redone / self._macs if self._macs else 0.0,
            settled=self._settled, moves=self._seats.moves, empty=self._empty / max(self._levels, 1),
            unfinished=self._unfinished, excluded=self._given_up, waited_s=self._waited_s,
        )  # fmt: skip

    def _columns(self, dtype: DType) -> DeviceColumns:
        if dtype not in self._figures:
            self._figures[dtype] = device_columns(self._fleet.devices, dtype)
        return self._crowd.columns(self._figures[dtype])

    # ------------------------------------------------------------------------------------------------- between levels

    def _pass(self, seconds: float) -> None:
        """Time in which no device works."""
        begun_s = self.now_s
        self._until(begun_s + seconds)
        if seconds:
            self._chronicle.add(OPERATORS, "operators", begun_s, self.now_s)

    def _until(self, end_s: float) -> None:
        """No device works until then; what has changed is settled."""
        while self._next is not None and self._next.time_s <= end_s:
            self._happen(None)
        self.now_s = end_s
        self._notice_idle()
        if self._changed:
            self._changed = False
            self._settled += 1
            moves = self._seats.settle(self._gain)
            self._chronicle.add(SETTLED, "settled", self.now_s, moves=moves, empty=len(self._seats.empty))

    def _wait(self) -> bool:
        """Nobody works until a device joins; False when none does any more."""
        begun_s = self.now_s
        while self._next is not None:
            event = self._next
            self._until(max(event.time_s, self.now_s))
            if event.change is Change.JOIN:
                self._waited_s += self.now_s - begun_s
                return True
        return False

    def _happen(self, level: Disturbed | None) -> None:
        """The next event, inside a level or between two."""
        event = self._next
        assert event is not None, "asked for only when there is one"
        self._next = next(self._events, None)
        self._count[event.change] += 1
        self._effort.change(event.time_s)
        self._chronicle.add(str(event.change), event.device, event.time_s)
        crowd = self._crowd
        if event.device in self._excluded and event.change is not Change.JOIN:  # nobody expects anything of it any more
            if event.change is not Change.SLOW:
                self._excluded.discard(event.device)
            return
        self._changed = True
        if event.change is Change.JOIN:
            self._excluded.discard(event.device)
            crowd.join(event.device, self._place[event.like])
            if level is not None:
                level.joined(event.time_s)
        elif event.change is Change.SLOW:
            row, factor = crowd.slow(event.device, event.factor)
            if level is not None:
                level.slow(row, factor, event.time_s)
        else:
            late_s = self._detect_s if event.noticed_s is None else event.noticed_s
            noticed_s = event.time_s + (late_s if event.change is Change.FAIL else 0.0)
            row = crowd.go(event.device, noticed_s)
            self._gone.append(row)
            if event.change is Change.LEAVE:
                crowd.forget(row)
            if level is not None:
                level.lose(row, noticed_s, event.time_s)

    def _notice_idle(self) -> None:
        """Losses that are noticed by now without a level having waited for them; rows of noticed ones are free again."""
        crowd, left = self._crowd, []
        for row in self._gone:
            if crowd.known[row] and crowd.noticed_s[row] <= self.now_s:
                crowd.forget(row)
            if crowd.known[row]:
                left.append(row)
                continue
            self._seats.vacate(row)
            crowd.release(row)
            self._changed = True
        self._gone = left

    # ----------------------------------------------------------------------------------------------------- one level

    def _level(self, number: int) -> None:
        kind, crowd = self._kinds[number], self._crowd
        busy, empty, covers = self._given(number)
        done, due = expected(crowd, self.now_s, busy, self._grace_s)
        end = max(self.now_s + kind.servers_s, float(done.max(initial=0.0)))
        self._levels, self._empty, self._macs = self._levels + 1, self._empty + len(empty), self._macs + kind.macs
        calm = self._next is None or self._next.time_s > end
        if calm and self.result is None and not (done > due).any() and bool(crowd.alive[busy > 0].all()):
            self.now_s = end
            return
        self._disturbed(number, busy, covers)

    def _given(self, number: int) -> tuple[Floats, list[int], list[Cover]]:
        """What each row has to do in a level of kind ``number`` (seconds at factor 1), the empty seats, their covers: as soon as
        there is somebody for them."""
        while True:
            seats, busy = self._seats, np.zeros(len(self._crowd))
            held = np.flatnonzero((seats.holder >= 0) & (seats.taken_s[number] > 0))
            busy[seats.holder[held]] = seats.taken_s[number, held]
            empty = seats.empty.tolist()
            try:
                return busy, empty, self._covers.over(number, empty, busy)
            except InfeasibleError:
                if not self._wait():
                    raise

    def _disturbed(self, number: int, busy: Floats, covers: Sequence[Cover]) -> None:
        kind, crowd, seat_of = self._kinds[number], self._crowd, self._seats.seat_of.tolist()

        def tasks_on(row: int) -> list[Task]:
            own = [] if row >= len(seat_of) or seat_of[row] == NOBODY else kind.tasks(seat_of[row], int(crowd.like[row]))
            taken = (cover.tasks[place] for cover in covers for place in np.flatnonzero(cover.rows == row).tolist())
            return [*own, *taken]

        level = Disturbed(
            crowd=crowd, parts=kind.parts, columns=self._columns, start_s=self.now_s, servers_s=kind.servers_s,
            busy_s=busy, tasks_of=tasks_on, result=self.result, grace_s=self._grace_s,
            effort=self._effort,
        )  # fmt: skip
        while True:
            event_s = np.inf if self._next is None else self._next.time_s
            if not level.unsettled and event_s > level.end_s:
                break
            if level.next_s < np.inf and level.next_s <= event_s:
                level.notice()
            elif self._next is not None:
                self._happen(level)
            else:
                raise level.nobody()
        self.now_s = level.end_s
        level.finish()
        if level.losses.tiles:
            figures = {"tiles": level.losses.tiles, "pieces": level.losses.pieces, "multiply-adds": level.losses.redone}
            self._chronicle.add(RECOVERIES, "lost or late tiles", level.noticed_s, max(self.now_s, level.noticed_s), **figures)
        self._excuse(busy, level.late)
        self._changed = True
        self._total.tiles += level.losses.tiles
        self._total.pieces += level.losses.pieces
        self._total.redone += level.losses.redone
        self._waited_s += level.waited_s
        self._unfinished += level.losses.missing != 0

    def _excuse(self, busy: Floats, late: set[int]) -> None:
        """Who was in time again is forgiven; who was late in ``PATIENCE`` levels running is excluded."""
        crowd = self._crowd
        helped = np.zeros(len(crowd), dtype=bool)
        helped[list(late)] = True
        crowd.late[: len(busy)][(busy > 0) & ~helped[: len(busy)]] = 0
        crowd.late[helped & crowd.alive] += 1
        for row in np.flatnonzero(crowd.alive & (crowd.late >= PATIENCE)).tolist():
            self._give_up(row)

    def _give_up(self, row: int) -> None:
        """Nothing is expected any more of the device of ``row``, until it joins again."""
        self._excluded.add(self._crowd.exclude(row, self.now_s))
        self._gone.append(row)
        self._given_up += 1
