"""Batches in virtual time: operators and levels one after the other, each level a barrier."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import Progress, silent
from cleave_plan.simulation.dispatch import redispatched
from cleave_plan.simulation.fluid import shared
from cleave_plan.simulation.level import LevelRun, paced
from cleave_plan.simulation.variation import STEADY, Factors, Heat, Variation, draw
from cleave_plan.simulation.work import LevelWork, PlanWork, plan_work
from cleave_plan.workload.graph import Workload

Floats = NDArray[np.float64]


class Pacing(StrEnum):
    """How transfers share servers' links: each at its planned rate, or max-min fairly at every moment."""

    PLANNED = "planned"
    SHARED = "shared"


class Dispatch(StrEnum):
    """What happens to a tile that is late: its level waits, or an idle device is given it too."""

    BARRIER = "barrier"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """One level of one batch, for timelines: its place, when it started (seconds from the start of all), and its run."""

    batch: int
    level: int
    start_s: float
    work: LevelWork
    run: LevelRun


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """What batches took, in seconds of virtual time.

    ``levels_s``: of shape (batches, levels); ``planned_s``: per level, by the plan's executed cost; ``operators_s``: of one
    batch; ``binds``: what each level of the first batch waited for last; ``busy_s``: per device, summed over all batches;
    ``redispatched``: tiles that were also given to another device; ``moments``: in order, when they were asked for.
    """

    levels_s: Floats
    planned_s: Floats
    operators_s: float
    binds: tuple[str, ...]
    busy_s: Floats
    redispatched: int
    moments: tuple[Moment, ...]

    @property
    def batch_s(self) -> Floats:
        """Seconds of each batch: its levels and the operators between them."""
        return np.asarray(self.levels_s.sum(axis=1) + self.operators_s)

    @property
    def planned_batch_s(self) -> float:
        """Seconds that the plan predicts for a batch."""
        return float(self.planned_s.sum()) + self.operators_s


def simulate(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    *,
    batches: int = 1,
    pacing: Pacing = Pacing.PLANNED,
    dispatch: Dispatch = Dispatch.BARRIER,
    variation: Variation = STEADY,
    seed: int = 0,
    timeline: bool = False,
    progress: Progress = silent,
) -> Simulation:
    """Play ``batches`` batches of ``plan``; ``fleet`` has the plan's servers only, in its order.

    With planned pacing and without variation, levels take the cost model's executed time. Raises as :func:`plan_work`.
    """
    player = _Player(plan_work(plan, workload, fleet), fleet, pacing, dispatch, variation, seed)
    levels = len(player.work.kind_of)
    taken, busy, moments = np.zeros((batches, levels)), np.zeros(len(fleet.devices)), []
    clock = 0.0
    for batch in range(batches):
        for level in range(levels):
            progress(batch * levels + level, batches * levels, "simulating")
            clock += float(player.work.operators_s[level])
            kind, run = player.play(level)
            if timeline:
                moments.append(Moment(batch=batch, level=level, start_s=clock, work=kind, run=run))
            taken[batch, level] = run.seconds
            busy[kind.active] += run.done_s
            clock += run.seconds
        clock += float(player.work.operators_s[levels])
    return Simulation(
        levels_s=taken, planned_s=player.planned_s, operators_s=float(player.work.operators_s.sum()), binds=tuple(player.binds),
        busy_s=busy, redispatched=player.redispatched, moments=tuple(moments),
    )  # fmt: skip


class _Player:
    """Plays single levels; where nothing varies, each kind of level once."""

    def __init__(self, work: PlanWork, fleet: Fleet, pacing: Pacing, dispatch: Dispatch, variation: Variation, seed: int) -> None:
        self.work, self._fleet, self._pacing, self._dispatch, self._variation = work, fleet, pacing, dispatch, variation
        self._rng = np.random.default_rng(seed)
        self._heat = Heat(len(fleet.devices), variation.throttling)
        self._planned = [paced(kind, work.links, fleet.servers) for kind in work.kinds]
        self._still: dict[int, LevelRun] = {}
        self.planned_s = np.array([self._planned[kind].seconds for kind in work.kind_of.tolist()])
        self.binds: list[str] = []
        self.redispatched = 0

    def play(self, level: int) -> tuple[LevelWork, LevelRun]:
        """One level: its kind's work and how it went."""
        kind = int(self.work.kind_of[level])
        work = self.work.kinds[kind]
        if self._variation.still:
            if kind not in self._still:
                self._still[kind] = self._run(work, None)
            run = self._still[kind]
        else:
            run = self._run(work, draw(self._variation, work.device, self._heat, self._rng))
            if self._dispatch is Dispatch.DYNAMIC:
                run, moved = redispatched(work, run, self._planned[kind], self.work.links)
                self.redispatched += moved
            busy = np.zeros(len(self._fleet.devices))
            busy[work.active] = run.done_s
            self._heat.pass_level(busy, run.seconds)
        if len(self.binds) <= level:
            self.binds.append(run.binds)
        return work, run

    def _run(self, work: LevelWork, factors: Factors | None) -> LevelRun:
        play = shared if self._pacing is Pacing.SHARED else paced
        return play(work, self.work.links, self._fleet.servers, factors)
