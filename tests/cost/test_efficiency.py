"""Measured curves: straight lines over the logarithm of FLOP, held constant outside the points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_cases import device, gemm_of

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import Tiles, executed_on, price, work_of
from cleave_plan.dtypes import DType
from cleave_plan.errors import MissingFigureError
from cleave_plan.fleet.device import EfficiencyPoint

CURVE = (
    EfficiencyPoint(flop=100, fraction=0.2),
    EfficiencyPoint(flop=10_000, fraction=0.8),
    EfficiencyPoint(flop=1e6, fraction=0.6),
)


@pytest.mark.parametrize(
    ("flop", "fraction"),
    [
        (1, 0.2), (100, 0.2), (1000, 0.5), (10_000, 0.8), (100_000, 0.7), (1e6, 0.6), (1e12, 0.6), (0, 0.2),
        (100 * 10**0.5, 0.35),
    ],
)  # fmt: skip
def test_between_points_on_the_logarithm(flop: float, fraction: float) -> None:
    """1,000 FLOP lies half way between 100 and 10,000 on a logarithmic axis."""
    columns = device_columns([device(efficiency=CURVE)], DType.FLOAT32)
    assert columns.rate(np.array([flop], dtype=float))[0] == pytest.approx(1000 * fraction)


def test_devices_with_and_without_curves() -> None:
    """Each device has its own curve, shared curves are kept once, and no curve means the plain figure."""
    other = (EfficiencyPoint(flop=1, fraction=0.1),)
    devices = [device("a", efficiency=CURVE), device("b"), device("c", efficiency=other), device("d", efficiency=CURVE)]
    columns = device_columns(devices, DType.FLOAT32)
    assert len(columns.curves) == 2
    assert columns.rate(np.full(4, 1000.0)) == pytest.approx([500, 1000, 100, 500])
    assert columns.best_rate == pytest.approx([800, 1000, 100, 800])
    again = columns.take(np.array([3, 2, 2, 1]))
    assert again.rate(np.full(4, 1000.0)) == pytest.approx([500, 100, 100, 1000])
    assert again.best_rate == pytest.approx([800, 100, 100, 1000])


def test_a_tile_runs_at_the_rate_of_its_own_size() -> None:
    """2*5*10*10 = 1,000 FLOP at half of 10 FLOP/s."""
    slow = device(efficiency=CURVE, flop_per_s={"any": 10.0}, latency_s=0.0)
    gemm = gemm_of((1, 5, 10, 10))
    costs = price(gemm, Tiles.of([(0, 0, 5, 0, 10, 0, 10, 0, 1)]), device_columns([slow], gemm.dtype))
    assert costs.ideal_s[0] == pytest.approx(200)


def test_figures_by_element_type() -> None:
    """A figure for the type wins over "any"; without either there is none, and it is never 0."""
    mixed = device(flop_per_s={"float16": 2000.0, "any": 500.0})
    assert device_columns([mixed], DType.FLOAT16).flop_per_s[0] == 2000
    assert device_columns([mixed], DType.INT8).flop_per_s[0] == 500
    with pytest.raises(MissingFigureError, match="float32") as caught:
        device_columns([device(flop_per_s={"float16": 2000.0})], DType.FLOAT32)
    assert caught.value.exit_code == 4


def test_columns_are_si_and_in_the_fleets_order() -> None:
    """Every figure in its column, latency 0 included."""
    devices = [device("a", latency_s=0.0), device("b", downlink_bytes_per_s=7.0, uplink_bytes_per_s=3.0, memory_bytes=11.0)]
    columns = device_columns(devices, DType.FLOAT32)
    assert len(columns) == 2
    assert columns.downlink.tolist() == [100, 7]
    assert columns.uplink.tolist() == [10, 3]
    assert columns.latency.tolist() == [0, 0.5]
    assert columns.memory.tolist() == [10_000, 11]
    assert not math.isnan(columns.best_rate.sum())


@pytest.mark.parametrize("of", range(3))
def test_many_tiles_on_one_device(of: int) -> None:
    """The same seconds as tile by tile where each is priced on that device, with its curve or none, within its memory or not."""
    devices = [device("a", efficiency=CURVE), device("b", uplink_bytes_per_s=77.0), device("c", memory_bytes=150.0)]
    gemm, columns = gemm_of((3, 20, 10, 30)), device_columns(devices, DType.FLOAT32)
    boxes = [(0, 3, 0, 30, 0, 10, 0, 1), (3, 20, 0, 7, 0, 10, 0, 1), (3, 20, 7, 30, 0, 4, 1, 3), (0, 1, 0, 1, 0, 10, 2, 3)]
    tiles = Tiles.of([(0, *box) for box in boxes])
    alone = [float(price(gemm, Tiles.of([(of, *box)]), columns).executed_s[0]) for box in boxes]
    assert executed_on(gemm, tiles, work_of(gemm, tiles), columns, of).tolist() == pytest.approx(alone)
    assert math.isinf(alone[1]) == (of == 2)
