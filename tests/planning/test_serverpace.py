"""One pace for all servers in the bound of a level: no schedule of any servers is faster than it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.serverpace import common_paces


def test_alike_servers_add_up() -> None:
    """Three servers of one kind: three times the pace, twice where there are but two GEMMs."""
    paces = np.array([[4.0, 4.0, 4.0], [3.0, 3.0, 3.0]])
    assert common_paces(paces, [10, 1], 5) == [12.0, 9.0]
    assert common_paces(paces, [10, 1], 2) == [8.0, 6.0]


def test_what_no_server_may_compute() -> None:
    """Its pace is 0, and the others' paces do not depend on it."""
    assert common_paces(np.array([[0.0, 0.0], [2.0, 1.0]]), [9, 1], 2) == [0.0, 3.0]
    assert common_paces(np.zeros((2, 2)), [1, 1], 2) == [0.0, 0.0]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_no_schedule_is_faster(seed: int) -> None:
    """Random paces, work given to servers at random (some may not compute some GEMMs): T is at least sum of work over pace."""
    rng = np.random.default_rng(seed)
    gemms, servers = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    paces = rng.lognormal(0, 1, (gemms, servers)) * (rng.random((gemms, servers)) > 0.2)
    home = np.array([int(rng.integers(servers)) for _ in range(gemms)])  # each GEMM on one server
    work = rng.lognormal(0, 1, gemms) * (paces[np.arange(gemms), home] > 0)
    seconds = np.zeros(servers)
    for g in range(gemms):
        if work[g] > 0:
            seconds[home[g]] += work[g] / paces[g, home[g]]
    common = common_paces(paces, [float(w) for w in work], gemms)
    least = sum(w / pace for w, pace in zip(work, common, strict=True) if w > 0)
    assert least <= seconds.max() * (1 + 1e-12)


def test_two_servers_that_differ() -> None:
    """One large product and two small ones, whose memory traffic limits the fast server: each server has its own."""
    servers = [server("fast", flop_per_s={"any": 9400.0}), server("slow", flop_per_s={"any": 1390.0})]
    gemms = [gemm_of("large", (1, 4, 8, 18)), *(gemm_of(f"small{i}", (1, 8, 6, 1)) for i in range(2))]
    slow = device("d", downlink_bytes_per_s=1e-3, uplink_bytes_per_s=1e-3)
    plan = make_plan(workload_of(gemms), fleet_of([slow], servers))
    assert plan.predicted.ideal_levels_s == pytest.approx(192 / 1390)  # the small ones on the slow server
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s
