"""Plans after devices were lost or have joined: they hold, and nothing moved that need not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import device, fleet_of, gemm_of, server, workload_of
from random_cases import random_cases

from cleave_plan.cost.tile import BOX, Tiles
from cleave_plan.errors import InfeasibleError, UsageError
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Constraint, Mode, Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.replan import lost_before, replan
from cleave_plan.workload.graph import Workload


def rows(tiles: Tiles) -> list[tuple[int, ...]]:
    """Device and box of each tile."""
    return list(zip(*(tiles.column(name).tolist() for name in ("device", *BOX)), strict=True))


def inside(piece: tuple[int, ...], tile: tuple[int, ...]) -> bool:
    """Whether a piece's box lies in a tile's, with the same inner range."""
    within = all(tile[a] <= piece[a] and piece[a + 1] <= tile[a + 1] for a in (1, 3, 5, 7))
    return within and piece[5:7] == tile[5:7]


@given(random_cases(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_only_tiles_of_lost_devices_move(case: tuple[Plan, Workload, Fleet], seed: int) -> None:
    """Random plans and losses: the check finds nothing, kept tiles are the same boxes on the same devices in the same order, and
    what is new lies inside a lost tile, K never cut further."""
    plan, workload, fleet = case
    rng = np.random.default_rng(seed)
    names = [device.name for device in fleet.devices]
    lost = rng.permutation(names)[: rng.integers(0, len(names))].tolist()
    found = replan(plan, workload, fleet, lost)
    verdict = verify(found.plan, workload, fleet)
    assert verdict.ok, verdict.findings
    gone = {names.index(name) for name in lost}
    moved = 0
    for old, new in zip(plan.assignments, found.plan.assignments, strict=True):
        assert (old.gemms, old.servers, old.shares) == (new.gemms, new.servers, new.shares)
        kept = [row for row in rows(old.tiles) if row[0] not in gone]
        away = [row for row in rows(old.tiles) if row[0] in gone]
        moved += len(away)
        assert rows(new.tiles)[: len(kept)] == kept
        for piece in rows(new.tiles)[len(kept) :]:
            assert piece[0] not in gone
            assert any(inside(piece, tile) for tile in away)
    assert found.tiles == moved
    assert lost_before(found.plan) == set(lost)


def case(devices: int = 6) -> tuple[Workload, Fleet, Plan]:
    """Two levels of two products each over equal devices."""
    workload = workload_of([gemm_of(f"g{i}", (1, 240, 20, 60), level=i // 2) for i in range(4)])
    fleet = fleet_of([device(f"d{i}") for i in range(devices)], [server(flop_per_s={"any": 1e-3})])
    return workload, fleet, make_plan(workload, fleet, without=frozenset({"server"}))


def test_a_patched_plan_keeps_nothing() -> None:
    """Pieces were not sent to who has them now: bytes that the old plan spared are sent, and the notes say so."""
    workload = workload_of([gemm_of(f"g{i}", (1, 2, 100, 60), level=i) for i in range(2)])
    fleet = fleet_of([device(f"d{i}", memory_bytes=1e6) for i in range(3)])
    plan = make_plan(workload, fleet, without=frozenset({"server"}))
    assert plan.predicted.device_kept_bytes
    found = replan(plan, workload, fleet, ["d1"]).plan
    assert found.predicted.device_kept_bytes == {}
    assert found.predicted.spared_bytes == 0
    assert found.settings["without"] == "reuse,server"
    assert not any("keep" in note for note in found.notes)
    assert verify(found, workload, fleet).ok


def test_losses_add_up_and_devices_come_back() -> None:
    """Lost one after the other; one comes back under its name with its new figures, another joins: the check holds each time."""
    workload, fleet, plan = case()
    first = replan(plan, workload, fleet, ["d1"])
    second = replan(first.plan, workload, fleet, ["d4"])
    assert second.lost == ("d1", "d4")
    assert second.plan.predicted.batch_s > plan.predicted.batch_s
    assert second.plan.predicted.bound_s > plan.predicted.bound_s  # that of four devices
    third = replan(second.plan, workload, fleet, (), [device("d1", uplink_bytes_per_s=49.0), device("new")], gain=0.01)
    assert third.anew
    assert third.lost == ("d4",)
    assert [one.name for one in third.fleet.devices] == ["d0", "d1", "d2", "d3", "d4", "d5", "new"]
    assert third.plan.predicted.batch_s <= 0.99 * second.plan.predicted.batch_s
    for found in (first, second, third):
        verdict = verify(found.plan, workload, found.fleet)
        assert verdict.ok, verdict.findings
        assert not {one.device_names[t] for one in [found.plan] for a in one.assignments for t in a.tiles.device} & set(
            found.lost
        )


def test_no_move_below_the_stated_gain() -> None:
    """One more of sixty devices is worth less than 5 %: no tile moves. A demand of 0.1 % is met."""
    workload, fleet, plan = case(60)
    stays = replan(plan, workload, fleet, (), [device("new")], gain=0.05)
    assert not stays.anew
    assert [rows(a.tiles) for a in stays.plan.assignments] == [rows(a.tiles) for a in plan.assignments]
    verdict = verify(stays.plan, workload, stays.fleet)
    assert verdict.ok, verdict.findings


def test_a_joined_device_takes_a_lost_ones_tiles_whole() -> None:
    """With an idle equal beside it, a lost device's tiles are not cut."""
    workload, fleet, plan = case()
    found = replan(plan, workload, fleet, ["d2"], [device("new")])
    assert found.takers == 1
    assert found.pieces == found.tiles
    assert found.plan.predicted.batch_s == pytest.approx(plan.predicted.batch_s)


