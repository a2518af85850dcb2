"""Plans under constraints: each is obeyed, the second opinion agrees, the bound stays below, and conflicts are named."""

from __future__ import annotations

from typing import Any

import pytest
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.plan.plan import Constraint, Mode, Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.gemm import Operand, Role

SLOW = {"any": 50.0}
FLEET = fleet_of([device(f"d{i}", downlink_bytes_per_s=100.0 + 10 * i) for i in range(4)], [
    server("s0", flop_per_s=SLOW), server("s1", flop_per_s=SLOW),
])  # fmt: skip
SHARED = Operand(tensor="x", role=Role.ACTIVATION, dtype=DType.FLOAT32)
WORKLOAD = workload_of([
    gemm_of("q", (1, 24, 8, 12), a=SHARED), gemm_of("k", (1, 24, 8, 12), a=SHARED), gemm_of("out", (2, 24, 12, 8), 1),
])  # fmt: skip


def planned(*constraints: Constraint, **options: object) -> Plan:
    """The plan under ``constraints``, which the second opinion approves and whose bound is no more than its own time."""
    plan = make_plan(WORKLOAD, FLEET, constraints=constraints, **options)  # type: ignore[arg-type]
    assert verify(plan, WORKLOAD, FLEET).findings == ()
    assert plan.constraints == constraints
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)
    return plan


def mode_of(plan: Plan, gemm: str) -> Mode:
    return next(assignment.mode for assignment in plan.assignments if gemm in assignment.gemms)


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_can_be_pinned(mode: Mode) -> None:
    """Whatever the search would choose, with one GEMM, with several batch items and with two that share an operand."""
    for gemm in ("q", "out"):
        assert mode_of(planned(Constraint(name="pin", gemms=(gemm,), modes=(mode,))), gemm) is mode
    every = planned(Constraint(name="all", gemms=("*",), modes=(mode,)))
    assert {assignment.mode for assignment in every.assignments} == {mode}


def test_a_pin_costs_and_a_forbidden_mode_is_avoided() -> None:
    """No constrained plan is better than the free one; what is forbidden is not chosen."""
    free = make_plan(WORKLOAD, FLEET)
    chosen = mode_of(free, "out")
    other = planned(Constraint(name="no", gemms=("out",), modes=tuple(mode for mode in Mode if mode is not chosen)))
    assert mode_of(other, "out") is not chosen
    assert other.predicted.ideal_levels_s >= free.predicted.ideal_levels_s * (1 - 1e-3)


def test_gemms_under_different_rules_are_not_joined() -> None:
    """q and k share their A; pinned apart they are cut apart, pinned together they may be one."""
    apart = planned(Constraint(name="q rows", gemms=("q",), modes=(Mode.ROW,)))
    assert all(assignment.joined == 1 for assignment in apart.assignments)
    together = planned(Constraint(name="rows", gemms=("q", "k"), modes=(Mode.ROW,)))
    assert any(assignment.joined == 2 for assignment in together.assignments)


def test_servers_are_pinned() -> None:
    """Weights, and what a server computes, stay where they may be."""
    plan = planned(Constraint(name="there", gemms=("out",), servers=("s1",)))
    assert [a.servers for a in plan.assignments if "out" in a.gemms] == [("s1",)]
    home = planned(Constraint(name="there", gemms=("out",), servers=("s1",), modes=(Mode.SERVER,)))
    assert [(a.server, a.mode) for a in home.assignments if "out" in a.gemms] == [("s1", Mode.SERVER)]


def test_devices_are_left_out() -> None:
    """No tile on them; the bound is that of the fleet without them, above the whole fleet's."""
    plan = planned(Constraint(name="not 1", devices=("d1",), exclude=True), without=frozenset({"server"}))
    used = {plan.device_names[i] for a in plan.assignments for i in a.tiles.device.tolist() if i < 4}
    assert used == {"d0", "d2", "d3"}
    assert plan.predicted.bound_s > make_plan(WORKLOAD, FLEET, without=frozenset({"server"})).predicted.bound_s
    assert any("3 of 4 devices" in note for note in plan.notes)


def test_memory_caps_and_headroom() -> None:
    """What a device needs stays under its cap: the second opinion judges it by what is left."""
    plan = planned(
        Constraint(name="cap", devices=("d0",), memory_bytes=2000.0), Constraint(name="room", devices=("d1",), headroom=0.9),
        without=frozenset({"server"}),
    )  # fmt: skip
    assert plan.predicted.device_memory_bytes.get("d0", 0.0) <= 2000.0
    assert plan.predicted.device_memory_bytes.get("d1", 0.0) <= 1e5


def test_caps_on_work_and_time() -> None:
    """Proved by the second opinion: no more than a tenth of the work of any level, no more than the seconds given."""
    without = frozenset({"server"})
    planned(Constraint(name="a tenth", devices=("d3",), work=0.1), without=without)
    free = make_plan(WORKLOAD, FLEET, without=without)
    longest = max(level.executed_s for level in free.predicted.levels)
    planned(Constraint(name="brief", devices=("d2", "d3"), time_s=longest / 3), without=without)
    tiny = planned(Constraint(name="hardly", devices=("d0",), time_s=1e-9), without=without)
    assert all(0 not in assignment.tiles.device for assignment in tiny.assignments)


