"""Tiny levels against everything that could be done (brute_level.py), with each feature of the planner in turn.

The certificate must hold with every feature: no bound is above what brute force finds. And the plan must be as fast, or faster:
brute force tries no more than a few boxes for each GEMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from brute_level import best, best_attention
from planning_cases import device, fleet_of, gemm_of, server, spread, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.attention import Sides, forward_chain
from cleave_plan.workload.gemm import Gemm, Operand, Role
from cleave_plan.workload.graph import Workload

CASES = 8

FURTHEST = 1 + 1e-6
"""Times the best that a plan may take: the solver's tolerance."""


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
    """The plan is approved, its bound is not above the best, and it takes no longer than the best."""
    obeys(workload_of(gemms), fleet, least, without)


def obeys(workload: Workload, fleet: Fleet, least: float, without: frozenset[str] = frozenset()) -> None:
    """The same of a whole workload."""
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


@pytest.mark.parametrize("seed", range(CASES))
def test_attention_as_one_piece_of_work(seed: int) -> None:
    """Heads and rows of up to 3 x 3 over two devices and a server; scores never leave who computes them."""
    rng = np.random.default_rng([6, seed])
    fleet = fleet_of([some_device(rng, "a"), some_device(rng, "b")], [some_server(rng, "s0")])
    heads, rows, length, width = (int(rng.integers(1, limit + 1)) for limit in (3, 3, 5, 4))
    inner = Operand(tensor="k", role=Role.ACTIVATION, dtype=DType.FLOAT32)
    scores = gemm_of("scores", (heads, rows, width, length), b=inner)
    context = gemm_of("context", (heads, rows, length, width), level=1, b=replace(inner, tensor="v"))
    chain = forward_chain(scores, context, {}, level=1, sides=Sides())
    workload = workload_of([scores, context], chains=(chain,))
    obeys(workload, fleet, best_attention(heads, rows, length, width, fleet))


@pytest.mark.long
@pytest.mark.parametrize("kind", range(5))
def test_many_more_levels(kind: int) -> None:
    """Each of the tests above for a hundred further seeds."""
    checks = (
        test_inner_splits_and_a_server, test_a_part_that_the_server_keeps, test_two_servers, test_two_gemms_of_one_level,
        test_attention_as_one_piece_of_work,
    )  # fmt: skip
    for seed in range(CASES, CASES + 100):
        checks[kind](seed)
