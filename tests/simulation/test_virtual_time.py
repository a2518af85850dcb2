"""Plans in virtual time: the cost model where nothing disturbs, a stepwise oracle where links are shared, cases by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import planning_cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import conv_of, device, fleet_of, gemm_of, server, window_of, workload_of
from random_cases import random_cases

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.level import Load
from cleave_plan.cost.phases import phases_of
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.objective import Recount
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.simulation.dispatch import PATIENCE, redispatched
from cleave_plan.simulation.fluid import shared
from cleave_plan.simulation.level import paced
from cleave_plan.simulation.run import Dispatch, Pacing, Simulation, simulate
from cleave_plan.simulation.variation import Factors, Throttling, Variation
from cleave_plan.simulation.work import LevelWork, Links, plan_work
from cleave_plan.workload.graph import Workload


@given(random_cases())
@settings(deadline=None)
def test_undisturbed_it_is_the_cost_model(case: tuple[Plan, Workload, Fleet]) -> None:
    """Planned pacing without jitter: what the second opinion says of each level to 1e-9, on random plans and servers."""
    plan, workload, fleet = case
    figures = Recount(workload, plan.assignments, fleet.devices, fleet.servers).figures()
    done = simulate(plan, workload, fleet, batches=2)
    assert done.levels_s[0] == pytest.approx([level.executed_s for level in figures.levels], rel=1e-9)
    assert done.batch_s == pytest.approx(np.full(2, figures.batch_s), rel=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_phases_add_up_to_the_executed_time(seed: int) -> None:
    """Bytes and FLOP of a tile's phases are its own, and their times in a row its executed time."""
    rng = np.random.default_rng(seed)
    conv = conv_of("c", window_of([(9, 3, 2, 1, 1), (5, 2, 1, 1, 0)], channels=2, images=2), filters=4)
    gemm = [gemm_of("g", (3, 9, 8, 7)), conv][rng.integers(2)]
    devices = device_columns(
        [device(f"d{i}", latency_s=float(rng.integers(2)), memory_bytes=rng.uniform(3e2, 1e4)) for i in range(3)], gemm.dtype
    )
    cut = [
        sorted(rng.choice(size + 1, 2, replace=False).tolist())
        for size in (gemm.shape.m, gemm.shape.n, gemm.shape.k, gemm.shape.batch)
    ]
    tiles = Tiles.of([(int(rng.integers(3)), *(end for ends in cut for end in ends)) for _ in range(4)])
    costs, phases = price(gemm, tiles, devices), phases_of(gemm, tiles, devices)
    own = devices.take(tiles.device[phases.tile])
    busy = np.maximum(np.maximum(phases.down_bytes / own.downlink, phases.flop_s), phases.up_bytes / own.uplink)
    for column, whole in (
        (phases.down_bytes, costs.down_bytes), (phases.up_bytes, costs.up_bytes), (phases.flop, costs.flop),
        (phases.wait_s + busy, costs.executed_s),
    ):  # fmt: skip
        fits = np.isfinite(costs.executed_s)
        assert np.bincount(phases.tile, column, minlength=4)[fits] == pytest.approx(whole[fits])


# ------------------------------------------------------------------------------------------------------- shared links


