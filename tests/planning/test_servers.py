"""One server or several: where weights may lie, what moves, and what that costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.placing import base_memory, placements
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.gemm import Gemm, Role
from cleave_plan.workload.graph import Workload

DEVICES_ONLY = frozenset({"server", "reuse"})


def checked(workload: Workload, fleet: Fleet, **options: object) -> Plan:
    """A plan that the second opinion holds for right: cover, servers' memory, moves, times."""
    plan = make_plan(workload, fleet, gap=0.0, **options)
    assert verify(plan, workload, fleet).findings == ()
    return plan


def layers(count: int, side: int = 100, rows: int = 4) -> list[Gemm]:
    """``count`` levels of one GEMM each, whose weights take side * side * 4 bytes."""
    return [gemm_of(f"l{place}", (1, rows, side, side), place) for place in range(count)]


def test_placements_by_egress_and_by_memory() -> None:
    """Single servers, stripes by egress, and stripes by memory where a server cannot hold everything."""
    egress = [server("s0", egress_bytes_per_s=300.0, memory_bytes=1e4), server("s1", egress_bytes_per_s=100.0, memory_bytes=4e4)]
    spots = placements(fleet_of([device("d")], egress), [2e3, 0.0], 5e3)
    assert [(spot.servers, spot.shares) for spot in spots] == [((0,), (1.0,)), ((1,), (1.0,)), ((0, 1), (0.75, 0.25))]
    tight = placements(fleet_of([device("d")], egress), [2e3, 0.0], 9e3)
    assert (tight[-1].servers, tight[-1].shares) == ((0, 1), pytest.approx((8 / 48, 40 / 48)))
    assert placements(fleet_of([device("d")]), [0.0], 1e12)[0].servers == (0,)


def test_unlimited_links_take_the_stripes() -> None:
    """Where some links are unlimited, stripes lie on those servers; a lone one needs no stripe."""
    mixed = [server("s0", egress_bytes_per_s=100.0), server("s1"), server("s2")]
    spots = placements(fleet_of([device("d")], mixed), [0.0] * 3, 0.0)
    assert [spot.servers for spot in spots] == [(0,), (1,), (2,), (1, 2)]
    one = placements(fleet_of([device("d")], mixed[:2]), [0.0] * 2, 0.0)
    assert [spot.servers for spot in one] == [(0,), (1,)]


def test_weights_of_one_gemm_that_no_server_holds_are_striped() -> None:
    """40 kB of weights over two servers of 25 kB."""
    fleet = fleet_of([device("d0"), device("d1")], [server("s0", memory_bytes=25e3), server("s1", memory_bytes=25e3)])
    plan = checked(workload_of(layers(1)), fleet)
    assert plan.assignments[0].servers == ("s0", "s1")
    assert plan.predicted.server_memory_bytes == pytest.approx({"s0": 20e3, "s1": 20e3})


def test_stripes_by_egress_that_do_not_fit_leave_those_by_memory() -> None:
    """The server with ten times the egress has an eighth of the memory: 40 kB fit the two together all the same."""
    servers = [
        server("s0", memory_bytes=38e3, egress_bytes_per_s=1e3), server("s1", memory_bytes=5e3, egress_bytes_per_s=1e4)
    ]  # fmt: skip
    plan = checked(workload_of(layers(1)), fleet_of([device("d0")], servers))
    assert plan.predicted.server_memory_bytes["s1"] <= 5e3


def test_live_activations_leave_the_first_server_less_room() -> None:
    """30 kB of the first server's 40 are activations: 40 kB of weights lie mostly on the second."""
    workload = workload_of(layers(1))
    workload = replace(workload, levels=(replace(workload.levels[0], live_bytes=30_000),))
    fleet = fleet_of([device("d0")], [server("s0", memory_bytes=40e3), server("s1", memory_bytes=35e3)])
    assert base_memory(workload, fleet) == [30e3, 0.0]
    plan = checked(workload, fleet)
    assert plan.predicted.server_memory_bytes["s0"] <= 40e3
    assert plan.predicted.server_memory_bytes["s1"] <= 35e3


def test_layers_of_one_class_lie_on_different_servers_where_memory_wants_it() -> None:
    """Six layers of 40 kB over servers of 130 kB: neither holds them all; every layer is computed once."""
    fleet = fleet_of([device("d0"), device("d1")], [server("s0", memory_bytes=130e3), server("s1", memory_bytes=130e3)])
    plan = checked(workload_of(layers(6)), fleet)
    assert sorted(name for assignment in plan.assignments for name in assignment.gemms) == [f"l{i}" for i in range(6)]
    assert all(size <= 130e3 for size in plan.predicted.server_memory_bytes.values())
    assert sum(plan.predicted.server_memory_bytes.values()) == pytest.approx(240e3)


def test_what_fits_no_two_servers_is_refused_with_the_bytes() -> None:
    """Required is the sum of all weights, available what each server has."""
    fleet = fleet_of([device("d0")], [server("s0", memory_bytes=100e3), server("s1", memory_bytes=100e3)])
    with pytest.raises(InfeasibleError) as caught:
        make_plan(workload_of(layers(6)), fleet)
    assert caught.value.facts["required"] == pytest.approx(240e3)
    assert caught.value.facts["available"] == {"s0": 100e3, "s1": 100e3}


