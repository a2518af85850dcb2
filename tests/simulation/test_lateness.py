"""Who is late: the simulator and a run go by one rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.watch import Watch
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.kernels.tile import Box
from cleave_plan.planning.planner import make_plan
from cleave_plan.simulation.churn import churn
from cleave_plan.simulation.churnrun import ChurnRun

DEVICES = 8
WORKLOAD = workload_of([gemm_of("g", (1, 240, 20, 60))])
FLEET = fleet_of([device(f"d{i}") for i in range(DEVICES)], [server(flop_per_s={"any": 1e-3})])
PLAN = make_plan(WORKLOAD, FLEET, without=frozenset({"server", "inner"}))
LEVEL_S = PLAN.predicted.batch_s


def simulated(factors: list[float]) -> ChurnRun:
    """One level in which each device takes so many times as long as foreseen."""
    slow = [Event(time_s=0.0, change=Change.SLOW, device=f"d{i}", factor=f) for i, f in enumerate(factors) if f > 1]
    return churn(PLAN, WORKLOAD, FLEET, slow, batches=1)


def late_in_a_run(factors: list[float]) -> bool:
    """Whether a run's watch, after levels that went as foreseen, finds a device late while another has nothing to do."""
    watch = Watch()
    tasks = [Task(0, place, f"d{place}", Box(0, 100, 0, 100, 0, 100, 0, 1)) for place in range(DEVICES)]
    for start_s in np.arange(4) * LEVEL_S:
        watch.begin()
        for task in tasks:
            watch.sent(task, start_s)
        for task in tasks:
            watch.answered(task, start_s + LEVEL_S)
    start_s = 4 * LEVEL_S
    watch.begin()
    for task in tasks:
        watch.sent(task, start_s)
    order = np.argsort(factors, kind="stable").tolist()
    for place, now in enumerate(order[:-1]):
        idle_s = start_s + factors[now] * LEVEL_S  # nobody could help before
        watch.answered(tasks[now], idle_s)
        next_s = start_s + factors[order[place + 1]] * LEVEL_S
        if any(max(watch.due_s(f"d{other}"), idle_s) < next_s for other in order[place + 1 :]):
            return True
    return False


def test_each_device_has_the_same_to_do() -> None:
    """What the cases below start from."""
    assert simulated([1.0] * DEVICES).batch_s[0] == pytest.approx(LEVEL_S)
    assert simulated([1.0] * 7 + [2.5]).batch_s[0] == pytest.approx(2.5 * LEVEL_S)


def test_a_level_that_is_slow_for_most_by_hand() -> None:
    """Five of eight take twice as long: two that take four times as long are in time, who take seven times are not. With three
    that take twice as long, four times is late: more than e times and 0.25 s."""
    in_time = simulated([1.0, *[2.0] * 5, 4.0, 4.0])
    assert (in_time.batch_s[0], in_time.tiles) == (pytest.approx(4 * LEVEL_S), 0)
    assert simulated([1.0, *[2.0] * 5, 7.0, 7.0]).tiles == 2
    assert simulated([*[1.0] * 5, 2.0, 4.0, 4.0]).tiles == 2


@given(st.lists(st.sampled_from([1.0, 1.4, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 40.0]), min_size=DEVICES, max_size=DEVICES))
@settings(deadline=None, max_examples=60)
@example([3.0] * DEVICES)  # nobody has anything to do before the others are done, too
def test_somebody_is_late_in_both_or_in_neither(factors: list[float]) -> None:
    """Devices that take any times as long as foreseen."""
    assert (simulated(factors).tiles > 0) == late_in_a_run(factors)
