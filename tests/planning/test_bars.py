"""Tilings by bars: exact cover whatever the shape and the fleet, times by the cost model, the same answer every time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import CURVE, conv_of, device, gemm_of, spread, window_of
from scipy.optimize import brentq

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.planning.bararrangement import Arrangement, fitted
from cleave_plan.planning.barlayout import Plane
from cleave_plan.planning.bars import bar_tilings
from cleave_plan.planning.barsearch import TARGET, refined
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.boxes import Boxes
from cleave_plan.planning.groups import SQUARE, abilities, filled, members
from cleave_plan.planning.regroup import improved
from cleave_plan.planning.slabs import even_places, partitions
from cleave_plan.planning.terms import Terms, terms_of
from cleave_plan.planning.volume import volume_bound
from cleave_plan.workload.gemm import Gemm

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)
HALF = DType.FLOAT16


def random_columns(rng: np.random.Generator, count: int) -> DeviceColumns:
    """Devices that differ by a factor of a hundred in everything; some with latency, some with a measured curve."""
    return device_columns(
        [
            device(
                f"d{place}", flop_per_s={"any": spread(rng, 1e2, 1e4)}, downlink_bytes_per_s=spread(rng, 10, 1e3),
                uplink_bytes_per_s=spread(rng, 10, 1e3), latency_s=float(rng.choice([0.0, 0.1])),
                memory_bytes=spread(rng, 1e3, 1e6), efficiency=CURVE if rng.random() < 0.3 else (),
            )
            for place in range(count)
        ],
        DType.FLOAT32,
    )  # fmt: skip


def found_for(gemm: Gemm, columns: DeviceColumns, order: np.ndarray, budget_s: float = 0.0) -> list[Boxes]:
    return list(bar_tilings(terms_of(gemm), columns, order, budget_s=budget_s))


def seconds(gemm: Gemm, boxes: Boxes, columns: DeviceColumns) -> float:
    """The slowest device by the cost model, its tiles one after the other."""
    tiles = Tiles.of(boxes)
    costs = price(gemm, tiles, columns)
    assert (costs.kept != 3).all(), "a box does not fit its device"
    return float(np.bincount(tiles.device, costs.ideal_s).max())


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6), sides=st.tuples(*[st.integers(1, 40)] * 3), items=st.integers(1, 3), count=st.integers(1, 12),
    budget_s=st.sampled_from([0.0, 0.0, 0.02]),
)  # fmt: skip
def test_every_multiply_add_is_done_once(seed: int, sides: tuple[int, int, int], items: int, count: int, budget_s: float) -> None:
    """Small shapes, random fleets and subsets of them: boxes cover exactly, on devices that were asked for."""
    rng = np.random.default_rng(seed)
    columns = random_columns(rng, count)
    order = rng.permutation(count)[: rng.integers(1, count + 1)]
    gemm = gemm_of("g", (items, *sides), dtype=HALF if seed % 2 else DType.FLOAT32)
    for boxes in found_for(gemm, columns, order, budget_s):
        tiles = Tiles.of(boxes)
        assert cover_flaw(tiles, gemm.shape) is None
        assert set(tiles.device.tolist()) <= set(order.tolist())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), preset=st.sampled_from(["cleave", "measured-2023"]))
def test_times_lie_between_the_bound_and_a_little_more(seed: int, preset: str) -> None:
    """Long K over 24 to 60 devices: never under the volume bound, and within a third of it."""
    rng = np.random.default_rng(seed)
    columns = device_columns(generate_fleet(int(rng.integers(24, 61)), preset=preset, seed=seed).devices, HALF)
    gemm = gemm_of("g", (1, int(spread(rng, 2e3, 1e4)), int(spread(rng, 2e4, 1e5)), int(spread(rng, 2e3, 1e4))), dtype=HALF)
    (boxes,) = found_for(gemm, columns, np.arange(len(columns)))
    assert cover_flaw(Tiles.of(boxes), gemm.shape) is None
    floor = volume_bound(terms_of(gemm), columns, FREE)
    assert floor <= seconds(gemm, boxes, columns) <= 1.33 * floor


@pytest.mark.parametrize(
    ("shape", "devices", "percent"),
    [
        ((5120, 131072, 20480), 64, 6.5), ((5120, 131072, 5120), 64, 8.5), ((5120, 131072, 20480), 256, 2.5),
        ((5120, 131072, 5120), 256, 4.0), ((5120, 131072, 20480), 1024, 2.0),
    ],
)  # fmt: skip
def test_weight_gradients_of_opt_13b_come_near_the_bound(shape: tuple[int, int, int], devices: int, percent: float) -> None:
    """The bars that were set for long K, partial sums at 4 bytes, priced by the cost model."""
    columns, gemm = device_columns(generate_fleet(devices).devices, HALF), gemm_of("g", (1, *shape), dtype=HALF)
    (boxes,) = found_for(gemm, columns, np.arange(devices))
    assert cover_flaw(Tiles.of(boxes), gemm.shape) is None
    floor = volume_bound(terms_of(gemm), columns, FREE)
    assert floor <= seconds(gemm, boxes, columns) <= (1 + percent / 100) * floor


def test_a_group_of_one_is_a_tile_of_whole_depth() -> None:
    """Short K (fc1 at 64 devices): nothing is cut along K, and the area bound is met."""
    columns = device_columns(generate_fleet(64).devices, HALF)
    gemm = gemm_of("g", (1, 131072, 5120, 20480), dtype=HALF)
    (boxes,) = found_for(gemm, columns, np.arange(64))
    assert all(box[6] - box[5] == 5120 for box in boxes)
    assert seconds(gemm, boxes, columns) == pytest.approx(11.08, rel=1e-3)


def test_small_memory_is_respected() -> None:
    """Devices that hold 20 to 60 MB: every box keeps one operand within nine tenths of that."""
    own = device_columns(generate_fleet(64).devices, HALF)
    columns = replace(own, memory=own.memory / 50)
    gemm = gemm_of("g", (1, 5120, 131072, 20480), dtype=HALF)
    (boxes,) = found_for(gemm, columns, np.arange(64))
    assert cover_flaw(Tiles.of(boxes), gemm.shape) is None
    assert seconds(gemm, boxes, columns) < 1.2 * volume_bound(terms_of(gemm), columns, FREE)


def test_the_same_devices_give_the_same_tiling() -> None:
    """Two calls agree box by box."""
    columns = device_columns(generate_fleet(96).devices, HALF)
    gemm = gemm_of("g", (1, 5120, 131072, 5120), dtype=HALF)
    (one,), (other,) = (found_for(gemm, columns, np.arange(96)) for _ in range(2))
    assert one.tolist() == other.tolist()


def test_a_longer_search_is_never_worse() -> None:
    """A second of further search leaves the answer as good or better, and still exact."""
    columns = device_columns(generate_fleet(40).devices, HALF)
    gemm = gemm_of("g", (1, 5120, 131072, 5120), dtype=HALF)
    (first,), (longer,) = (found_for(gemm, columns, np.arange(40), budget) for budget in (0.0, 1.0))
    assert cover_flaw(Tiles.of(longer), gemm.shape) is None
    assert seconds(gemm, longer, columns) <= seconds(gemm, first, columns) * 1.0005  # whole rows may differ


def test_nothing_for_convolutions_and_for_more_items_than_devices() -> None:
    """A convolution's operands overlap, and an item needs a device."""
    rng = np.random.default_rng(1)
    columns = random_columns(rng, 2)
    conv = conv_of("c", window_of([(8, 3, 1, 1, 1)]), 4)
    assert found_for(conv, columns, np.arange(2)) == []
    assert found_for(gemm_of("g", (3, 4, 4, 4)), columns, np.arange(2)) == []


