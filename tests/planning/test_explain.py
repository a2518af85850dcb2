"""Explanations beside plans made by hand: what alternatives take, what binds, what a device is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_cases import device, fleet_of, gemm_of, server, spread, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.fleet.device import Device
from cleave_plan.plan.plan import Constraint, Mode, Predicted
from cleave_plan.planning.explain import explain
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.story import DeviceStory
from cleave_plan.workload.gemm import Operand, Role

SERVER_OUT = frozenset({"server"})


def gains(story: DeviceStory) -> dict[str, tuple[float | None, float | None]]:
    """Gain of bound and plan by change."""
    return {change.name: (change.bound_s, change.plan_s) for change in story.changes}


def test_one_device_that_its_uplink_binds() -> None:
    """C is 10 x 10 of 4 bytes over 2 B/s: 200 s of upload; A and B are 160 bytes at 100 B/s, 1.6 s; 400 FLOP at 1,000 a
    second, 0.4 s. Twice the uplink saves 100 s of bound and plan, nothing else saves anything."""
    fleet = fleet_of([device("d", uplink_bytes_per_s=2.0)], [server(flop_per_s={"any": 1e-3})])
    workload = workload_of([gemm_of("fc", (1, 10, 2, 10))])
    plan = make_plan(workload, fleet, without=SERVER_OUT)
    told = explain(plan, workload, fleet)
    (story,) = told.devices
    assert story.seconds == pytest.approx({"downlink": 1.6, "compute": 0.4, "uplink": 200.0, "latency": 0.0})
    assert story.binds == "uplink"
    found = gains(story)
    assert found["without it"] == (None, None)
    assert found["twice the uplink"] == pytest.approx((100.0, 100.0), rel=1e-6)
    for change in ("twice the downlink", "twice the compute", "half the latency"):
        assert found[change] == pytest.approx((0.0, 0.0), abs=1e-6)
    (gemm,) = told.gemms
    assert gemm.binds == "device d: uplink"
    assert (gemm.ideal_s, gemm.devices) == (pytest.approx(200.0), 1)
    assert gemm.bound_s <= gemm.ideal_s * (1 + 1e-9)


def test_alternatives_are_plans_of_their_own() -> None:
    """Each mode that is pinned, and half the devices, take what a plan under that constraint takes; the server what its
    arithmetic takes."""
    fleet = fleet_of([device(f"d{i}") for i in range(4)], [server(flop_per_s={"any": 200.0}, memory_bandwidth_bytes_per_s=1e9)])
    workload = workload_of([gemm_of("fc", (1, 24, 4, 16))])
    plan = make_plan(workload, fleet)
    (story,) = explain(plan, workload, fleet).gemms
    others = {other.name: other.ideal_s for other in story.alternatives}
    modes = {mode: mode.value for mode in Mode if mode is not Mode.SERVER} | {Mode.SERVER: "server only"}
    for mode, name in modes.items():
        if mode is not story.mode:
            pinned = make_plan(workload, fleet, constraints=[Constraint(name="c", gemms=("fc",), modes=(mode,))])
            assert others[name] == pytest.approx(pinned.predicted.ideal_levels_s)
    assert others["server only"] == pytest.approx(2 * 24 * 4 * 16 / 200.0)
    assert "2 of its 4 devices" in others
    assert story.next_best is not None
    assert story.next_best.ideal_s == min(value for value in others.values() if value is not None)
    assert story.next_best.ideal_s >= story.ideal_s * (1 - 1e-2)


def test_what_a_device_is_worth_is_the_bound_without_it() -> None:
    """The bound of the smaller fleet, less that of the whole."""
    fleet = fleet_of([device("a"), device("b", downlink_bytes_per_s=50.0, uplink_bytes_per_s=20.0)])
    workload = workload_of([gemm_of("fc", (1, 24, 4, 16)), gemm_of("out", (1, 24, 16, 4), 1)])
    plan = make_plan(workload, fleet, without=SERVER_OUT)
    alone = make_plan(workload, fleet_of(fleet.devices[:1]), without=SERVER_OUT)
    (story,) = explain(plan, workload, fleet, devices=["b"]).devices
    worth = gains(story)["without it"][0]
    assert worth == pytest.approx(plan.predicted.bound_s - alone.predicted.bound_s, rel=1e-6)
    assert worth is not None
    assert worth < 0


def changed(one: Device, what: str) -> Device:
    """``one`` with what a change of a story says, written out again."""
    if what == "half the latency":
        return replace(one, latency_s=one.latency_s / 2)
    if what == "twice the compute":
        return replace(one, flop_per_s={"any": 2 * one.flop_per_s["any"]})
    if what == "twice the downlink":
        return replace(one, downlink_bytes_per_s=2 * one.downlink_bytes_per_s)
    return replace(one, uplink_bytes_per_s=2 * one.uplink_bytes_per_s)


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_what_planning_again_gives(seed: int) -> None:
    """Random fleets of three, planned exactly: each change of a device planned for. The bound moves by what was told, the new
    plan saves at least what the old tiles would, and without the device the plan loses no less than the bound says it must."""
    rng = np.random.default_rng(seed)
    figures = [
        {
            "flop_per_s": {"any": spread(rng, 50, 2e3)}, "downlink_bytes_per_s": spread(rng, 50, 300),
            "uplink_bytes_per_s": spread(rng, 10, 100), "latency_s": float(rng.choice([0.0, 0.2])),
        }
        for _ in range(3)
    ]  # fmt: skip
    devices = [device(f"d{place}", **one) for place, one in enumerate(figures)]
    workload = workload_of([gemm_of("fc", (1, 8, int(rng.integers(1, 9)), 7))])
    without = frozenset({"server", "inner"})

    def planned(members: list[Device]) -> Predicted:
        return make_plan(workload, fleet_of(members), without=without, gap=0.0).predicted

    plan = make_plan(workload, fleet_of(devices), without=without, gap=0.0)
    for place, story in enumerate(explain(plan, workload, fleet_of(devices), devices=["d0", "d1", "d2"]).devices):
        found = gains(story)
        alone = planned([one for one in devices if one.name != story.device])
        lost = found.pop("without it")[0]
        assert lost == pytest.approx(plan.predicted.bound_s - alone.bound_s, rel=1e-4, abs=1e-6)
        assert alone.ideal_levels_s >= plan.predicted.ideal_levels_s * (1 - 1e-9)
        for what, (bound_s, plan_s) in found.items():
            again = planned([changed(one, what) if i == place else one for i, one in enumerate(devices)])
            assert bound_s == pytest.approx(plan.predicted.bound_s - again.bound_s, rel=1e-4, abs=1e-6)
            assert plan_s is not None
            assert again.ideal_levels_s <= (plan.predicted.ideal_levels_s - plan_s) * (1 + 1e-9)
        busiest = f"twice the {story.binds}"
        if busiest in found:  # among the rates, the one that binds is the only one whose doubling can shorten its tile
            assert all(found[busiest][1] >= found[what][1] for what in found if what != "half the latency")


def test_gemms_that_are_cut_as_one() -> None:
    """q and k share A: one decision, which beside its modes has "each GEMM by itself"; a pattern selects it by a member."""
    shared = Operand(tensor="x", role=Role.ACTIVATION, dtype=DType.FLOAT32)
    workload = workload_of([gemm_of("q", (1, 24, 8, 12), a=shared), gemm_of("k", (1, 24, 8, 12), a=shared)])
    fleet = fleet_of([device("a"), device("b")], [server(flop_per_s={"any": 1.0})])
    plan = make_plan(workload, fleet)
    (story,) = explain(plan, workload, fleet, gemm="k").gemms
    assert (story.gemms, story.joined) == (("q", "k"), 2)
    assert "each GEMM by itself" in {other.name for other in story.alternatives}


def test_constraints_are_told_and_set_aside() -> None:
    """A pinned GEMM names the constraint, and its alternatives show what it costs; excluded devices stay excluded."""
    fleet = fleet_of([device(f"d{i}") for i in range(3)], [server(flop_per_s={"any": 1.0})])
    workload = workload_of([gemm_of("fc", (1, 24, 4, 16))])
    demands = [
        Constraint(name="home", gemms=("fc",), modes=(Mode.SERVER,)),
        Constraint(name="out", devices=("d0",), exclude=True),
    ]
    plan = make_plan(workload, fleet, constraints=demands)
    told = explain(plan, workload, fleet, devices=["d0", "d1"])
    (story,) = told.gemms
    assert (story.mode, story.constraints, story.binds) == (Mode.SERVER, ("home",), "server s0")
    assert story.next_best is not None
    assert story.next_best.ideal_s is not None
    assert story.next_best.ideal_s < story.ideal_s
    assert max(other.devices for other in story.alternatives) == 2
    assert gains(told.devices[0])["without it"] == pytest.approx((0.0, None))  # it was not there
    assert told.devices[0].binds == "nothing: it is not used"


def test_names_that_are_not_there() -> None:
    """A GEMM or a device that the plan does not have."""
    fleet, workload = fleet_of([device("d")]), workload_of([gemm_of("fc", (1, 4, 2, 4))])
    plan = make_plan(workload, fleet)
    with pytest.raises(UsageError, match="'fc2'"):
        explain(plan, workload, fleet, gemm="fc2")
    with pytest.raises(UsageError, match="'phone'"):
        explain(plan, workload, fleet, devices=["phone"])
