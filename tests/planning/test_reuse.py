"""Reuse: by hand, against brute force over two levels, and properties of every plan that keeps something."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from brute_force import partitions
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import device, fleet_of, gemm_of, server, spread, workload_of

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.gemm import Gemm, Operand, Role
from cleave_plan.workload.graph import Workload

AWAY = frozenset({"server"})
NOTHING_KEPT = frozenset({"server", "reuse"})


def chain_of(shapes: list[tuple[int, int, int]]) -> Workload:
    """GEMMs (m, k, n), each reading the result of the one before it."""
    gemms = []
    for level, shape in enumerate(shapes):
        own = gemm_of(f"g{level}", (1, *shape), level)
        source = f"g{level - 1}.out" if level else "x"
        gemms.append(replace(own, a=Operand(tensor=source, role=Role.ACTIVATION, dtype=own.a.dtype, learned=level > 0)))
    elements = sum(gemm.shape.k * gemm.shape.n for gemm in gemms)
    return workload_of(gemms, parameter_elements=elements)


def memory_holds(plan: Plan, fleet: Fleet) -> bool:
    """No device needs more than it has, what it keeps included."""
    memory = {own.name: own.memory_bytes for own in fleet.devices}
    return all(need <= memory[name] * (1 + 1e-9) for name, need in plan.predicted.device_memory_bytes.items())


def test_one_device_keeps_its_weights() -> None:
    """One row, K = 10, N = 5: 40 bytes of A a batch at 100 B/s; 200 more of weights in the first one. By hand."""
    workload = workload_of([gemm_of("g", (1, 1, 10, 5))])
    fleet = fleet_of([device("d0")])
    plan = make_plan(workload, fleet, without=AWAY)
    assert plan.predicted.ideal_levels_s == pytest.approx(0.4)
    assert plan.predicted.batch_s == pytest.approx(0.4)  # B is there: A passes, 100 FLOP in 0.1 s, 20 bytes up in 0.4 s
    assert plan.predicted.first_batch_s == pytest.approx(2.4)
    assert plan.predicted.device_kept_bytes == {"d0": 200.0}
    assert (plan.predicted.spared_bytes, plan.predicted.downlink_bytes) == (200.0, 40.0)
    assert plan.assignments[0].held_b.tolist() == [5]
    assert verify(plan, workload, fleet).ok


def test_memory_for_one_of_two_layers() -> None:
    """Two equal layers of 4,000 bytes of weights, and 6,000 bytes beside the stream buffers: one layer stays, one does not."""
    workload = workload_of([gemm_of(f"g{level}", (1, 1, 100, 10), level) for level in range(2)])
    fleet = fleet_of([device("d0", memory_bytes=6000 / 0.9 + 4000)])
    both = make_plan(workload, fleet, without=AWAY)
    assert both.predicted.device_kept_bytes == {"d0": 8000.0}
    tight = fleet_of([device("d0", memory_bytes=8040.0)])  # 7,236 bytes beside the buffers, which hold one row and one column
    one = make_plan(workload, tight, without=AWAY)
    assert one.predicted.device_kept_bytes == {"d0": 4000.0}
    assert one.predicted.ideal_levels_s == pytest.approx(4 + 44)
    assert verify(one, workload, tight).ok
    assert memory_holds(one, tight)


def test_training_keeps_nothing_from_batch_to_batch() -> None:
    """Weights change: the first batch is like any other."""
    workload = training_workload(chain_of([(8, 6, 5), (8, 5, 4)]))
    fleet = fleet_of([device("d0"), device("d1", uplink_bytes_per_s=500.0)])
    plan = make_plan(workload, fleet, without=AWAY)
    assert plan.predicted.first_batch_s == plan.predicted.batch_s
    assert plan.predicted.spared_bytes > 0
    assert verify(plan, workload, fleet).ok


def test_a_lone_device_is_sent_no_operand_twice() -> None:
    """One device with room for all: of X, W (forward), dY (dX) and nothing (dW), by hand, with a fast uplink."""
    workload = training_workload(chain_of([(8, 6, 5), (8, 5, 4)]))
    fleet = fleet_of([device("d0", uplink_bytes_per_s=1e6, flop_per_s={"any": 1e9})])
    plan = make_plan(workload, fleet, without=AWAY)
    forward = 4 * (8 * 6 + 6 * 5) + 4 * (8 * 5 + 5 * 4)
    backward = 4 * 8 * 4 + 4 * 8 * 5  # dY of the second layer (dX, then dW), dY of the first (dW alone: its input learns nothing)
    assert plan.predicted.downlink_bytes == pytest.approx(forward + backward)
    assert plan.predicted.ideal_levels_s == pytest.approx((forward + backward) / 100, rel=1e-4)  # dW waits for its uplink


def kept_seconds(gemm: Gemm, own: Device, r: int, c: int, kept: bool) -> tuple[float, float]:
    """Ideal seconds of one tile of whole depth, and the bytes that it keeps."""
    k, size = gemm.shape.k, gemm.a.dtype.bits / 8
    if 2 * k * size > 0.1 * own.memory_bytes:
        return math.inf, 0.0
    down = r * k * size + (0 if kept else c * k * size)
    seconds = max(down / own.downlink_bytes_per_s, 2 * r * c * k / own.flop_per_s["any"], r * c * size / own.uplink_bytes_per_s)
    return own.latency_s + seconds, c * k * size if kept else 0.0


def best_of_level(gemm: Gemm, fleet: Fleet) -> list[tuple[float, tuple[float, ...]]]:
    """Every tiling of a level, each tile kept or not: its seconds and the bytes kept on each device; dominated ones left out."""
    count = len(fleet.devices)
    priced = cache(lambda place, r, c, kept: kept_seconds(gemm, fleet.devices[place], r, c, kept))
    found: list[tuple[float, tuple[float, ...]]] = []
    for sizes in partitions(gemm.shape.m, gemm.shape.n, count):
        for chosen in permutations(range(count), len(sizes)):
            for mask in range(2 ** len(sizes)):
                seconds, kept = 0.0, [0.0] * count
                for place, ((r, c), own) in enumerate(zip(sizes, chosen, strict=True)):
                    tile_s, size = priced(own, r, c, bool(mask >> place & 1))
                    seconds, kept[own] = max(seconds, tile_s), kept[own] + size
                found.append((seconds, tuple(kept)))
    found.sort()
    front: list[tuple[float, tuple[float, ...]]] = []
    for seconds, size in found:
        if not any(all(a <= b for a, b in zip(other, size, strict=True)) for _, other in front):
            front.append((seconds, size))
    return front


def brute(workload: Workload, fleet: Fleet) -> float:
    """The least ideal seconds of two levels whose kept pieces fit together (what a tile needs beside them left out: a lower
    bound of what plans may do, reached where memory is plenty)."""
    first, second = (best_of_level(gemm, fleet) for gemm in workload.gemms)
    room = [0.9 * own.memory_bytes for own in fleet.devices]
    return min(
        one_s + two_s
        for one_s, one in first
        for two_s, two in second
        if all(a + b <= most for a, b, most in zip(one, two, room, strict=True))
    )


def tiny_pair(rng: np.random.Generator, plenty: bool) -> tuple[Workload, Fleet]:
    """Two levels with sides up to 4 over two or three devices."""
    shapes = [tuple(int(side) for side in rng.integers(1, 5, 3)) for _ in range(2)]
    workload = workload_of([gemm_of(f"g{level}", (1, *shape), level) for level, shape in enumerate(shapes)])
    members = []
    for place in range(int(rng.integers(2, 4))):
        least = 10 * max(8 * shape[1] for shape in shapes)
        members.append(
            device(
                f"d{place}", flop_per_s={"any": spread(rng, 50, 5e3)}, downlink_bytes_per_s=spread(rng, 20, 500),
                uplink_bytes_per_s=spread(rng, 5, 200), latency_s=float(rng.choice([0.0, rng.uniform(0, 0.3)])),
                memory_bytes=1e6 if plenty else least * rng.uniform(1.0, 1.3),
            )
        )  # fmt: skip
    return workload, fleet_of(members)


@pytest.mark.parametrize("seed", range(12))
def test_two_levels_with_room_for_all_are_planned_as_brute_force_does(seed: int) -> None:
    """As fast as every pair of tilings with each tile kept or not, or faster (a device may have several boxes)."""
    workload, fleet = tiny_pair(np.random.default_rng(seed), plenty=True)
    plan = make_plan(workload, fleet, without=AWAY | {"inner"}, gap=0.0)
    best = brute(workload, fleet)
    assert plan.predicted.bound_s * (1 - 1e-9) <= plan.predicted.ideal_levels_s <= best * (1 + 1e-9)
    assert plan.predicted.bound_s <= best * (1 + 1e-9)
    assert verify(plan, workload, fleet).ok


@pytest.mark.parametrize("seed", range(12))
def test_little_memory_is_never_exceeded_and_the_bound_holds(seed: int) -> None:
    """The bound is below brute force and plan, and the plan no slower than one that keeps nothing."""
    workload, fleet = tiny_pair(np.random.default_rng([7, seed]), plenty=False)
    plan = make_plan(workload, fleet, without=AWAY | {"inner"}, gap=0.0)
    best = brute(workload, fleet)
    assert plan.predicted.bound_s <= best * (1 + 1e-9)
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)
    without = make_plan(workload, fleet, without=NOTHING_KEPT | {"inner"}, gap=0.0)
    assert plan.predicted.ideal_levels_s <= without.predicted.ideal_levels_s * (1 + 1e-9)
    assert memory_holds(plan, fleet)
    assert verify(plan, workload, fleet).ok


def random_case(rng: np.random.Generator) -> tuple[Workload, Fleet]:
    """Two or three levels, a forward pass or a training step, over one to three devices, a server, sometimes little memory."""
    shapes, rows, inner = [], int(spread(rng, 1, 12)), int(spread(rng, 2, 12))
    for _ in range(int(rng.integers(2, 4))):
        out = int(spread(rng, 1, 12))
        shapes.append((rows, inner, out))
        inner = out
    workload = chain_of(shapes)
    least = 10 * 8 * max(max(shape) for shape in shapes)
    members = [
        device(
            f"d{place}", flop_per_s={"any": spread(rng, 50, 5e4)}, downlink_bytes_per_s=spread(rng, 20, 2e3),
            uplink_bytes_per_s=spread(rng, 20, 2e3), latency_s=float(rng.choice([0.0, rng.uniform(0, 0.1)])),
            memory_bytes=least * (spread(rng, 1, 3) if rng.random() < 0.5 else 1e3),
        )
        for place in range(int(rng.integers(1, 4)))
    ]  # fmt: skip
    keeper = server(egress_bytes_per_s=spread(rng, 1e2, 1e4) if rng.random() < 0.4 else math.inf)
    return training_workload(workload) if rng.random() < 0.5 else workload, fleet_of(members, [keeper])


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_reuse_never_costs_time_or_memory(seed: int) -> None:
    """Never slower than without, its bound never above that without nor above any plan, memory holds, figures recomputed."""
    rng = np.random.default_rng(seed)
    workload, fleet = random_case(rng)
    off = AWAY if rng.random() < 0.7 else frozenset()
    try:
        without = make_plan(workload, fleet, without=off | {"reuse"}, gap=0.0)
    except InfeasibleError:
        return
    plan = make_plan(workload, fleet, without=off, gap=0.0)
    assert plan.predicted.ideal_levels_s <= without.predicted.ideal_levels_s * (1 + 1e-9)
    assert plan.predicted.bound_s <= min(without.predicted.bound_s, plan.predicted.ideal_levels_s) * (1 + 1e-9)
    assert memory_holds(plan, fleet)
    verdict = verify(plan, workload, fleet)
    assert verdict.ok, verdict.findings
