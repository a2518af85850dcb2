"""GEMMs that devices and their server compute together: figures by hand, tampering, the file, and the planner's own prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from plan_cases import assigned, device, fleet_of, gemm_of, plan_of, rows_of, server, shared_example, with_tiles, workload_of
from random_cases import random_levels

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.level import Load, Placement, level_time, server_load, tiled_load
from cleave_plan.cost.tile import price
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.consistency import consistency
from cleave_plan.plan.objective import Recount
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.plan.planfile import load_plan, plan_document, save_plan
from cleave_plan.plan.verify import Code, verify
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload

PLAN, WORKLOAD, FLEET = shared_example()
TILES = rows_of(PLAN.assignments[0])
"""Rows 0-3 on d0, 4-5 on d1, 6-7 on the server (2 = number of devices)."""


def test_the_shared_example_by_hand() -> None:
    """8 x 4 by 4 x 6 in float32 at 10 B/s down and 5 B/s up; s0 holds 3/4 of the weight, s1 the rest.

    d0 (4 rows): 64 + 96 down, 96 up: 16 and 19.2 s; A kept: 6.4 + max(9.6, 19.2) = 25.6.
    d1 (2 rows): 32 + 96 down, 48 up: 12.8 and 9.6 s; A kept: 3.2 + max(9.6, 9.6) = 12.8.
    s0 (2 rows): 32 + 96 + 48 bytes at 100 B/s.
    """
    found = Recount(WORKLOAD, PLAN.assignments, FLEET.devices, FLEET.servers).figures()
    level = found.levels[0]
    assert level.device_ideal_s.tolist() == pytest.approx([19.2, 12.8])
    assert level.device_executed_s.tolist() == pytest.approx([25.6, 12.8])
    assert level.server_s == pytest.approx({
        "egress s0": (0.75 * 288 + 0.25 * 128) / 50,  # what devices are sent, and a quarter of the whole X to s1
        "ingress s0": (0.75 * 144 + 0.25 * 192) / 20,  # what devices return, and a quarter of the whole result from s1
        "server s0": 1.76,
        "egress s1": (0.25 * 288 + 0.25 * 192) / 50,
        "ingress s1": (0.25 * 144 + 0.25 * 128) / 20,
        "server s1": 0.0,
    })  # fmt: skip
    assert (level.ideal_s, level.executed_s) == pytest.approx((19.2, 25.6))
    assert (found.downlink_bytes, found.uplink_bytes) == (288, 144)
    assert found.device_memory_bytes == {"d0": 1064, "d1": 1032}
    assert found.server_memory_bytes == pytest.approx({"s0": 0.75 * 96 + 100, "s1": 0.25 * 96})
    assert PLAN.predicted.devices_used == 2


def test_the_first_of_its_servers_computes() -> None:
    """The same tiles with s1 first: s1 computes the two rows, and all of X and of the result pass between s0 and s1."""
    away = replace(PLAN.assignments[0], server="s1", servers=("s1",), shares=(1.0,))
    level = Recount(WORKLOAD, [away], FLEET.devices, FLEET.servers).figures().levels[0]
    assert level.server_s == pytest.approx({
        "egress s0": 128 / 50, "ingress s0": 192 / 20, "server s0": 0.0,
        "egress s1": (288 + 192) / 50, "ingress s1": (144 + 128) / 20, "server s1": 1.76,
    })  # fmt: skip


def test_what_a_server_does_in_one_level_adds() -> None:
    """Own rows (1.76 s), a GEMM of its own (1.04 s) and 6 partial sums of a device (72 bytes) follow one another.

    The other half of K is the server's own (16 + 24 + 24 bytes): nobody sends those sums.
    """
    gemms = [gemm_of("fc", (1, 8, 4, 6)), gemm_of("own", (1, 2, 4, 3)), gemm_of("deep", (1, 2, 4, 3))]
    halves = [(0, 0, 2, 0, 3, 0, 2, 0, 1), (2, 0, 2, 0, 3, 2, 4, 0, 1)]
    assignments = [assigned(["fc"], TILES), assigned(["own"], [], mode=Mode.SERVER), assigned(["deep"], halves)]
    found = Recount(workload_of(gemms), assignments, FLEET.devices, FLEET.servers).figures()
    assert found.levels[0].server_s["server s0"] == pytest.approx(1.76 + 1.04 + 0.72 + 0.64)


def test_a_server_may_bind_through_its_tile() -> None:
    """At 2 FLOP/s the server's two rows (96 FLOP) take 48 s, longer than any device."""
    slow = fleet_of([device("d0"), device("d1")], [server("s0", flop_per_s={"any": 2.0}), server("s1")])
    plan = plan_of(WORKLOAD, slow, PLAN.assignments)
    assert (plan.predicted.levels_s, plan.predicted.ideal_levels_s) == pytest.approx((48.0, 48.0))
    assert plan.predicted.levels[0].binds == "server s0"
    assert verify(plan, WORKLOAD, slow).ok


