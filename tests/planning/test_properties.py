"""What holds of every plan, on random small fleets and workloads."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import conv_of, device, fleet_of, gemm_of, server, spread, window_of, workload_of

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.plan import Mode, Plan
from cleave_plan.plan.planfile import load_plan, save_plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload

BISECTION = 3e-5
"""How far apart two bounds of levels may lie by the tolerance of their bisection (1e-5 each)."""


def random_device(rng: np.random.Generator, name: str) -> Device:
    """Figures over two orders of magnitude; sometimes latency, sometimes little memory."""
    return device(
        name, flop_per_s={"any": spread(rng, 1e2, 1e5)}, downlink_bytes_per_s=spread(rng, 10, 1e4),
        uplink_bytes_per_s=spread(rng, 10, 1e4), latency_s=float(rng.choice([0.0, 0.0, 0.01, 1.0])),
        memory_bytes=float(rng.choice([1e6, 1e6, 6e3])),
    )  # fmt: skip


def random_gemm(rng: np.random.Generator, name: str, level: int) -> Gemm:
    """A product of one or several batch items, or a small convolution."""
    if rng.random() < 0.2:
        window = window_of([(int(rng.integers(3, 7)), 3, 1, 1, 1)] * int(rng.integers(1, 3)), images=2, channels=2)
        return conv_of(name, window, int(rng.integers(1, 5)), level)
    batch = int(rng.choice([1, 1, 1, 2, 5]))
    m, k, n = (int(spread(rng, 1, 24)) for _ in range(3))
    return gemm_of(name, (batch, m, k, n), level)


def random_workload(rng: np.random.Generator) -> Workload:
    """One to three levels of one to three products; sometimes two alike, sometimes two with one operand."""
    gemms: list[Gemm] = []
    for level in range(int(rng.integers(1, 4))):
        gemms += [random_gemm(rng, f"g{level}.{place}", level) for place in range(int(rng.integers(1, 3)))]
        twin = gemms[-1]
        if rng.random() < 0.5:
            shared = twin.a if rng.random() < 0.5 else replace(twin.a, tensor="other.in")
            gemms.append(
                replace(
                    twin, name=f"{twin.name}.twin", node=f"{twin.name}.twin", a=shared, output=f"{twin.output}.twin",
                    b=replace(twin.b, tensor=f"{twin.b.tensor}.twin"),
                )
            )  # fmt: skip
    return workload_of(gemms)


def random_fleet(rng: np.random.Generator) -> Fleet:
    """One to six devices and a server, sometimes with narrow links."""
    narrow = {"egress_bytes_per_s": spread(rng, 1e2, 1e5), "ingress_bytes_per_s": spread(rng, 1e2, 1e5)}
    servers = [server(flop_per_s={"any": spread(rng, 1e2, 1e5)}, **(narrow if rng.random() < 0.5 else {}))]
    return fleet_of([random_device(rng, f"d{place}") for place in range(int(rng.integers(1, 7)))], servers)


def planned(workload: Workload, fleet: Fleet, without: frozenset[str] = frozenset()) -> Plan | None:
    """The plan, or None where there is none."""
    try:
        return make_plan(workload, fleet, without=without)
    except InfeasibleError:
        return None


def covered_once(plan: Plan, workload: Workload) -> bool:
    """Every multiply-add of every product is in exactly one tile, by counting."""
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    for assignment in plan.assignments:
        if assignment.mode is Mode.SERVER:
            continue
        members = [gemms[name].shape for name in assignment.products()[0]]
        batch, m, k, n = members[0]
        n = sum(shape.n for shape in members) if assignment.join_axis == "n" else n
        k = sum(shape.k for shape in members) if assignment.join_axis == "k" else k
        count = np.zeros((batch, m, k, n), dtype=int)
        t = assignment.tiles
        for place in range(len(t)):
            count[
                t.batch_start[place] : t.batch_stop[place], t.m_start[place] : t.m_stop[place],
                t.k_start[place] : t.k_stop[place], t.n_start[place] : t.n_stop[place],
            ] += 1  # fmt: skip
        if not (count == 1).all():
            return False
    return sorted(name for a in plan.assignments for name in a.gemms) == sorted(gemms)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.sampled_from(["", "server", "inner", "level-joint", "reuse"]))
def test_any_plan_covers_exactly_and_holds(seed: int, without: str) -> None:
    """Exact cover by counting, the second opinion, a bound that is none above the plan, and the file's round trip."""
    rng = np.random.default_rng(seed)
    workload, fleet = random_workload(rng), random_fleet(rng)
    plan = planned(workload, fleet, frozenset({without} - {""}))
    if plan is None:
        return
    assert covered_once(plan, workload)
    verdict = verify(plan, workload, fleet)
    assert verdict.ok, verdict.findings
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9)
    with TemporaryDirectory() as folder:
        first, second = (Path(folder) / f"{number}.json" for number in (1, 2))
        save_plan(plan, first)
        save_plan(load_plan(first), second)
        assert first.read_bytes() == second.read_bytes()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_a_fleet_of_one_is_that_device_alone(seed: int) -> None:
    """Alone, and sent everything, one device does each product as one tile: l + max(down / d, flop / F, up / u), by hand."""
    rng = np.random.default_rng(seed)
    own = replace(random_device(rng, "d0"), memory_bytes=1e9)
    gemms = [gemm_of(f"g{level}", (1, *(int(spread(rng, 1, 40)) for _ in range(3))), level) for level in range(3)]
    plan = planned(workload_of(gemms), fleet_of([own]), frozenset({"server", "reuse"}))
    assert plan is not None
    expected = 0.0
    for gemm in gemms:
        _, m, k, n = gemm.shape
        down = 4 * k * (m + n) / own.downlink_bytes_per_s
        expected += own.latency_s + max(down, 2 * m * k * n / own.flop_per_s["any"], 4 * m * n / own.uplink_bytes_per_s)
    assert plan.predicted.ideal_levels_s == pytest.approx(expected, rel=1e-9)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_the_bound_never_rises_when_a_device_joins(seed: int) -> None:
    """More devices: a bound no higher, and a plan slower than the old one by no more than its own gap."""
    rng = np.random.default_rng(seed)
    workload, before = random_workload(rng), random_fleet(rng)
    after = fleet_of([*before.devices, random_device(rng, "new")], before.servers)
    old, new = planned(workload, before), planned(workload, after)
    if old is None or new is None:
        assert old is None or new is not None
        return
    assert new.predicted.bound_s <= old.predicted.bound_s * (1 + BISECTION)
    assert new.predicted.ideal_levels_s * (1 - new.predicted.gap) <= old.predicted.ideal_levels_s * (1 + BISECTION)


def test_the_same_plan_whatever_the_hash_seed(tmp_path: Path) -> None:
    """Two interpreters with other hash seeds, on one core and on all, write the same bytes."""
    script = (
        "import os, sys, numpy as np; from pathlib import Path;"
        "from test_properties import random_fleet, random_workload, make_plan, save_plan;"
        "one = sys.argv[1] == '1' and hasattr(os, 'sched_setaffinity');"
        "_ = os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]) if one else None;"
        "rng = np.random.default_rng(7);"
        "[save_plan(make_plan(random_workload(rng), random_fleet(rng)), Path(sys.argv[2]) / f'{i}.json') for i in range(3)]"
    )
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", script, hash_seed, str(folder)], cwd=Path(__file__).parent, check=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": hash_seed},
        )  # fmt: skip
    for number in range(3):
        first, second = ((tmp_path / hash_seed / f"{number}.json").read_bytes() for hash_seed in ("1", "2"))
        assert first == second
