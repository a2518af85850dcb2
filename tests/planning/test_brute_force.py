"""Tiny cases are planned optimally: the answer is that of trying every tiling (brute_force.py), and the bound is below it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute_force import best_seconds, partitions
from planning_cases import CURVE, device, fleet_of, gemm_of, server, spread, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.planner import SWITCHES, make_plan
from cleave_plan.workload.gemm import Gemm

KINDS = ("plain", "latency", "memory", "curves", "links", "wild")
ONE_RECTANGLE = SWITCHES & {"inner", "reuse"}
"""Brute force does not cut K and keeps nothing (test_reuse.py does): both are switched off."""


def random_device(rng: np.random.Generator, name: str, kind: str, gemm: Gemm) -> Device:
    """Unequal figures near each other, so that downlink, uplink and arithmetic bind in turn; ``wild`` ones a thousandfold
    apart. In ``memory`` about half of the devices cannot hold one row and one column."""
    wide = kind == "wild"
    changes: dict[str, object] = {
        "flop_per_s": {"any": spread(rng, 1, 1e3) if wide else spread(rng, 50, 5e3)},
        "downlink_bytes_per_s": spread(rng, 1, 1e3) if wide else spread(rng, 20, 500),
        "uplink_bytes_per_s": spread(rng, 1, 1e3) if wide else spread(rng, 5, 200),
    }
    if kind == "latency":
        changes["latency_s"] = rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 5)])
    if kind == "memory":
        smallest = 10 * gemm.shape.k * (gemm.a.dtype.bits + gemm.b.dtype.bits) / 8
        changes["memory_bytes"] = smallest * rng.choice([0.99, 1.0, spread(rng, 0.5, 2)])
    if kind == "curves" and rng.random() < 0.7:
        changes["efficiency"] = CURVE
    return device(name, **changes)


def random_case(rng: np.random.Generator, rows: int, columns: int, devices: int, kind: str) -> tuple[Gemm, Fleet]:
    """One GEMM and a fleet of one server; its links bind in ``links``, and sometimes elsewhere."""
    depth = int(rng.choice([1, 2, 3, 7, 16, 64]))
    gemm = gemm_of("g", (1, rows, depth, columns), dtype=DType.FLOAT32 if rng.random() < 0.5 else DType.FLOAT16)
    members = [random_device(rng, f"d{place}", kind, gemm) for place in range(devices)]
    bound = kind == "links" or rng.random() < 0.2
    keeper = server(
        flop_per_s={"any": spread(rng, 10, 3e3)}, memory_bandwidth_bytes_per_s=spread(rng, 50, 1e4),
        egress_bytes_per_s=spread(rng, 30, 1e3) if bound else math.inf,
        ingress_bytes_per_s=spread(rng, 10, 1e3) if bound and rng.random() < 0.7 else math.inf,
    )  # fmt: skip
    return gemm, fleet_of(members, [keeper])


def planned(gemm: Gemm, fleet: Fleet, *, server_allowed: bool) -> Plan | None:
    """The plan found to optimality, or None where there is none."""
    without = ONE_RECTANGLE if server_allowed else ONE_RECTANGLE | {"server"}
    try:
        return make_plan(workload_of([gemm]), fleet, without=without, gap=0.0)
    except InfeasibleError:
        return None


def agree(gemm: Gemm, fleet: Fleet, *, server_allowed: bool) -> None:
    """The planner is as fast as one rectangle for each device can be, or faster, or both find nothing; the bound is below."""
    plan = planned(gemm, fleet, server_allowed=server_allowed)
    best = best_seconds(gemm, fleet, server_allowed=server_allowed)
    if plan is None:
        assert best == math.inf
        return
    assert plan.predicted.bound_s * (1 - 1e-9) <= plan.predicted.ideal_levels_s <= best * (1 + 1e-9)


def test_partitions_are_counted_as_known() -> None:
    """Kinds of partitions of small grids, counted by hand; a 3 x 3 grid in five needs the pinwheel, in four none does."""
    assert partitions(1, 1, 4) == {((1, 1),)}
    assert partitions(1, 3, 2) == {((1, 3),), ((1, 1), (1, 2))}
    assert partitions(2, 2, 4) == {
        ((2, 2),), ((1, 2), (1, 2)), ((2, 1), (2, 1)), ((1, 1), (1, 1), (1, 2)), ((1, 1), (1, 1), (2, 1)),
        ((1, 1), (1, 1), (1, 1), (1, 1)),
    }  # fmt: skip
    pinwheel = ((1, 1), (1, 2), (1, 2), (2, 1), (2, 1))
    assert pinwheel in partitions(3, 3, 5)


@pytest.mark.parametrize("rows", range(1, 6))
@pytest.mark.parametrize("columns", range(1, 6))
def test_every_shape_up_to_5_by_5_over_four_devices(rows: int, columns: int) -> None:
    """Three kinds of fleets for each shape, the server allowed in turn."""
    for number in range(3):
        rng = np.random.default_rng([rows, columns, number])
        gemm, fleet = random_case(rng, rows, columns, 4, KINDS[(rows + 2 * columns + 2 * number) % len(KINDS)])
        agree(gemm, fleet, server_allowed=(rows + columns + number) % 2 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_up_to_8_by_8(kind: str) -> None:
    """Any shape up to 8 x 8 over one to four devices, with and without the server."""
    for number in range(4):
        rng = np.random.default_rng([KINDS.index(kind), number])
        rows, columns = (int(side) for side in rng.integers(1, 9, 2))
        gemm, fleet = random_case(rng, rows, columns, 1 + number, kind)
        agree(gemm, fleet, server_allowed=True)
        agree(gemm, fleet, server_allowed=False)


def test_the_largest_case() -> None:
    """8 x 8 over four devices of each kind, devices only."""
    for kind in KINDS:
        gemm, fleet = random_case(np.random.default_rng([8, KINDS.index(kind)]), 8, 8, 4, kind)
        agree(gemm, fleet, server_allowed=False)


@pytest.mark.parametrize("egress", [30.0, 60.0, 100.0, 200.0, 500.0])
def test_egress_that_binds_a_tiny_fleet(egress: float) -> None:
    """The best subset need not be the ablest devices: where the server's egress binds, all subsets are tried too.

    (The search for the crossing of device and link time once looked at the ablest devices only.)
    """
    for number in range(3):
        gemm, fleet = random_case(np.random.default_rng([int(egress), number]), 2, 7, 4, "plain")
        links = server(egress_bytes_per_s=egress)
        agree(gemm, fleet_of(fleet.devices, [links]), server_allowed=False)
