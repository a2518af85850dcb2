"""Tiny levels against everything that could be done (brute_level.py), with each feature of the planner in turn.

The certificate must hold with every feature: no bound is above what brute force finds. The planner's search is exact for single
GEMMs of whole depth on devices (test_brute_force.py), not here: how near it comes is held to what it reaches today.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from brute_level import best
from planning_cases import device, fleet_of, gemm_of, server, spread, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.gemm import Gemm

CASES = 8

FURTHEST = 2.0
"""Times the best that a tiny plan may take: whole rows of a handful are coarse, and the search for cut K is no exhaustion."""


def some_device(rng: np.random.Generator, name: str) -> Device:
    """Downlink, uplink, arithmetic and latency bind in turn."""
    return device(
        name, flop_per_s={"any": spread(rng, 50, 5e3)}, downlink_bytes_per_s=spread(rng, 20, 500),
        uplink_bytes_per_s=spread(rng, 5, 200), latency_s=float(rng.choice([0.0, 0.0, 0.1])),
    )  # fmt: skip


def some_server(rng: np.random.Generator, name: str) -> Server:
    """Half of them with narrow links."""
    links = (
        {"egress_bytes_per_s": spread(rng, 60, 2e3), "ingress_bytes_per_s": spread(rng, 30, 1e3)} if rng.random() < 0.5 else {}
    )
    rate = {"any": spread(rng, 50, 1e3)}
    return server(name, flop_per_s=rate, memory_bandwidth_bytes_per_s=spread(rng, 200, 1e4), **links)


def sizes(rng: np.random.Generator, *most: int) -> tuple[int, int, int, int]:
    """(1, M, K, N), each up to its limit."""
    m, k, n = (int(rng.integers(1, limit + 1)) for limit in most)
    return 1, m, k, n


def holds(gemms: Sequence[Gemm], fleet: Fleet, least: float, without: frozenset[str] = frozenset()) -> None:
    """The plan is approved, its bound is not above the best, and it is not far from the best itself."""
    workload = workload_of(gemms)
    plan = make_plan(workload, fleet, without=without, gap=0.0)
    assert verify(plan, workload, fleet).findings == ()
    assert plan.predicted.bound_s <= least * (1 + 1e-9)
    assert plan.predicted.ideal_levels_s <= least * FURTHEST


@pytest.mark.parametrize("seed", range(CASES))
def test_inner_splits_and_a_server(seed: int) -> None:
    """Two devices and a server that adds partial sums and computes boxes of its own, one GEMM up to 3 x 5 x 3."""
    rng = np.random.default_rng([1, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0")])
    gemms = [gemm_of("g", sizes(rng, 3, 5, 3), dtype=DType.FLOAT16 if seed % 2 else DType.FLOAT32)]
    holds(gemms, fleet, best(gemms, fleet, most=4))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_part_that_the_server_keeps(seed: int) -> None:
    """K whole: devices and server share up to 5 x 5."""
    rng = np.random.default_rng([2, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0")])
    gemms = [gemm_of("g", sizes(rng, 5, 6, 5))]
    holds(gemms, fleet, best(gemms, fleet, most=4, inner=False), frozenset({"inner"}))


@pytest.mark.parametrize("seed", range(CASES))
def test_two_servers(seed: int) -> None:
    """Either may hold the weights; what the other one lacks moves."""
    rng = np.random.default_rng([3, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0"), some_server(rng, "s1")])
    gemms = [gemm_of("g", sizes(rng, 3, 4, 3))]
    holds(gemms, fleet, best(gemms, fleet))


@pytest.mark.parametrize("seed", range(CASES))
def test_two_gemms_of_one_level(seed: int) -> None:
    """They share devices, links and the server's time."""
    rng = np.random.default_rng([4, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0")])
    gemms = [gemm_of("g", sizes(rng, 3, 4, 3)), gemm_of("h", sizes(rng, 3, 4, 3))]
    holds(gemms, fleet, best(gemms, fleet, most=2))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_shared_operand(seed: int) -> None:
    """Two GEMMs of one A are at best as fast as the product of both side by side."""
    rng = np.random.default_rng([5, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0")])
    _, m, k, _ = sizes(rng, 3, 4, 1)
    one = gemm_of("g", (1, m, k, 2))
    least = best([gemm_of("both", (1, m, k, 4))], fleet, most=4)
    holds([one, gemm_of("h", (1, m, k, 2), a=one.a)], fleet, least)
