"""Running a plan at the pace of its fleet, on this machine: a rehearsal, a scale, and the run that is compared.

The rehearsal is two batches as fast as this machine can, of which the second counts. It shows how slow the fleet must be played
for every level's arithmetic to be done by the time that its devices would have done it: the scale, in seconds here for one
second of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cleave_plan.execution.engines.emulated import EmulatedEngine
from cleave_plan.execution.prices import FleetPrices, PredictedLevel
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.execution.tally import LevelTiming
from cleave_plan.execution.truth import Comparison, compare
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Plan

ROOM = 2.5
"""How many times as long as in the rehearsal a level must be given, so that its arithmetic hides behind its pace."""

NEGLIGIBLE = 0.01
"""Share of the predicted time whose levels may go without that room: one tiny level must not stretch all others."""

SHORTEST_LEVEL_S = 0.1
LONGEST_RUN_S = 60.0
"""A level should take the former here, so that the clock's and the scheduler's grain do not show, unless the run would take
the latter in all; more than that it takes only where the arithmetic needs it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emulated:
    """An emulated run: its result, what it says beside the plan, and why the scale is what it is."""

    result: RunResult
    comparison: Comparison
    why: str


def emulate(session: Session, plan: Plan, fleet: Fleet, inputs: Mapping[str, Any], *, scale: float | None = None) -> Emulated:
    """Run one batch at the pace of ``fleet`` (the plan's); ``scale`` None finds one.

    Raises what :meth:`Session.run` raises.
    """
    prices = FleetPrices(plan, session.workload, fleet, session.jobs)
    predicted = prices.predicted()
    why = "as asked for"
    if scale is None:
        session.run(inputs)  # workers start, memory is touched for the first time
        scale, why = scale_for(predicted, session.run(inputs).timings)
    chosen = scale
    session.wrap(lambda engine: EmulatedEngine(engine, prices, chosen), prices)
    result = session.run(inputs)
    return Emulated(result=result, comparison=compare(prices, result.timings, chosen), why=why)


def scale_for(predicted: Sequence[PredictedLevel], rehearsed: Sequence[LevelTiming]) -> tuple[float, str]:
    """Seconds here for one of the fleet's, and why so many, from what levels should take and took as fast as possible."""
    pairs = [(promise.seconds, timing.seconds) for promise, timing in zip(predicted, rehearsed, strict=True) if promise.device_s]
    if not pairs:
        return 1.0, "no device has a tile"
    total_s = sum(seconds for seconds, _ in pairs)
    tightest_s, took_s = _first_that_counts(sorted(pairs, key=lambda pair: pair[0] / pair[1]))
    shortest_s, _ = _first_that_counts(sorted(pairs))
    arithmetic = ROOM * took_s / tightest_s
    grain = min(SHORTEST_LEVEL_S / shortest_s, LONGEST_RUN_S / total_s)
    if arithmetic >= grain:
        return arithmetic, f"{ROOM:g} times what this machine needs for the arithmetic"
    return grain, f"so that levels take {SHORTEST_LEVEL_S:g} s here, all of them no more than {LONGEST_RUN_S:g} s"


def _first_that_counts(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The first of (predicted, rehearsed) seconds of levels that stands behind no more than a negligible share of the whole."""
    total_s, passed_s = sum(seconds for seconds, _ in pairs), 0.0
    for seconds, took_s in pairs:
        passed_s += seconds
        if passed_s > NEGLIGIBLE * total_s:
            return seconds, took_s
    return pairs[-1]
