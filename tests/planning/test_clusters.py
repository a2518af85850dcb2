"""Bands of a few devices each: exact covers, near the bound where strips are not."""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import device, gemm_of, spread

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.planning.bounds import gemm_bound
from cleave_plan.planning.boxes import Boxes, boxes_of_items, tiles_of_copies
from cleave_plan.planning.clusters import clustered
from cleave_plan.planning.search import by_ability
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.planning.tiling import FREE, tilings
from cleave_plan.workload.gemm import Gemm


def seconds(gemm: Gemm, boxes: Boxes, columns: DeviceColumns) -> float:
    """Ideal seconds of the slowest device by the cost model's own pricing; the boxes cover the GEMM once and fit the memory."""
    tiles: Tiles
    (tiles,) = tiles_of_copies(boxes, 1, 1)
    assert cover_flaw(tiles, gemm.shape) is None
    costs = price(gemm, tiles, columns)
    assert (costs.kept < 3).all()
    return float(np.bincount(tiles.device, costs.ideal_s).max())


@pytest.mark.parametrize(
    ("preset", "count", "shape"),
    [
        ("cleave", 256, (1, 65536, 3072, 768)), ("cleave", 128, (1, 131072, 50272, 5120)),
        ("measured-2023", 128, (1, 131072, 50272, 5120)), ("cleave", 128, (1, 5120, 20480, 131072)),
    ],
)  # fmt: skip
def test_short_sides_within_one_percent_of_the_bound(preset: str, count: int, shape: tuple[int, int, int, int]) -> None:
    """Products whose shorter side has room for two or three tiles (fc2 of BERT-base and OPT-13B, its head's dX)."""
    gemm = gemm_of("g", shape, dtype=DType.FLOAT16)
    columns = device_columns(generate_fleet(count, preset=preset).devices, DType.FLOAT16)
    bound = gemm_bound(terms_of(gemm), columns, FREE)
    order = by_ability(terms_of(gemm), columns, np.arange(count), FREE)
    reached = min(seconds(gemm, boxes, columns) for boxes in tilings(terms_of(gemm), columns, order))
    assert bound <= reached <= 1.01 * bound


@pytest.mark.parametrize("seed", range(12))
def test_any_fleet_is_covered_exactly(seed: int) -> None:
    """17 to 60 very unequal devices, latency and memory too: whatever is returned is a tiling that takes less than was asked."""
    rng = np.random.default_rng([17, seed])
    shape = (1, int(rng.integers(1, 2000)), int(rng.integers(1, 500)), int(rng.integers(1, 300)))
    gemm = gemm_of("g", shape, dtype=DType.FLOAT16)
    line = 2.0 * shape[2]
    devices = [
        device(
            f"d{place}", flop_per_s={"any": spread(rng, 1e3, 1e6)}, downlink_bytes_per_s=spread(rng, 50, 5000),
            uplink_bytes_per_s=spread(rng, 5, 500), latency_s=float(rng.choice([0.0, 0.5])),
            memory_bytes=line * spread(rng, 10, 1e5),
        )
        for place in range(int(rng.integers(17, 61)))
    ]  # fmt: skip
    columns, terms = device_columns(devices, DType.FLOAT16), terms_of(gemm)
    order = by_ability(terms, columns, np.flatnonzero(eligible(terms, columns)), FREE)
    floor = gemm_bound(terms, columns.take(order), FREE)
    found = clustered(terms, columns, order, 100 * floor, floor)
    assert found is not None
    reached = seconds(gemm, boxes_of_items(found, terms.depth, 0, 1), columns)
    assert floor * (1 - 1e-9) <= reached < 100 * floor
    assert clustered(terms, columns, order, reached, floor) is None  # nothing faster, the same search
