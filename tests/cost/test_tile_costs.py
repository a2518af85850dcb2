"""Bytes, FLOP, memory and the three times of a tile, against figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_cases import conv_of, device, gemm_of, window_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import TileCosts, Tiles, price, window_positions
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device
from cleave_plan.workload.gemm import ConvWindow, Gemm, Operand, Role


def priced(gemm: Gemm, rows: list[tuple[int, ...]], devices: list[Device]) -> TileCosts:
    return price(gemm, Tiles.of(rows), device_columns(devices, gemm.dtype))


# ------------------------------------------------------------------------------------------------ plain products


def test_a_float32_tile_by_hand() -> None:
    """3 rows x 5 columns x K = 10 of 20 x 10 x 30.

    A 3*10*4 = 120 B, B 10*5*4 = 200 B, up 3*5*4 = 60 B, 2*3*5*10 = 300 FLOP.
    At 100 B/s down 3.2 s, at 1,000 FLOP/s 0.3 s, at 10 B/s up 6 s; latency 0.5 s.
    """
    costs = priced(gemm_of((1, 20, 10, 30)), [(0, 2, 5, 10, 15, 0, 10, 0, 1)], [device()])
    assert costs.a_bytes[0] == 120
    assert costs.b_bytes[0] == 200
    assert costs.down_bytes[0] == 320
    assert costs.up_bytes[0] == 60
    assert costs.flop[0] == 300
    assert costs.memory_bytes[0] == 1000 + 60  # buffers, and the least of A, B and C
    assert costs.ideal_s[0] == pytest.approx(0.5 + 6)
    # A kept: 1.2 + max(2.0, 0.3, 6) = 7.2; B kept: 2 + max(1.2, 0.3, 6) = 8; C kept: max(3.2, 0.3) + 6 = 9.2
    assert costs.executed_s[0] == pytest.approx(0.5 + 7.2)
    assert costs.kept[0] == 0
    assert costs.store_forward_s[0] == pytest.approx(0.5 + 3.2 + 0.3 + 6)


def test_a_tile_that_keeps_b_and_one_that_keeps_c() -> None:
    """B is smaller than A: B is kept. With a fast uplink, so that the result leaves at once, C may be."""
    gemm, tall = gemm_of((1, 20, 10, 30)), [(0, 0, 20, 0, 2, 0, 10, 0, 1)]
    # A 800 B, B 80 B, up 160 B, 800 FLOP: B kept 0.8 + max(8, 0.8, 16) = 16.8
    costs = priced(gemm, tall, [device(latency_s=0.0)])
    assert costs.kept[0] == 1
    assert costs.executed_s[0] == pytest.approx(16.8)
    # uplink 1e6 B/s, 50 FLOP/s: A 8 + max(0.8, 16) = 24, B 0.8 + max(8, 16) = 16.8, C max(8.8, 16) + 0.00016 = 16.00016
    costs = priced(gemm, tall, [device(latency_s=0.0, uplink_bytes_per_s=1e6, flop_per_s={"any": 50.0})])
    assert costs.kept[0] == 2
    assert costs.executed_s[0] == pytest.approx(16.00016)


def test_what_does_not_fit_is_not_kept() -> None:
    """0.9 of the memory for A, B or C of one batch item: the cheapest that fits; when none does, no time at all."""
    gemm, tile = gemm_of((2, 20, 10, 30)), [(0, 0, 3, 0, 5, 0, 10, 0, 2)]  # for an item A 120 B, B 200 B, C 60 B
    roomy = priced(gemm, tile, [device(memory_bytes=120 / 0.9 + 0.01)])
    assert roomy.kept[0] == 0
    tight = priced(gemm, tile, [device(memory_bytes=119 / 0.9)])
    assert tight.kept[0] == 2
    # two items: 640 B down, 120 B up, 600 FLOP: C kept 6.4 + 12
    assert tight.executed_s[0] == pytest.approx(0.5 + 6.4 + 12)
    assert tight.memory_bytes[0] == pytest.approx(119 / 9 + 60)
    none = priced(gemm, tile, [device(memory_bytes=59 / 0.9)])
    assert none.kept[0] == 3
    assert math.isinf(none.executed_s[0])
    assert none.ideal_s[0] == pytest.approx(0.5 + 12)


def test_batch_items_multiply_bytes_and_flop_and_pay_latency_once() -> None:
    """Four of six items: 4 * (120 + 200) B down, 4 * 60 B up, 4 * 300 FLOP."""
    costs = priced(gemm_of((6, 20, 10, 30)), [(0, 2, 5, 10, 15, 0, 10, 1, 5)], [device()])
    assert (costs.down_bytes[0], costs.up_bytes[0], costs.flop[0]) == (1280, 240, 1200)
    assert costs.ideal_s[0] == pytest.approx(0.5 + 24)
    assert costs.memory_bytes[0] == 1060


def test_element_types_of_each_operand_and_partial_sums() -> None:
    """float16 A, int4 B, float16 out; cut along K the result travels as float32 sums."""
    gemm = gemm_of((1, 20, 10, 30), dtype=DType.FLOAT16, b=Operand(tensor="w", role=Role.PARAMETER, dtype=DType.INT4))
    rows = [(0, 0, 3, 0, 5, 0, 10, 0, 1), (0, 0, 3, 0, 5, 0, 4, 0, 1), (0, 0, 3, 0, 5, 4, 10, 0, 1)]
    costs = priced(gemm, rows, [device()])
    assert costs.a_bytes.tolist() == [60, 24, 36]
    assert costs.b_bytes.tolist() == [25, 10, 15]
    assert costs.up_bytes.tolist() == [30, 60, 60]
    assert costs.flop.tolist() == [300, 120, 180]
    # the memory of C is that of its sums, 60 B, whole or cut: B is less
    assert costs.memory_bytes.tolist() == [1025, 1010, 1015]


def test_float64_sums_are_float64() -> None:
    """Partial sums of float64 products take 8 bytes."""
    costs = priced(gemm_of((1, 4, 4, 4), dtype=DType.FLOAT64), [(0, 0, 2, 0, 3, 0, 2, 0, 1)], [device()])
    assert costs.up_bytes[0] == 2 * 3 * 8


def test_each_tile_meets_its_own_device() -> None:
    """Columns of tiles, each priced with the figures of the device it names."""
    devices = [device("slow"), device("fast", uplink_bytes_per_s=60.0, latency_s=0.0)]
    tile = (2, 5, 10, 15, 0, 10, 0, 1)
    costs = priced(gemm_of((1, 20, 10, 30)), [(1, *tile), (0, *tile), (1, *tile)], devices)
    assert costs.ideal_s == pytest.approx([3.2, 6.5, 3.2])


def test_no_tiles_cost_nothing() -> None:
    """Empty columns stay empty columns."""
    costs = priced(gemm_of((1, 4, 4, 4)), [], [device()])
    assert len(costs.ideal_s) == len(costs.executed_s) == len(costs.kept) == 0


def test_bytes_of_huge_tiles_are_exact() -> None:
    """Sides of 2^31: no 32-bit integer on the way, nor an overflow of a 64-bit one."""
    side = 2**31
    costs = priced(gemm_of((1, side, 4, side)), [(0, 0, side, 0, side, 0, 4, 0, 1)], [device()])
    assert costs.down_bytes[0] == 2 * side * 4 * 4
    assert costs.up_bytes[0] == float(side) * side * 4
    assert costs.flop[0] == 8.0 * side * side


SIDES = st.integers(1, 50)


@given(SIDES, SIDES, SIDES, st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_three_times_are_in_order(m: int, k: int, n: int, items: int, seed: int) -> None:
    """Ideal, executed, store-and-forward: each overlaps less than the one before."""
    rng = np.random.default_rng(seed)
    figures = {key: float(rng.uniform(1, 1000)) for key in ("downlink_bytes_per_s", "uplink_bytes_per_s")}
    own = device(memory_bytes=1e9, flop_per_s={"any": float(rng.uniform(1, 1e4))}, **figures)
    costs = priced(gemm_of((items, m, k, n)), [(0, 0, m, 0, n, 0, k, 0, items)], [own])
    assert costs.ideal_s[0] <= costs.executed_s[0] * (1 + 1e-12)
    assert costs.executed_s[0] <= costs.store_forward_s[0] * (1 + 1e-12)


# ------------------------------------------------------------------------------------------------ convolutions


def read_by(window: ConvWindow, start: int, stop: int) -> set[tuple[int, ...]]:
    """Input positions ``(image, place...)`` that output rows read, tap by tap, padding left out."""
    found = set()
    for row in range(start, stop):
        image, rest = divmod(row, math.prod(window.output))
        place = np.unravel_index(rest, window.output)
        for tap in np.ndindex(*window.kernel):
            at = tuple(
                int(o) * s - p + t * d
                for o, s, p, t, d in zip(place, window.strides, window.pads, tap, window.dilations, strict=True)
            )
            if all(0 <= x < size for x, size in zip(at, window.input, strict=True)):
                found.add((image, *at))
    return found


def sent_for(window: ConvWindow, start: int, stop: int) -> int:
    """Positions of the boxes that are sent: for the first and last image the slab of output positions that holds the rows
    (one coordinate on leading axes, a range on the first that differs, all of the rest), and the hull of what it reads;
    of images between them everything."""
    total, rows = 0, math.prod(window.output)
    for image in range(window.images):
        low, high = max(start, image * rows), min(stop, (image + 1) * rows) - 1
        if low > high:
            continue
        if start < image * rows and (image + 1) * rows < stop:
            total += math.prod(window.input)
            continue
        box, free = [], False
        for first, last, size in zip(
            np.unravel_index(low % rows, window.output), np.unravel_index(high % rows, window.output), window.output, strict=True
        ):
            box.append((0, size - 1) if free else (int(first), int(last)))
            free = free or first != last
        volume = 1
        for axis, (first, last) in enumerate(box):
            begin = first * window.strides[axis] - window.pads[axis]
            end = last * window.strides[axis] - window.pads[axis] + (window.kernel[axis] - 1) * window.dilations[axis]
            volume *= sum(1 for x in range(begin, end + 1) if 0 <= x < window.input[axis])
        total += volume
    return total


@st.composite
def windows(draw: st.DrawFn) -> ConvWindow:
    """One to three axes: halo, padding wider than the kernel, strides beyond it, dilation, several images."""
    axes = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, stride, dilation, pad = (draw(st.integers(1, 3)) for _ in range(4))
        reach = (kernel - 1) * dilation + 1
        axes.append((draw(st.integers(max(1, reach - 2 * (pad - 1)), 7)), kernel, stride, dilation, pad - 1))
    return window_of(axes, images=draw(st.integers(1, 3)))


@given(windows(), st.data())
@settings(max_examples=200, deadline=None)
def test_window_positions_hold_every_tap_and_no_more_than_the_slab(window: ConvWindow, data: st.DataObject) -> None:
    """The count is that of the boxes; they hold at least what the taps read."""
    rows = window.images * window.rows_per_image
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    count = int(window_positions(window, np.array([start]), np.array([stop]))[0])
    assert count == sent_for(window, start, stop)
    assert count >= len(read_by(window, start, stop))


@given(windows(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_region_of_rows_of_one_image_holds_its_taps(window: ConvWindow, data: st.DataObject) -> None:
    """Every tap lies in the box, and the box has the volume that is counted."""
    first = data.draw(st.integers(0, window.rows_per_image - 1))
    last = data.draw(st.integers(first, window.rows_per_image - 1))
    box = window.region(first, last)
    for _, *place in read_by(window, first, last + 1):
        assert all(begin <= x < end for x, (begin, end) in zip(place, box, strict=True))
    volume = math.prod(end - begin for begin, end in box)
    assert volume == window_positions(window, np.array([first]), np.array([last + 1]))[0]


def test_positions_by_hand() -> None:
    """12 inputs, kernel 3, stride 1, padding 1: rows 0-3 read inputs 0-4, rows 4-7 read 3-8 (halo of one on each side)."""
    window = window_of([(12, 3, 1, 1, 1)], images=2)
    assert window.output == (12,)
    assert window_positions(window, np.array([0, 4, 0, 10, 3]), np.array([4, 8, 12, 14, 3])).tolist() == [5, 6, 12, 3 + 3, 0]
    # stride 3 with kernel 2: inputs 2, 5, 8 are read by nobody, but lie in the box that is sent
    skipping = window_of([(11, 2, 3, 1, 0)])
    assert window_positions(skipping, np.array([0, 1]), np.array([4, 3])).tolist() == [11, 5]
    assert len(read_by(skipping, 0, 4)) == 8
    # dilation 2, kernel 3: five inputs for one row
    assert window_positions(window_of([(9, 3, 1, 2, 0)]), np.array([2]), np.array([3])).tolist() == [5]


def test_a_convolution_tile_is_sent_its_region_for_each_group() -> None:
    """Rows 4-7 of image 0: 6 positions x 2 channels x 4 B for each of 3 groups; B as in any product.

    K = 2 channels x 3 taps; B 6*5*4 = 120 B, up 4*5*4 = 80 B, 2*4*5*6 = 240 FLOP, each for 3 groups.
    """
    gemm = conv_of(window_of([(12, 3, 1, 1, 1)], images=2, channels=2), 5, groups=3)
    costs = priced(gemm, [(0, 4, 8, 0, 5, 0, 6, 0, 3)], [device()])
    assert costs.a_bytes[0] == 3 * 48
    assert costs.b_bytes[0] == 3 * 120
    assert costs.up_bytes[0] == 3 * 80
    assert costs.flop[0] == 3 * 240
    assert costs.memory_bytes[0] == 1000 + 48
    assert costs.ideal_s[0] == pytest.approx(0.5 + 24)