def test_a_server_may_keep_what_no_device_could_hold() -> None:
    """Devices of 10 bytes cannot take part, but all tiles are the server's: no device is used, and nothing is short."""
    tiny = fleet_of([device("d0", memory_bytes=10.0), device("d1", memory_bytes=10.0)], FLEET.servers)
    kept = [assigned(["fc"], [(2, *row[1:]) for row in TILES], mode=Mode.ROW)]
    plan = plan_of(WORKLOAD, tiny, kept)
    assert plan.predicted.devices_used == 0
    assert plan.predicted.downlink_bytes == plan.predicted.uplink_bytes == 0
    assert plan.predicted.levels_s == pytest.approx((64 + 96 + 96) / 100 + 1.76 + 1.76)
    assert verify(plan, WORKLOAD, tiny).findings == ()
    refused = verify(plan_of(WORKLOAD, tiny, PLAN.assignments), WORKLOAD, tiny)
    assert {Code.DEVICE_MEMORY, Code.SMALLEST_TILE} <= {finding.code for finding in refused.findings}


def on(place: int, index: int) -> list[tuple[int, ...]]:
    """The example's rows with one of them given to another device."""
    return [(index, *row[1:]) if at == place else row for at, row in enumerate(TILES)]


def changed(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, assignments=(replace(plan.assignments[0], **changes),))


def tiled(rows: list[tuple[int, ...]]) -> Callable[[Plan], Plan]:
    return lambda plan: with_tiles(plan, 0, rows)


def predicting(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, predicted=replace(plan.predicted, **changes))


TAMPERED: dict[str, tuple[Callable[[Plan], Plan], Code, str]] = {
    "the server's tile missing": (tiled(TILES[:2]), Code.GAP, "$.assignments[0]"),
    "the server's tile doubled": (tiled([*TILES, TILES[2]]), Code.OVERLAP, "$.assignments[0]"),
    "the server's tile a row too early": (tiled([*TILES[:2], (2, 5, 8, *TILES[2][3:])]), Code.OVERLAP, "$.assignments[0]"),
    "the server's tile beyond the GEMM": (tiled([*TILES[:2], (2, 6, 9, *TILES[2][3:])]), Code.OUTSIDE, "$.assignments[0]"),
    "the server's tile empty": (tiled([*TILES, (2, 8, 8, *TILES[2][3:])]), Code.TILE, "$.assignments[0].m_stop[3]"),
    "two past the last device": (tiled(on(2, 3)), Code.TILE, "$.assignments[0].device[2]"),
    "the server's tile given to a device": (tiled(on(2, 1)), Code.FIGURE, "$.predicted.downlink_bytes"),
    "a device's tile given to the server": (tiled(on(1, 2)), Code.FIGURE, "$.predicted.devices_used"),
    "the other server first": (
        changed(server="s1", servers=("s1", "s0"), shares=(0.25, 0.75)), Code.FIGURE, "$.predicted.levels[0].executed_s",
    ),
    "columns, though all tiles cut rows": (changed(mode=Mode.COLUMN), Code.MODE, "$.assignments[0]"),
    "rows, though the server's tiles cut columns": (
        tiled([*TILES[:2], (2, 6, 8, 0, 3, 0, 4, 0, 1), (2, 6, 8, 3, 6, 0, 4, 0, 1)]), Code.MODE, "$.assignments[0]",
    ),
    "server mode with tiles left": (changed(mode=Mode.SERVER, servers=("s0",), shares=(1.0,)), Code.MODE, "$.assignments[0]"),
    "the server counted as a device": (predicting(devices_used=3), Code.FIGURE, "$.predicted.devices_used"),
    "its operands counted as sent": (predicting(downlink_bytes=288.0 + 128), Code.FIGURE, "$.predicted.downlink_bytes"),
    "its result counted as received": (predicting(uplink_bytes=144.0 + 48), Code.FIGURE, "$.predicted.uplink_bytes"),
}  # fmt: skip


