"""The second opinion recomputes every figure of a plan from its tiles, with code of its own: they agree to 1e-9.

Random fleets and workloads with every feature in turn: several servers with narrow links, training steps, attention as chains,
joined operands, inner splits, constraints, percentiles. 1,000 cases in the long run, 60 small ones by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from planning_cases import fleet_of, server, spread, workload_of
from test_properties import random_device, random_workload

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Device, Fleet, Server, Spread
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import Constraint, Plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import SWITCHES, make_plan
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.graph import Workload
from models.registry import build

MODELS = ("gpt-tiny", "llama-tiny", "bert-tiny")


@cache
def model(name: str, batch: int, seq: int) -> Workload:
    """A tiny transformer."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(build(name).SerializeToString())
        return load_model(path, dims={"batch": batch, "seq": seq}).workload


def work_of(rng: np.random.Generator, number: int, small: bool) -> Workload:
    """A tiny transformer in one case of thirty, random products in the others; sometimes as a training step."""
    if number % 30 == 0:
        work = model(MODELS[number // 30 % len(MODELS)], int(rng.integers(1, 3)), int(rng.choice([4, 7])))
    else:
        work = random_workload(rng)
        if small:
            work = workload_of([gemm for gemm in work.gemms if gemm.level == 0])
    return training_workload(work) if len(work.gemms) <= (2 if small else 99) and rng.random() < 0.3 else work


def varying(rng: np.random.Generator, device: Device) -> Device:
    """``device``, sometimes with quartiles around its links."""
    if rng.random() < 0.5:
        return device
    down, up = device.downlink_bytes_per_s, device.uplink_bytes_per_s
    quartiles = {
        "downlink": Spread(lower=down / 2, upper=down, samples=5),
        "uplink": Spread(lower=up / 3, upper=2 * up, samples=5),
    }
    return replace(device, spread=quartiles)


def fleet(rng: np.random.Generator, large: bool, small: bool) -> Fleet:
    """One to five devices, one to three servers, their links narrow or without limit; ``large``: enough of everything."""
    scale = 1e4 if large else 1.0
    devices = [random_device(rng, f"d{place}") for place in range(int(rng.integers(1, 4 if small else 6)))]
    devices = [
        replace(
            one, flop_per_s={"any": one.flop_per_s["any"] * scale}, memory_bytes=one.memory_bytes * scale,
            downlink_bytes_per_s=one.downlink_bytes_per_s * scale, uplink_bytes_per_s=one.uplink_bytes_per_s * scale,
        )
        for one in devices
    ]  # fmt: skip
    servers: list[Server] = []
    for place in range(int(rng.choice([1, 1, 1, 2] if small else [1, 1, 2, 3]))):
        narrow = rng.random() < 0.5
        links = {name: spread(rng, 1e2, 1e5) * scale for name in ("egress_bytes_per_s", "ingress_bytes_per_s")} if narrow else {}
        rate = {"any": spread(rng, 1e2, 1e5) * scale}
        servers.append(server(f"s{place}", flop_per_s=rate, memory_bandwidth_bytes_per_s=1e4 * scale, **links))
    return fleet_of([varying(rng, one) for one in devices], servers)


def demands(rng: np.random.Generator, devices: Sequence[Device]) -> list[Constraint]:
    """None, most often; or one on a device."""
    name = devices[int(rng.integers(len(devices)))].name
    asked = [
        Constraint(name="out", devices=(name,), exclude=len(devices) > 1),
        Constraint(name="room", devices=(name,), headroom=0.3),
        Constraint(name="less", devices=(name,), work=0.5),
    ]
    return [asked[int(rng.integers(3))]] if rng.random() < 0.2 else []


def planned(seed: int, small: bool) -> tuple[Plan, Workload, Fleet] | None:
    """The plan of one random case; None where there is none."""
    rng = np.random.default_rng([11, seed])
    work, some = work_of(rng, seed, small), fleet(rng, seed % 30 == 0, small)
    switched = frozenset(name for name in sorted(SWITCHES) if rng.random() < 0.15)
    percentile = 90.0 if rng.random() < 0.3 else None
    try:
        plan = make_plan(work, some, without=switched, constraints=demands(rng, some.devices), percentile=percentile)
    except InfeasibleError:
        return None
    return plan, work, some


def agree(seeds: range, small: bool) -> None:
    """Every plan passes, its figures are those recomputed, to 1e-9; most cases have a plan."""
    made = 0
    for seed in seeds:
        case = planned(seed, small)
        if case is None:
            continue
        made += 1
        plan, work, some = case
        verdict = verify(plan, work, some)
        assert verdict.findings == (), (seed, verdict.findings)
        assert verdict.figures is not None
        assert verdict.figures.ideal_levels_s == pytest.approx(plan.predicted.ideal_levels_s, rel=1e-9), seed
        assert verdict.figures.batch_s == pytest.approx(plan.predicted.batch_s, rel=1e-9), seed
        assert plan.solver.objective == pytest.approx(verdict.figures.ideal_levels_s, rel=1e-6), seed
        assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s * (1 + 1e-9), seed
    assert made > 0.8 * len(seeds)


def test_sixty_random_plans() -> None:
    """A sample of the thousand."""
    agree(range(60), small=True)


@pytest.mark.long
def test_a_thousand_random_plans() -> None:
    """As many as make a rare disagreement likely to be seen."""
    agree(range(1000), small=False)
