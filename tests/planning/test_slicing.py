"""Small fleets: nested straight cuts against an exhaustive method that shares no code with the planner."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planning_cases import device, gemm_of, spread
from shape_oracle import Case, covers, may_take_part

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import price
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device
from cleave_plan.planning.search import by_ability
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.planning.tiling import FREE, tiles_of_copies, tilings


def devices_of(rng: np.random.Generator, count: int, case: Case) -> list[Device]:
    """Unequal devices; in some fleets latency or memory binds."""
    latency = rng.choice([0.0, 1e-3, 0.3])
    line, item = 2 * case.k * case.size, case.m * case.n * case.wide
    memory = 10 * line if rng.random() < 0.4 else 10 * (line + item + case.k * (case.m + case.n))
    return [
        device(
            f"d{place}", flop_per_s={"any": spread(rng, 1e3, 1e5)}, downlink_bytes_per_s=spread(rng, 50, 5000),
            uplink_bytes_per_s=spread(rng, 5, 500), latency_s=latency * rng.uniform(), memory_bytes=memory * spread(rng, 1, 8),
        )
        for place in range(count)
    ]  # fmt: skip


def planned_s(case: Case, devices: list[Device]) -> float:
    """Seconds of the best tiling that the planner offers, by the cost model's own pricing."""
    gemm = gemm_of("g", (1, case.m, case.k, case.n), dtype=DType.FLOAT16)
    columns = device_columns(devices, DType.FLOAT16)
    terms = terms_of(gemm)
    able = np.flatnonzero(eligible(terms, columns))
    order = by_ability(terms, columns, able, FREE)
    best = math.inf
    for boxes in tilings(terms, columns, order):
        (tiles,) = tiles_of_copies(boxes, case.k, 1, 1)
        covered = np.zeros((case.m, case.n), dtype=np.int64)
        for top, bottom, left, right in zip(tiles.m_start, tiles.m_stop, tiles.n_start, tiles.n_stop, strict=True):
            covered[top:bottom, left:right] += 1
        assert (covered == 1).all()
        costs = price(gemm, tiles, columns)
        assert (costs.kept < 3).all()
        best = min(best, float(np.bincount(tiles.device, costs.ideal_s).max()))
    return best


def check(seed: int, count: int, side: int) -> None:
    rng = np.random.default_rng(seed)
    case = Case(int(rng.integers(1, side + 1)), int(rng.integers(1, side + 1)), int(spread(rng, 1, 2000)))
    devices = devices_of(rng, count, case)
    if not any(may_take_part(case, one) for one in devices):
        return
    reached = planned_s(case, devices)
    assert covers(case, devices, reached * (1 + 1e-9)), "the planner's time is one that straight cuts reach"
    assert not covers(case, devices, reached * (1 - 1e-8)), "no straight cuts are faster"


@pytest.mark.parametrize("seed", range(60))
def test_never_above_an_exhaustive_method(seed: int) -> None:
    """2 to 8 unequal devices, sides up to 64, any K, latency and memory: as fast as any straight cuts in whole rows."""
    count = int(np.random.default_rng(seed).integers(2, 9))
    check(seed, count, side=64 if seed % 2 else 12)