def slow_server_case() -> tuple[Plan, Workload, Fleet]:
    """The shared example where the servers' arithmetic decides: 3 FLOP/s on s0, 2 on s1."""
    servers = [server("s0", flop_per_s={"any": 3.0}), server("s1", flop_per_s={"any": 2.0})]
    fleet = fleet_of(FLEET.devices, servers)
    return plan_of(WORKLOAD, fleet, PLAN.assignments), WORKLOAD, fleet


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_around_the_servers_tile_is_found(name: str) -> None:
    """Each edit of a right shared plan gives a finding of its kind at its place."""
    edit, code, where = TAMPERED[name]
    plan, workload, fleet = slow_server_case()
    assert verify(plan, workload, fleet).findings == ()
    verdict = verify(edit(plan), workload, fleet)
    assert (code, where) in {(finding.code, finding.where) for finding in verdict.findings}


def test_without_model_and_fleet_the_server_is_no_device_either() -> None:
    """The plan alone: two devices are used, a third is not believed."""
    assert consistency(PLAN).findings == ()
    assert [finding.where for finding in consistency(predicting(devices_used=3)(PLAN)).findings] == ["$.predicted.devices_used"]


def test_the_file_keeps_the_servers_tile(tmp_path: Path) -> None:
    """One past the last device is written, read and written again; the loaded plan holds."""
    save_plan(PLAN, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    assert (document["device_names"], document["assignments"][0]["device"]) == (["d0", "d1"], [0, 1, 2])
    loaded = load_plan(tmp_path / "plan.json")
    assert plan_document(loaded) == document
    assert verify(loaded, WORKLOAD, FLEET).ok


def planners_load(gemm: Gemm, assignment: Assignment, fleet: Fleet) -> Load:
    """The load of one GEMM as the planner prices it."""
    places = {member.name: place for place, member in enumerate(fleet.servers)}
    placement = Placement(servers=tuple(places[name] for name in assignment.servers), shares=assignment.shares)
    if assignment.mode is Mode.SERVER:
        return server_load(gemm, placement, len(fleet.devices), fleet.servers)
    return tiled_load(gemm, assignment.tiles, placement, device_columns(fleet.devices, gemm.dtype), fleet.servers)


@given(random_levels())
@settings(max_examples=150, deadline=None)
def test_levels_agree_with_the_planners_prices(case: tuple[Workload, list[Assignment], Fleet]) -> None:
    """Random levels, tiles on devices and servers: every second and byte is the planner's to 1e-12, written apart."""
    workload, assignments, fleet = case
    figures = Recount(workload, assignments, fleet.devices, fleet.servers).figures()
    down = up = 0.0
    memory = np.zeros(len(fleet.devices))
    for level, mine in zip(workload.levels, figures.levels, strict=True):
        load = Load.none(len(fleet.devices), len(fleet.servers))
        for place in level.gemms:
            gemm, assignment = workload.gemms[place], assignments[place]
            load = load + planners_load(gemm, assignment, fleet)
            sent = assignment.tiles.select(assignment.tiles.device < len(fleet.devices))
            costs = price(gemm, sent, device_columns(fleet.devices, gemm.dtype))
            down, up = down + float(costs.down_bytes.sum()), up + float(costs.up_bytes.sum())
            np.maximum.at(memory, sent.device, costs.memory_bytes)
        time = level_time(load, fleet)
        assert (mine.ideal_s, mine.executed_s) == pytest.approx((time.ideal_s, time.executed_s), rel=1e-12)
        assert mine.device_ideal_s.tolist() == pytest.approx(load.ideal_s.tolist(), rel=1e-12)
        assert mine.device_executed_s.tolist() == pytest.approx(load.executed_s.tolist(), rel=1e-12)
        for place, member in enumerate(fleet.servers):
            theirs = [
                load.egress[place] / member.egress_bytes_per_s, load.ingress[place] / member.ingress_bytes_per_s,
                load.server_s[place],
            ]  # fmt: skip
            ours = [mine.server_s[f"{kind} {member.name}"] for kind in ("egress", "ingress", "server")]
            assert ours == pytest.approx(theirs, rel=1e-12)
    assert (figures.downlink_bytes, figures.uplink_bytes) == pytest.approx((down, up), rel=1e-12)
    used = {fleet.devices[place].name: memory[place] for place in np.flatnonzero(memory)}
    assert figures.device_memory_bytes == pytest.approx(used, rel=1e-12)