def stepwise(work: LevelWork, links: Links, egress: float, ingress: float, step_s: float) -> float:
    """The level's end by small steps of time, device by device, for one server: no events, no sorting."""
    queues = [
        [
            [work.wait_s[i], work.down_bytes[i], work.flop_s[i], work.up_bytes[i]]
            for i in np.flatnonzero(work.device == d)
        ]
        for d in work.active
    ]  # fmt: skip
    now = 0.0
    while any(queues):
        now += step_s
        fronts = [(d, queue[0]) for d, queue in zip(work.active, queues, strict=True) if queue]
        for place, caps, capacity in ((1, links.downlink, egress), (3, links.uplink, ingress)):
            going = [(d, front) for d, front in fronts if front[0] <= 0 and front[place] > 0]
            room, left = capacity, sorted(going, key=lambda item: caps[item[0]])
            for count, (d, front) in zip(range(len(left), 0, -1), left, strict=True):
                rate = min(caps[d], room / count)
                room -= rate
                front[place] -= rate * step_s
        for _, front in fronts:
            if front[0] > 0:
                front[0] -= step_s
            else:
                front[2] -= step_s
        queues = [queue[1:] if queue and max(queue[0]) <= 1e-12 else queue for queue in queues]
    return now


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None)
def test_shared_links_against_small_steps(seed: int) -> None:
    """Exact events end within the step oracle's error, never before the paced level; coarser events end about there."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    down, up, latency = rng.uniform(20, 90, count), rng.uniform(20, 90, count), rng.uniform(0, 0.3, count)
    egress, ingress = rng.uniform(40, 150, 2).tolist()
    devices = [
        device(f"d{i}", downlink_bytes_per_s=down[i], uplink_bytes_per_s=up[i], latency_s=latency[i]) for i in range(count)
    ]
    fleet = fleet_of(devices, [server(egress_bytes_per_s=egress, ingress_bytes_per_s=ingress, flop_per_s={"any": 1.0})])
    workload = workload_of([gemm_of("g", (1, 12, 5, 11))])
    laid = plan_work(make_plan(workload, fleet, without=frozenset({"server", "reuse"})), workload, fleet)
    work, links = laid.kinds[0], laid.links
    exact = shared(work, links, fleet.servers, resolution=0)
    step_s = exact.seconds / 4000
    assert exact.seconds == pytest.approx(stepwise(work, links, egress, ingress, step_s), abs=12 * step_s)
    assert exact.seconds >= paced(work, links, fleet.servers).seconds * (1 - 1e-9)
    assert shared(work, links, fleet.servers, resolution=1e-3).seconds == pytest.approx(exact.seconds, rel=0.01)
    for start, stop in zip(exact.start_s, exact.stop_s, strict=True):
        assert start <= stop


def test_two_devices_on_a_narrow_link() -> None:
    """Each is sent 80 B and could take 100 B/s, the server has 100 B/s: 1.6 s instead of 0.8 s until the last byte."""
    work = hand_work(device=[0, 1], down=[80.0, 80.0], flop_s=[0, 0], up=[0, 0])
    links = Links(downlink=np.full(2, 100.0), uplink=np.full(2, 100.0), latency=np.zeros(2))
    narrow = server(egress_bytes_per_s=100.0)
    assert shared(work, links, (narrow,), resolution=0).seconds == pytest.approx(1.6)
    assert shared(work, links, (server(),), resolution=0).seconds == pytest.approx(0.8)


def hand_work(device: list[int], down: list[float], flop_s: list[float], up: list[float]) -> LevelWork:
    """One phase for each device, one GEMM, one server; devices of 1,000 FLOP/s."""
    count, gemm = len(device), gemm_of("g", (1, 1, 1, 1))
    none, places, seconds = np.zeros(count, dtype=np.int64), np.arange(count), np.array(flop_s, dtype=float)
    rates = device_columns([planning_cases.device(f"d{i}") for i in range(max(device) + 1)], gemm.dtype)
    load = replace(Load.none(count, 1), egress=np.array([float(sum(down))]), ingress=np.array([float(sum(up))]))
    return LevelWork(
        gemms=(gemm.name,), device=np.array(device), gemm=none, tile=places, route=none, wait_s=np.zeros(count),
        down_bytes=np.array(down, dtype=float), flop=1000 * seconds, flop_s=seconds, up_bytes=np.array(up, dtype=float),
        routes=np.ones((1, 1)), columns=(rates,), load=load,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- jitter, heat, helpers


def run_of(**options: object) -> Simulation:
    workload = workload_of([gemm_of(f"g{level}", (1, 60, 9, 40), level) for level in range(30)])
    fleet = fleet_of([device(f"d{i}", flop_per_s={"any": 50.0 + 10 * i}) for i in range(5)], [server(flop_per_s={"any": 1.0})])
    return simulate(make_plan(workload, fleet), workload, fleet, **options)  # type: ignore[arg-type]


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same times, another one others; jitter costs time, since a level waits for the unluckiest."""
    jitter = Variation(flop=0.3, downlink=0.3, uplink=0.3)
    first, again, other = (run_of(batches=3, variation=jitter, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.levels_s, again.levels_s)
    assert not np.array_equal(first.levels_s, other.levels_s)
    assert first.batch_s.mean() > 1.1 * first.planned_batch_s


def test_jitter_is_fair_to_the_mean() -> None:
    """Factors have mean 1 and the spread that was asked for."""
    from cleave_plan.simulation.variation import Heat, draw

    factors = draw(Variation(flop=0.2), np.zeros(200_000, dtype=np.int64), Heat(1, None), np.random.default_rng(0))
    assert factors.flop.mean() == pytest.approx(1, abs=2e-3)
    assert np.log(factors.flop).std() == pytest.approx(0.2, abs=2e-3)
    assert np.all(factors.down == 1)


def test_hot_devices_slow_down() -> None:
    """Arithmetic binds here: after 5 s of work devices have half their rate, so that batches take longer, up to twice."""
    hot = run_of(batches=4, variation=Variation(throttling=Throttling(after_s=5, fraction=0.5, cool_s=1e9)))
    assert hot.levels_s[0, 0] == pytest.approx(hot.planned_s[0])
    assert hot.batch_s[3] == pytest.approx(2 * hot.planned_batch_s, rel=0.3)
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(hot.batch_s))


def test_an_idle_device_finishes_what_is_late() -> None:
    """One device is 20 times slower than planned (20 s for 1 s): at 1.2 s the other one starts the same tile, done at 2.2 s."""
    work = hand_work(device=[0, 1], down=[0, 0], flop_s=[1.0, 1.0], up=[0, 0])
    links = Links(downlink=np.full(2, 100.0), uplink=np.full(2, 100.0), latency=np.zeros(2))
    slow = Factors(flop=np.array([20.0, 1.0]), down=np.ones(2), up=np.ones(2))
    plan, run = paced(work, links, (server(),)), paced(work, links, (server(),), slow)
    assert run.seconds == 20
    helped, moved = redispatched(work, run, plan, links)
    assert (helped.seconds, moved) == (pytest.approx(PATIENCE + 1), 1)


def test_dynamic_dispatch_never_hurts() -> None:
    """With the same draws the levels with helpers take at most as long."""
    jitter = Variation(flop=0.8)
    barrier = run_of(batches=2, variation=jitter, seed=3)
    dynamic = run_of(batches=2, variation=jitter, seed=3, dispatch=Dispatch.DYNAMIC)
    assert np.all(dynamic.levels_s <= barrier.levels_s)
    assert dynamic.redispatched > 0
    assert dynamic.batch_s.sum() < barrier.batch_s.sum()


def test_a_timeline_has_every_level_in_order() -> None:
    """Levels follow one another without overlap, and the phases of each lie inside it."""
    done = run_of(batches=2, timeline=True, pacing=Pacing.SHARED)
    assert [(moment.batch, moment.level) for moment in done.moments] == [(b, level) for b in range(2) for level in range(30)]
    for moment, following in pairwise(done.moments):
        assert moment.start_s + moment.run.seconds <= following.start_s * (1 + 1e-12)
        assert moment.run.stop_s.max() <= moment.run.seconds * (1 + 1e-12)
    assert not math.isnan(done.busy_s.sum())
