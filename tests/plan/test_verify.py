"""The second opinion finds every way in which a plan can be wrong, and names the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import (
    assigned,
    device,
    example,
    fleet_of,
    gemm_of,
    plan_of,
    rows_of,
    server,
    with_tiles,
    workload_of,
)
from random_cases import random_cases

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.plan.verify import Code, Verdict, verify
from cleave_plan.workload.gemm import GemmShape
from cleave_plan.workload.graph import Workload

Case = tuple[Plan, Workload, Fleet]


def codes(verdict: Verdict) -> set[Code]:
    return {finding.code for finding in verdict.findings}


def edited(plan: Plan, place: int, **changes: Any) -> Plan:
    """The plan with one assignment changed and all figures left as they were."""
    assignments = list(plan.assignments)
    assignments[place] = replace(assignments[place], **changes)
    return replace(plan, assignments=tuple(assignments))


def predicting(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, predicted=replace(plan.predicted, **changes))


def test_a_right_plan_has_no_findings() -> None:
    """The example holds, and the verdict says how much was looked at."""
    verdict = verify(*example())
    assert verdict.findings == ()
    assert verdict.ok
    assert (verdict.gemms, verdict.tiles) == (3, 3)
    assert verdict.figures is not None
    assert verdict.figures.batch_s == pytest.approx(52.48)


TILES = rows_of(example()[0].assignments[0])

TAMPERED_TILES: dict[str, tuple[list[tuple[int, ...]], Code, str]] = {
    "a block missing": (TILES[:2], Code.GAP, "column 3"),
    "a block doubled": ([*TILES, TILES[1]], Code.OVERLAP, "tiles 1, 3"),
    "a block shifted": ([TILES[0], (1, 4, 7, *TILES[1][3:]), TILES[2]], Code.OVERLAP, "row 4"),
    "a block one row short": ([TILES[0], (1, 6, 8, *TILES[1][3:]), TILES[2]], Code.GAP, "row 5"),
    "the inner axis not whole": ([*TILES[:2], (2, 0, 8, 3, 6, 0, 3, 0, 1)], Code.GAP, "inner index 3"),
    "a block beyond the GEMM": ([*TILES, (0, 8, 9, 0, 6, 0, 4, 0, 1)], Code.OUTSIDE, "row 8"),
    "a batch item too many": ([*TILES, (0, 0, 8, 0, 6, 0, 4, 1, 2)], Code.OUTSIDE, "batch item 1"),
    "no tiles at all": ([], Code.GAP, "row 0"),
    "an empty tile": ([*TILES, (0, 3, 3, 0, 6, 0, 4, 0, 1)], Code.TILE, "empty along m"),
    "a reversed tile": ([*TILES, (0, 3, 2, 0, 6, 0, 4, 0, 1)], Code.TILE, "empty along m"),
    "a device that is not there": ([*TILES[:2], (4, *TILES[2][1:])], Code.TILE, "device 4"),
    "a negative device": ([*TILES[:2], (-1, *TILES[2][1:])], Code.TILE, "device -1"),
}


@pytest.mark.parametrize("name", TAMPERED_TILES)
def test_tampered_tiles(name: str) -> None:
    """Each wrong set of tiles gives one finding, of its own kind, at its assignment."""
    rows, code, words = TAMPERED_TILES[name]
    plan, workload, fleet = example()
    verdict = verify(with_tiles(plan, 0, rows), workload, fleet)
    assert [finding.code for finding in verdict.findings] == [code]
    assert verdict.findings[0].where.startswith("$.assignments[0]")
    assert words in verdict.findings[0].sentence


def other_device(plan: Plan) -> Plan:
    return with_tiles(plan, 0, [(1, *TILES[0][1:]), (0, *TILES[1][1:]), TILES[2]])


EDITS: dict[str, tuple[Callable[[Plan], Plan], Code, str]] = {
    "another model": (lambda p: replace(p, model=replace(p.model, sha256="c" * 64)), Code.MODEL, "$.model.sha256"),
    "another fleet": (lambda p: replace(p, fleet=replace(p.fleet, sha256="")), Code.FLEET, "$.fleet.sha256"),
    "another batch": (lambda p: replace(p, dims={"batch": 4}), Code.BINDINGS, "$.dims"),
    "another shape": (lambda p: replace(p, shapes={"x": (1, 3)}), Code.BINDINGS, "$.shapes"),
    "devices renamed": (lambda p: replace(p, device_names=("d0", "d1", "dx")), Code.NAMES, "$.device_names"),
    "devices in another order": (lambda p: replace(p, device_names=("d1", "d0", "d2")), Code.NAMES, "$.device_names"),
    "a server renamed": (lambda p: replace(p, server_names=("s0", "s1", "s7")), Code.NAMES, "$.server_names[2]"),
    "no server": (lambda p: replace(p, server_names=()), Code.NAMES, "$.server_names"),
    "an unknown GEMM": (lambda p: edited(p, 1, gemms=("head", "tail")), Code.GEMM_UNKNOWN, "$.assignments[1].gemms[1]"),
    "a GEMM left out": (lambda p: edited(p, 0, gemms=("l0.fc",)), Code.GEMM_MISSING, "$.assignments"),
    "a GEMM twice": (lambda p: edited(p, 1, gemms=("head", "l1.fc")), Code.GEMM_DOUBLED, "$.assignments[1].gemms[1]"),
    "an unknown server": (lambda p: edited(p, 0, servers=("s0", "s9")), Code.SERVERS, "$.assignments[0].servers"),
    "the head server not first": (lambda p: edited(p, 0, servers=("s1", "s0")), Code.SERVERS, "$.assignments[0].servers"),
    "shares that do not sum to 1": (lambda p: edited(p, 0, shares=(0.75, 0.5)), Code.SERVERS, "$.assignments[0].shares"),
    "a share missing": (lambda p: edited(p, 0, shares=(1.0,)), Code.SERVERS, "$.assignments[0].shares"),
    "a share that is no number": (lambda p: edited(p, 0, shares=(math.nan, 1.0)), Code.SERVERS, "$.assignments[0].shares"),
    "server mode on two servers": (
        lambda p: edited(p, 1, servers=("s0", "s1"), shares=(0.5, 0.5)), Code.SERVERS, "$.assignments[1].servers",
    ),
    "server mode with tiles": (
        lambda p: edited(p, 0, mode=Mode.SERVER, servers=("s0",), shares=(1.0,)), Code.MODE, "$.assignments[0]",
    ),
    "rows that cut columns": (lambda p: edited(p, 0, mode=Mode.ROW), Code.MODE, "$.assignments[0]"),
    "columns that cut rows": (lambda p: edited(p, 0, mode=Mode.COLUMN), Code.MODE, "$.assignments[0]"),
    "shares edited": (lambda p: edited(p, 0, shares=(0.5, 0.5)), Code.FIGURE, "$.predicted.server_memory_bytes.s0"),
    "tiles swapped between devices": (other_device, Code.FIGURE, "$.predicted.device_memory_bytes.d0"),
    "batch time edited": (lambda p: predicting(p, batch_s=1.0), Code.FIGURE, "$.predicted.batch_s"),
    "level total edited": (lambda p: predicting(p, levels_s=50.4801), Code.FIGURE, "$.predicted.levels_s"),
    "ideal total edited": (lambda p: predicting(p, ideal_levels_s=40.0), Code.FIGURE, "$.predicted.ideal_levels_s"),
    "operator time edited": (lambda p: predicting(p, server_operators_s=0.0), Code.FIGURE, "$.predicted.server_operators_s"),
    "traffic edited": (lambda p: predicting(p, downlink_bytes=799.0), Code.FIGURE, "$.predicted.downlink_bytes"),
    "NaN for a time": (lambda p: predicting(p, levels_s=math.nan), Code.FIGURE, "$.predicted.levels_s"),
    "a device fewer": (lambda p: predicting(p, devices_used=2), Code.FIGURE, "$.predicted.devices_used"),
    "a larger fleet": (lambda p: predicting(p, devices_total=4), Code.FIGURE, "$.predicted.devices_total"),
    "gap edited": (lambda p: predicting(p, gap=0.01), Code.FIGURE, "$.predicted.gap"),
    "gap and bound edited": (
        lambda p: predicting(p, gap=0.0, bound_s=p.predicted.ideal_levels_s), Code.FIGURE, "$.predicted.bound_s",
    ),
    "memory of an unknown device": (
        lambda p: predicting(p, device_memory_bytes={**p.predicted.device_memory_bytes, "dx": 1.0}),
        Code.FIGURE, "$.predicted.device_memory_bytes.dx",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_plans(name: str) -> None:
    """Each edit of a right plan gives a finding of its kind at its place."""
    edit, code, where = EDITS[name]
    plan, workload, fleet = example()
    verdict = verify(edit(plan), workload, fleet)
    assert not verdict.ok
    assert (code, where) in {(finding.code, finding.where) for finding in verdict.findings}


LEVEL_EDITS: dict[str, tuple[dict[str, Any], Code, str]] = {
    "executed time": ({"executed_s": 23.0}, Code.FIGURE, "$.predicted.levels[0].executed_s"),
    "ideal time": ({"ideal_s": 19.0}, Code.FIGURE, "$.predicted.levels[0].ideal_s"),
    "a bound above the time": ({"bound_s": 20.0}, Code.FIGURE, "$.predicted.levels[0].bound_s"),
    "another device binds": ({"binds": "device d0"}, Code.FIGURE, "$.predicted.levels[0].binds"),
    "an unknown device binds": ({"binds": "device dx"}, Code.FIGURE, "$.predicted.levels[0].binds"),
    "a link binds that does not": ({"binds": "egress s0"}, Code.FIGURE, "$.predicted.levels[0].binds"),
    "other GEMMs": ({"gemms": ("l1.fc",)}, Code.LEVELS, "$.predicted.levels[0].gemms"),
    "one level too many": ({"count": 2}, Code.LEVELS, "$.predicted.levels"),
    "a level that is not there": ({"index": 3}, Code.LEVELS, "$.predicted.levels[0].index"),
    "a level twice": ({"index": 1, "gemms": ("l1.fc",)}, Code.LEVELS, "$.predicted.levels[1].index"),
}


@pytest.mark.parametrize("name", LEVEL_EDITS)
def test_edited_levels(name: str) -> None:
    """Each edit of the first level's report is found there."""
    changes, code, where = LEVEL_EDITS[name]
    plan, workload, fleet = example()
    first, *others = plan.predicted.levels
    verdict = verify(predicting(plan, levels=(replace(first, **changes), *others)), workload, fleet)
    assert (code, where) in {(finding.code, finding.where) for finding in verdict.findings}