def test_tied_weights_lie_on_a_server_once() -> None:
    """Twelve layers that share one tensor of 40 kB fit a server of 50 kB, beside a parameter of no GEMM."""
    gemms = [replace(gemm, b=replace(gemm.b, tensor="shared")) for gemm in layers(12)]
    workload = replace(workload_of(gemms), parameters={"shared": 40_000, "embedding": 9_000})
    plan = checked(workload, fleet_of([device("d0")], [server(memory_bytes=50e3)]))
    assert plan.predicted.server_memory_bytes == {"s0": 49_000}
    with pytest.raises(InfeasibleError) as caught:
        make_plan(workload, fleet_of([device("d0")], [server(memory_bytes=48e3)]))
    assert caught.value.facts["required"] == pytest.approx(49_000)


def test_moves_make_a_second_server_dear() -> None:
    """Equal servers with links that bind: with room for the weights, the first one alone needs no moves of activations."""
    links = {"egress_bytes_per_s": 1e3, "ingress_bytes_per_s": 50.0}
    square = workload_of([gemm_of("g", (1, 40, 4, 40))])
    near = checked(square, fleet_of([device("d0")], [server("s0", **links)]), without=DEVICES_ONLY)
    both = checked(square, fleet_of([device("d0")], [server("s0", **links), server("s1", **links)]), without=DEVICES_ONLY)
    # 1,600 results of 4 bytes at 50 B/s, to the first server whichever way
    assert near.predicted.ideal_levels_s == pytest.approx(128)
    assert both.predicted.ideal_levels_s == pytest.approx(128)
    assert both.assignments[0].servers[0] == "s0"


def test_stripes_share_the_egress() -> None:
    """Weights as wide as they are tall go out by two NICs in half the time; the moves of a single row are small."""
    links = {"egress_bytes_per_s": 100.0}
    wide = workload_of([gemm_of("g", (1, 1, 200, 200))])
    fast = [device("d0", downlink_bytes_per_s=1e6, uplink_bytes_per_s=1e6, flop_per_s={"any": 1e9})]
    one = checked(wide, fleet_of(fast, [server("s0", **links)]), without=DEVICES_ONLY)
    two = checked(wide, fleet_of(fast, [server("s0", **links), server("s1", **links)]), without=DEVICES_ONLY)
    assert one.predicted.ideal_levels_s == pytest.approx(160_800 / 100)
    # half of A, B (800 + 160,000 B) from each; s0 also sends half of A to s1, s1 half of the row of results to s0
    assert two.predicted.ideal_levels_s == pytest.approx((80_400 + 400) / 100)
    assert two.assignments[0].shares == (0.5, 0.5)


def test_unequal_servers_compute_where_it_is_faster() -> None:
    """A server that is ten times faster takes the GEMM, though its operands and result travel."""
    servers = [server("s0"), server("s1", flop_per_s={"any": 1e4}, memory_bandwidth_bytes_per_s=1e6)]
    slow = [device("d0", flop_per_s={"any": 1.0})]
    plan = checked(workload_of([gemm_of("g", (1, 20, 20, 20))]), fleet_of(slow, servers))
    assert plan.assignments[0].mode is Mode.SERVER
    assert plan.assignments[0].server == "s1"
    assert plan.predicted.ideal_levels_s == pytest.approx(1.6)


def test_results_end_on_the_first_server_and_so_does_the_bound() -> None:
    """A slow way into the first server bounds every placement: the certificate knows it."""
    servers = [server("s0", ingress_bytes_per_s=10.0), server("s1"), server("s2")]
    plan = checked(workload_of([gemm_of("g", (1, 50, 2, 50))]), fleet_of([device("d0")], servers), without=DEVICES_ONLY)
    assert plan.predicted.ideal_levels_s == pytest.approx(1000)
    assert plan.predicted.gap < 1e-6


def test_memory_that_feeds_the_server_is_in_the_bound() -> None:
    """One row against a matrix: 2,000 FLOP but 4,440 bytes at 100 B/s; the server-only plan is proven best."""
    keeper = server(flop_per_s={"any": 1e6}, memory_bandwidth_bytes_per_s=100.0)
    slow = device("d0", downlink_bytes_per_s=1e-3)
    plan = checked(workload_of([gemm_of("g", (1, 1, 10, 100))]), fleet_of([slow], [keeper]), without=frozenset({"reuse"}))
    assert plan.predicted.ideal_levels_s == pytest.approx((40 + 4000 + 400) / 100)
    assert plan.predicted.gap < 1e-3


def test_a_server_without_a_limit_beside_one_with_little() -> None:
    """Infinite memory and links on one side, 1 kB on the other: everything lies where there is room."""
    servers = [server("s0", memory_bytes=1e3, egress_bytes_per_s=10.0), server("s1", memory_bytes=math.inf)]
    plan = checked(workload_of(layers(2)), fleet_of([device("d0"), device("d1")], servers))
    assert plan.predicted.server_memory_bytes["s0"] <= 1e3


def test_activations_need_no_servers_memory() -> None:
    """A product of two activations has no weights to place."""
    gemm = gemm_of("g", (1, 10, 10, 10))
    gemm = replace(gemm, b=replace(gemm.b, role=Role.ACTIVATION))
    plan = checked(workload_of([gemm]), fleet_of([device("d0")], [server(memory_bytes=1.0)]))
    assert plan.predicted.server_memory_bytes == {"s0": 0.0}


def test_more_devices_than_the_egress_can_feed_are_left_out() -> None:
    """A product so deep that K is cut: 600 devices behind 100 Gbit/s do better than the first 200, which its egress can feed."""
    workload, fleet = workload_of([gemm_of("deep", (1, 1024, 65536, 1024))]), generate_fleet(600, seed=7)
    few, many = (
        make_plan(workload, replace(fleet, devices=fleet.devices[:count]), without=DEVICES_ONLY).predicted for count in (200, 600)
    )
    assert many.bound_s <= many.ideal_levels_s < few.ideal_levels_s