def gemms(name: str, pattern: str, mode: Mode) -> Constraint:
    """A pin of GEMMs."""
    return Constraint(name=name, gemms=(pattern,), modes=(mode,))


def devices(name: str, pattern: str, **demands: Any) -> Constraint:
    """A demand on devices."""
    return Constraint(name=name, devices=(pattern,), **demands)


@pytest.mark.parametrize(
    ("constraints", "blamed"),
    [
        ([gemms("rows", "q", Mode.ROW), gemms("columns", "q*", Mode.COLUMN), gemms("innocent", "out", Mode.ROW)],
         ["rows", "columns"]),
        ([Constraint(name="s0", gemms=("q",), servers=("s0",)), Constraint(name="s1", gemms=("*",), servers=("s1",))],
         ["s0", "s1"]),
        ([devices("none", "*", exclude=True)], ["none"]),
        ([devices("low", "d[01]", exclude=True), devices("high", "d[23]", exclude=True)], ["low", "high"]),
        ([devices("no room", "*", memory_bytes=10.0), gemms("away", "q", Mode.ROW), devices("innocent", "d0", exclude=True)],
         ["no room", "away"]),
        ([devices("idle", "*", work=1e-6), gemms("away", "out", Mode.COLUMN)], ["idle", "away"]),
    ],
)  # fmt: skip
def test_conflicts_are_named(constraints: list[Constraint], blamed: list[str]) -> None:
    """Exactly those that cannot hold together, by name, in the sentence and among the facts."""
    with pytest.raises(InfeasibleError) as caught:
        make_plan(WORKLOAD, FLEET, constraints=constraints)
    assert caught.value.facts["constraints"] == blamed
    assert all(f"'{name}'" in str(caught.value) for name in blamed)


def test_constraints_are_not_blamed_for_what_they_did_not_do() -> None:
    """A model that fits no server is infeasible without them too."""
    small = fleet_of([device("d0")], [server(memory_bytes=100.0)])
    with pytest.raises(InfeasibleError, match="hold the model") as caught:
        make_plan(WORKLOAD, small, constraints=[Constraint(name="rows", gemms=("q",), modes=(Mode.ROW,))])
    assert "constraints" not in caught.value.facts


def test_a_cap_on_one_device_slows_nobody_else() -> None:
    """Forty equal devices, one of which may do next to nothing: the plan is near that of thirty-nine."""
    fleet = fleet_of([device(f"d{i}") for i in range(40)], [server(flop_per_s={"any": 1.0})])
    workload = workload_of([gemm_of("fc", (1, 240, 8, 160))])
    less = make_plan(workload, fleet, constraints=[devices("light", "d7", work=0.001)])
    without = make_plan(workload, fleet, constraints=[devices("none", "d7", exclude=True)])
    assert verify(less, workload, fleet).ok
    assert less.predicted.ideal_levels_s <= without.predicted.ideal_levels_s * 1.02


@pytest.mark.parametrize(
    ("cap", "seconds"),
    [
        # Two devices of 50 B/s up: 24 x 16 results of 4 bytes are 1536 bytes, 15.36 s for both together.
        (Constraint(name="none", devices=("a",), work=1.0), 15.36),
        (Constraint(name="tenth", devices=("a",), work=0.1), 0.9 * 1536 / 50),
        (Constraint(name="brief", devices=("a",), time_s=2.0), (1536 - 2 * 50) / 50),
    ],
)
def test_the_bound_knows_caps(cap: Constraint, seconds: float) -> None:
    """What a capped device may not do, the other one must."""
    fleet = fleet_of([device(name, downlink_bytes_per_s=1e6, flop_per_s={"any": 1e9}) for name in "ab"])
    workload = workload_of([gemm_of("fc", (1, 24, 4, 16))])
    plan = make_plan(workload, fleet, constraints=[cap], without=frozenset({"server", "inner"}))
    assert verify(plan, workload, fleet).findings == ()
    assert plan.predicted.bound_s == pytest.approx(seconds, rel=1e-3)
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)


def test_the_bound_knows_caps_of_time_in_levels_of_several() -> None:
    """Two products side by side, 3072 bytes up: the capped device brings 100 of them."""
    fleet = fleet_of([device(name, downlink_bytes_per_s=1e6, flop_per_s={"any": 1e9}) for name in "ab"])
    workload = workload_of([gemm_of("fc", (1, 24, 4, 16)), gemm_of("out", (1, 24, 4, 16))])
    brief = Constraint(name="brief", devices=("a",), time_s=2.0)
    plan = make_plan(workload, fleet, constraints=[brief], without=frozenset({"server", "inner"}))
    assert plan.predicted.bound_s == pytest.approx((3072 - 100) / 50, rel=1e-3)
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)