def grouped(plan: Plan, first: int, counts: tuple[int, ...]) -> Plan:
    """Reports of the example with the layers as one entry of count 2 that begins at level ``first``."""
    layer, _, head = plan.predicted.levels
    entry = replace(layer, index=first, gemms=(f"l{first}.fc",), count=counts[0])
    return predicting(plan, levels=(entry, replace(head, count=counts[1])))


def test_equal_levels_may_share_a_report() -> None:
    """One entry of count 2 for the two equal layers, whichever of them it names; a wrong split of counts is found."""
    plan, workload, fleet = example()
    assert verify(grouped(plan, 0, (2, 1)), workload, fleet).ok
    assert verify(grouped(plan, 1, (2, 1)), workload, fleet).ok
    assert Code.LEVELS in codes(verify(grouped(plan, 0, (1, 2)), workload, fleet))


def test_levels_that_differ_may_not_share_a_report() -> None:
    """The second layer on other devices takes another time: an entry of count 2 does not stand for it."""
    plan, workload, fleet = example()
    layer, head = plan.assignments
    swapped = replace(layer, gemms=("l1.fc",), tiles=other_device(plan).assignments[0].tiles)
    honest = plan_of(workload, fleet, [replace(layer, gemms=("l0.fc",)), swapped, head])
    assert verify(honest, workload, fleet).ok
    verdict = verify(grouped(honest, 0, (2, 1)), workload, fleet)
    assert Code.LEVELS in codes(verdict)
    assert any("stands for level 1" in finding.sentence for finding in verdict.findings)


