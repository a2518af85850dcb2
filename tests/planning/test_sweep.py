"""Sweeps: each point is the plan of its own case, the knee is where more stops paying, and sub-fleets give whole plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.subfleet import restored, some_devices
from cleave_plan.planning.sweep import sweep
from cleave_plan.workload.graph import Workload

WORKLOAD = workload_of([gemm_of("fc", (1, 40, 8, 30))])
FLEET = fleet_of([device(f"d{i}", downlink_bytes_per_s=100.0 + 10 * i) for i in range(5)], [server(flop_per_s={"any": 1.0})])


def timed(seconds: dict[int, float | None], *, throughput: bool) -> int | None:
    """The knee of a sweep whose plan at each value takes the given time (None: there is no plan)."""
    sample = make_plan(WORKLOAD, FLEET)

    def plan(workload: Workload, fleet: Fleet) -> Plan:
        value = int(workload.name)
        if seconds[value] is None:
            raise InfeasibleError("too large")
        return replace(sample, predicted=replace(sample.predicted, batch_s=seconds[value]))

    found = sweep("x", list(seconds), lambda value: (replace(WORKLOAD, name=str(value)), FLEET), plan, throughput=throughput)
    assert [point.value for point in found.points] == sorted(seconds)
    assert [point.plan is None for point in found.points] == [seconds[value] is None for value in sorted(seconds)]
    return found.knee


def test_the_knee_of_times() -> None:
    """The least value whose time is within 10 % of the best: 10.9 s is, 12 s is not."""
    assert timed({1: 40.0, 2: 20.0, 4: 12.0, 8: 10.9, 16: 10.0}, throughput=False) == 8
    assert timed({1: 10.0, 2: 10.0}, throughput=False) == 1


def test_the_knee_of_throughputs() -> None:
    """Of value / time: 1, 1.67, 1.95 and 2 a second."""
    assert timed({8: 8.0, 16: 9.6, 32: 16.4, 64: 32.0}, throughput=True) == 32


def test_points_without_a_plan_stay() -> None:
    """They are listed, and are no knee."""
    assert timed({1: None, 2: 5.0, 4: None}, throughput=False) == 2
    assert timed({1: None}, throughput=False) is None


@pytest.mark.parametrize("places", [[0], [1, 3], [0, 1, 2, 3, 4]])
def test_a_plan_of_some_devices_is_one_of_the_whole_fleet(places: list[int]) -> None:
    """Its tiles name the whole fleet's devices, only the chosen ones, and the second opinion agrees."""
    some = some_devices(FLEET, places)
    plan = restored(make_plan(WORKLOAD, some), FLEET, places)
    assert plan.device_names == tuple(device.name for device in FLEET.devices)
    assert set(plan.assignments[0].tiles.device.tolist()) <= {*places, 5}
    assert plan.predicted.devices_total == 5
    assert verify(plan, WORKLOAD, FLEET).findings == ()
