"""A simulation's trace, decoded with Perfetto's own protocol buffers: tracks, nesting, clock and sums."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from planning_cases import device, fleet_of, gemm_of, workload_of
from trace_cases import decoded

from cleave_plan.api import make_plan, simulate_plan, write_simulation_trace
from cleave_plan.chronicle import BATCHES, LEVELS, OPERATORS, RECOVERIES, SETTLED, Chronicle, Span
from cleave_plan.errors import UsageError
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.plan.plan import Plan
from cleave_plan.report.trace import LEFT_OUT, chronicle_spans, write_trace
from cleave_plan.simulation.churn import churn
from cleave_plan.simulation.run import Simulation


def simulation() -> tuple[Plan, Simulation]:
    """Two batches of three levels over three devices, with jitter."""
    workload = workload_of([gemm_of(f"g{level}", (1, 30, 9, 40), level) for level in range(3)])
    fleet = fleet_of([device(f"d{i}", latency_s=0.5) for i in range(3)])
    plan = make_plan(workload, fleet, without={"server"})
    return plan, simulate_plan(plan, workload, fleet, batches=2, jitter=0.2, timeline=True)


def test_a_trace_is_what_the_simulation_was(tmp_path: Path) -> None:
    """A track for each device and one for levels; levels in their order and length; phases inside their tiles, on the clock."""
    plan, done = simulation()
    written = write_simulation_trace(done, plan, tmp_path / "t.pftrace")
    tracks, process = decoded(tmp_path / "t.pftrace")
    assert process == "toy over home"
    assert set(tracks) >= {LEVELS, "d0", "d1", "d2"}
    assert sum(len(slices) for slices in tracks.values()) == written
    levels = tracks[LEVELS]
    assert [name for name, *_ in levels] == [f"batch {b}, level {level}" for b in range(2) for level in range(3)]
    lengths = [(stop - start) / 1e9 for _, _, start, stop in levels]
    assert lengths == pytest.approx(done.levels_s.ravel().tolist(), abs=2e-9)
    for name in plan.device_names:
        tiles = [piece for piece in tracks[name] if piece[1] == 0]
        phases = [piece for piece in tracks[name] if piece[1] == 1]
        assert {tile[0] for tile in tiles} <= {"g0", "g1", "g2"}
        for _, _, start, stop in phases:
            assert any(tile[2] <= start <= stop <= tile[3] for tile in tiles)
        total = sum(stop - start for _, _, start, stop in tiles) / 1e9
        assert total == pytest.approx(done.busy_s[plan.device_names.index(name)], abs=1e-7)


def churned(chronicle: Chronicle) -> float:
    """Two batches of two levels; one of three devices fails in the first level, noticed a second later, and comes back in the
    second batch. The seconds of the first level as it would be without that."""
    workload = workload_of([gemm_of(f"g{level}", (1, 30, 9, 40), level) for level in range(2)])
    fleet = fleet_of([device(f"d{i}", latency_s=0.5) for i in range(3)])
    plan = make_plan(workload, fleet, without={"server"})
    level_s = plan.predicted.batch_s / 2
    fails = Event(time_s=0.9 * level_s, change=Change.FAIL, device="d1", noticed_s=1.0)
    joins = Event(time_s=3.5 * level_s, change=Change.JOIN, device="d1", like="d1")
    churn(plan, workload, fleet, (fails, joins), batches=2, chronicle=chronicle)
    return level_s


def test_a_trace_of_devices_that_come_and_go(tmp_path: Path) -> None:
    """Batches hold their levels, on the clock; who fails and joins is an instant; the recovery lasts from when the failure is
    noticed to the end of its level."""
    chronicle = Chronicle()
    level_s = churned(chronicle)
    written = write_trace(tmp_path / "t.pftrace", chronicle_spans(chronicle), process="p")
    tracks, _ = decoded(tmp_path / "t.pftrace")
    assert sum(len(slices) for slices in tracks.values()) == written == len(chronicle.entries)
    assert set(tracks) == {BATCHES, LEVELS, RECOVERIES, SETTLED, "fail", "join"}
    assert [name for name, *_ in tracks[LEVELS]] == ["level 0", "level 1"] * 2
    assert [name for name, *_ in tracks[BATCHES]] == ["batch 0", "batch 1"]
    edges = [(start, stop) for _, _, start, stop in tracks[LEVELS]]
    assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    assert [(start, stop) for _, _, start, stop in tracks[BATCHES]] == [(0, edges[1][1]), (edges[2][0], edges[3][1])]
    (recovery,) = tracks[RECOVERIES]
    assert recovery[2:] == (pytest.approx((0.9 * level_s + 1) * 1e9, abs=2), edges[0][1])
    assert tracks["fail"] == [("d1", 0, *[pytest.approx(0.9 * level_s * 1e9, abs=2)] * 2)]
    assert tracks["join"][0][2] == pytest.approx(3.5 * level_s * 1e9, abs=2)


def test_a_long_campaign_says_what_its_trace_leaves_out(tmp_path: Path) -> None:
    """Three entries are kept, and an instant counts the others."""
    whole, short = Chronicle(), Chronicle(most=3)
    churned(whole)
    churned(short)
    assert short.entries == whole.entries[:3]
    *_, last = chronicle_spans(short)
    assert (last.track, last.stop_s) == (LEFT_OUT, None)
    assert last.details["entries"] == len(whole.entries) - 3 == short.left_out


def test_slices_that_touch_do_not_nest(tmp_path: Path) -> None:
    """One ends where the next begins: both at the outermost depth; an equal inner slice stays inside its outer one."""
    spans = [
        Span(track="t", name="a", start_s=0, stop_s=1), Span(track="t", name="b", start_s=1, stop_s=2),
        Span(track="t", name="b.inner", start_s=1, stop_s=1.5, details={"note": "x", "bytes": 3.0}),
    ]  # fmt: skip
    assert write_trace(tmp_path / "t.pftrace", spans, process="p") == 3
    tracks, _ = decoded(tmp_path / "t.pftrace")
    assert {(name, depth) for name, depth, _, _ in tracks["t"]} == {("a", 0), ("b", 0), ("b.inner", 1)}


def test_tracks_are_in_the_order_that_people_read(tmp_path: Path) -> None:
    """Levels and operators on top, then devices by their numbers, then incidents, each with its rank."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    names = ["incident 10", "d10", "incident 2", "d9", OPERATORS, "d1", LEVELS]
    write_trace(tmp_path / "t.pftrace", [Span(track=name, name="a", start_s=0, stop_s=1) for name in names], process="p")
    trace = proto.Trace()
    trace.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    told = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    assert told[0].child_ordering == proto.TrackDescriptor.EXPLICIT
    by_rank = sorted(told[1:], key=lambda one: int(one.sibling_order_rank))
    assert [one.name for one in by_rank] == [LEVELS, OPERATORS, "d1", "d9", "d10", "incident 2", "incident 10"]


def test_without_perfetto_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings the package, and no file."""
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(UsageError, match=r"perfetto") as raised:
        write_trace(tmp_path / "t.pftrace", [], process="p")
    assert "cleave-plan[trace]" in raised.value.sentence()
    assert not list(tmp_path.iterdir())