def small(memory: float, shape: tuple[int, int, int, int] = (1, 4, 2, 4), **figures: float) -> Case:
    fleet = fleet_of([device("d0", memory_bytes=memory)], [server("s0", **figures)])
    workload = workload_of([gemm_of("g", shape)])
    batch, m, k, n = shape
    return plan_of(workload, fleet, [assigned(["g"], [(0, 0, m, 0, n, 0, k, 0, batch)])]), workload, fleet


def test_a_tile_that_no_longer_fits_its_device() -> None:
    """4 x 4 of depth 2 keeps at least 32 bytes beside 0.1 of the memory, and 16 bytes of streams: 160 suffice, 159 not."""
    assert verify(*small(160.0)).ok
    tight = verify(*small(159.0))
    assert codes(tight) == {Code.SMALLEST_TILE}
    assert "device d0" in tight.findings[0].sentence
    full = verify(*small(35.0))
    assert {Code.DEVICE_MEMORY, Code.SMALLEST_TILE} <= codes(full)


def test_memory_alone_can_be_exceeded() -> None:
    """40 x 40 of depth 1 keeps 160 bytes beside 17.7 of 177; one row and one column are 8."""
    assert verify(*small(178.0, (1, 40, 1, 40))).ok
    assert Code.DEVICE_MEMORY in codes(verify(*small(177.0, (1, 40, 1, 40))))