def test_server_tiles_stay_with_the_server() -> None:
    """A tile that the server keeps is still its own when the number that stands for it changes."""
    workload = workload_of([gemm_of("g", (1, 240, 20, 60))])
    fleet = fleet_of([device(f"d{i}") for i in range(3)], [server(flop_per_s={"any": 1e3})])
    plan = make_plan(workload, fleet)
    assert any((a.tiles.device == 3).any() for a in plan.assignments)
    found = replan(plan, workload, fleet, ["d1"], [device("new", memory_bytes=1e3)])
    assert any((a.tiles.device == 4).any() for a in found.plan.assignments)
    assert verify(found.plan, workload, found.fleet).ok


def test_constraints_still_hold() -> None:
    """An excluded device takes nothing of a lost one."""
    workload, fleet, _ = case()
    constraint = Constraint(name="not d0", devices=("d0",), exclude=True)
    plan = make_plan(workload, fleet, without=frozenset({"server"}), constraints=(constraint,))
    found = replan(plan, workload, fleet, ["d3"])
    verdict = verify(found.plan, workload, fleet)
    assert verdict.ok, verdict.findings
    assert all(0 not in a.tiles.device for a in found.plan.assignments)


def test_changes_that_cannot_be_meant_or_made() -> None:
    """Unknown and doubled names, nobody left, and a device that nothing fits."""
    workload, fleet, plan = case(2)
    with pytest.raises(UsageError, match="no device 'x' to lose; expected one of its names, such as '"):
        replan(plan, workload, fleet, ["x"])
    for joined in ([device("d0")], [device("n"), device("n")]):
        with pytest.raises(UsageError, match="joins"):
            replan(plan, workload, fleet, (), joined)
    with pytest.raises(InfeasibleError, match="every device is lost"):
        replan(plan, workload, fleet, ["d0", "d1"])
    with pytest.raises(InfeasibleError, match="no device that is left"):
        replan(plan, workload, fleet, ["d0", "d1"], [device("tiny", memory_bytes=1.0)])


def test_modes_say_what_is_cut() -> None:
    """Rows of a lost device cut both ways make a two-dimensional plan of a row-wise one."""
    workload, fleet, plan = case()
    assert {a.mode for a in replan(plan, workload, fleet, ["d5"]).plan.assignments} <= set(Mode)
    for assignment in replan(plan, workload, fleet, ["d5"]).plan.assignments:
        whole = assignment.tiles.n_stop - assignment.tiles.n_start == 60
        if assignment.mode is Mode.ROW:
            assert whole.all()
    again = replace(plan, settings={**plan.settings, "lost": "d5"})
    assert replan(again, workload, fleet, ()).lost == ("d5",)