@pytest.mark.parametrize("count", [40, 400, 2000])
def test_moves_and_swaps_gain(count: int) -> None:
    """The groups' summed worth grows, every device keeps one group, and a group's limit is the least of its members'."""
    columns = device_columns(generate_fleet(count).devices, HALF)
    terms = terms_of(gemm_of("g", (1, 131072, 20480, 5120), dtype=HALF))
    able = abilities(terms, columns, volume_bound(terms, columns, FREE) * 1.02)
    group, labels = filled(able)
    better = improved(able, group, SQUARE, 10, 1, smooth=True)
    assert better.shape == (count,)
    assert better.max() < labels

    def worth(group: np.ndarray) -> float:
        now = members(able, group, labels)
        used = now.size > 0
        return float(able.worth(now.operand[used], now.limit(able)[used], SQUARE).sum())

    assert worth(better) > worth(group)
    now = members(able, better, labels)
    for label in np.flatnonzero(now.size > 1)[:50]:
        assert now.limit(able)[label] == able.cut[better == label].min()


def reached(terms: Terms, columns: DeviceColumns, place: Arrangement, T: float) -> float:
    """The share of the inner axis that the slabs of ``place`` reach by ``T``: bisection within bisection, bar by bar."""
    able = abilities(terms, columns.take(place.devices), T, terms.depth / 2)
    bars = np.split(np.arange(len(place.devices)), place.bars[1:])
    operand = [able.operand[bar].sum() for bar in bars]
    limit = [able.alone[bar[0]] if len(bar) == 1 else able.cut[bar].min() for bar in bars]
    strips = np.split(np.arange(len(bars)), place.strips[1:])
    slabs = np.split(np.arange(len(strips)), place.slabs[1:])

    def columns_at(depth: float, slab: np.ndarray, plane: Plane) -> float:
        def spare_rows(width: float, strip: np.ndarray) -> float:
            heights = [min((operand[bar] / depth - plane.b * width) / plane.a, limit[bar] / width) for bar in strip]
            return sum(max(height, 0.0) for height in heights) - plane.rows

        widths = [
            brentq(spare_rows, 1e-6, 1e9, args=(strips[place_of],), rtol=1e-12) if spare_rows(1e-6, strips[place_of]) > 0 else 0.0
            for place_of in slab
        ]
        return sum(widths) - plane.columns

    planes = [Plane.of(terms, bool(transposed)) for transposed in place.transposed]
    each = [(slab, plane) for slab, plane in zip(slabs, planes, strict=True) if columns_at(1.0, slab, plane) > 0]
    depths = [brentq(columns_at, 1.0, 4.0 * terms.depth, args=pair, rtol=1e-12) for pair in each]
    return float(sum(depths)) / terms.depth


@pytest.mark.parametrize("seed", range(4))
def test_annealing_reaches_more_than_the_arrangement_it_starts_from(seed: int) -> None:
    """A walk that measured wrongly would end with what only seems better."""
    columns = device_columns(generate_fleet(48, seed=seed).devices, HALF)
    terms = terms_of(gemm_of("dW", (1, 5120, 131072, 5120), dtype=HALF))
    floor_s = volume_bound(terms, columns, FREE)
    gains = []
    able = abilities(terms, columns, 1.1 * floor_s, terms.depth / 2)
    for place in partitions(terms, able, even_places(able, 6), 4, seed):
        if len(place.slabs) == 1:
            continue  # its walk is by the width of its plane
        fit = fitted(terms, columns, place, floor_s)
        assert fit is not None
        better = refined(terms, columns, place, fit, 100, math.inf, seed)
        gains.append(reached(terms, columns, better, TARGET * fit.seconds) - reached(terms, columns, place, TARGET * fit.seconds))
    assert min(gains) >= -1e-6
    assert max(gains) > 1e-4