def test_a_server_that_does_not_hold_its_part() -> None:
    """Weights of 32 bytes and 100 live bytes: 132 suffice, 131 do not."""
    assert verify(*small(1e6, memory_bytes=132.0)).ok
    verdict = verify(*small(1e6, memory_bytes=131.0))
    assert codes(verdict) == {Code.SERVER_MEMORY}
    assert verdict.findings[0].where == "$.predicted.server_memory_bytes.s0"


def test_a_plan_may_use_some_of_the_fleets_servers() -> None:
    """With server_names = (s1,), s1 is the first server: it runs the operators and nothing moves."""
    fleet = fleet_of([device("d0")], [server("s0", memory_bandwidth_bytes_per_s=1.0), server("s1")])
    workload = workload_of([gemm_of("g", (1, 4, 2, 4))])
    half = replace(fleet, servers=fleet.servers[1:])
    whole = assigned(["g"], [(0, 0, 4, 0, 4, 0, 2, 0, 1)], server="s1", servers=("s1",))
    plan = plan_of(workload, half, [whole])
    verdict = verify(plan, workload, fleet)
    assert verdict.findings == ()
    assert verdict.figures is not None
    assert verdict.figures.server_operators_s == pytest.approx(2.0)


def test_empty_gemms_need_no_tiles() -> None:
    """A dimension of 0 leaves nothing to cover, and a tile on it computes what does not exist."""
    fleet = fleet_of([device("d0")], [server("s0")])
    workload = workload_of([gemm_of("g", (1, 0, 2, 4))])
    plan = plan_of(workload, fleet, [assigned(["g"], [])])
    assert verify(plan, workload, fleet).ok
    assert codes(verify(with_tiles(plan, 0, [(0, 0, 1, 0, 4, 0, 2, 0, 1)]), workload, fleet)) == {Code.OUTSIDE}


def test_a_gemm_that_only_the_server_can_compute_has_no_tiles() -> None:
    """A recurrent step in server mode takes its repeats; cut into tiles, were it even by the server, it is refused."""
    fleet = fleet_of([device("d0")], [server("s0")])
    workload = workload_of([gemm_of("step", (1, 2, 4, 3), repeats=5, pinned="a step needs the one before")])
    whole = plan_of(workload, fleet, [assigned(["step"], [], mode=Mode.SERVER)])
    assert verify(whole, workload, fleet).findings == ()
    assert whole.predicted.levels_s == pytest.approx(5 * (32 + 48 + 24) / 100)
    for index in (0, 1):
        cut = edited(with_tiles(whole, 0, [(index, 0, 2, 0, 3, 0, 4, 0, 1)]), 0, mode=Mode.TWO_DIMENSIONAL)
        found = verify(cut, workload, fleet).findings
        assert [(finding.code, finding.where) for finding in found] == [(Code.MODE, "$.assignments[0]")]
        assert "a step needs the one before" in found[0].sentence


def test_a_model_of_other_sizes_under_the_same_names() -> None:
    """The hash differs, and so does the shape: both are said."""
    plan, workload, fleet = example()
    first, *others = workload.gemms
    larger = replace(workload, sha256="d" * 64, gemms=(replace(first, shape=GemmShape(1, 9, 4, 6)), *others))
    verdict = verify(plan, larger, fleet)
    assert codes(verdict) == {Code.MODEL, Code.GAP}


def first_with_tiles(plan: Plan) -> tuple[int, Assignment] | None:
    return next(((i, a) for i, a in enumerate(plan.assignments) if len(a.tiles)), None)


@given(random_cases(), st.data())
@settings(max_examples=60, deadline=None)
def test_random_plans_hold_and_random_damage_does_not(case: Case, data: st.DataObject) -> None:
    """Any exact plan with its own figures is accepted; with one tile dropped, doubled or moved it is not."""
    plan, workload, fleet = case
    assert verify(plan, workload, fleet).findings == ()
    target = first_with_tiles(plan)
    if target is None:
        return
    place, assignment = target
    rows = rows_of(assignment)
    victim = data.draw(st.integers(0, len(rows) - 1))
    dropped = [*rows[:victim], *rows[victim + 1 :]]
    assert codes(verify(with_tiles(plan, place, dropped), workload, fleet)) == {Code.GAP}
    assert codes(verify(with_tiles(plan, place, [*rows, rows[victim]]), workload, fleet)) == {Code.OVERLAP}
    device_index, *box = rows[victim]
    axis = data.draw(st.integers(0, 3))
    box[2 * axis] += 1
    box[2 * axis + 1] += 1
    moved = [*dropped, (device_index, *box)]
    assert codes(verify(with_tiles(plan, place, moved), workload, fleet)) <= {Code.GAP, Code.OVERLAP, Code.OUTSIDE}
    assert not verify(with_tiles(plan, place, moved), workload, fleet).ok
