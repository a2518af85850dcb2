"""The second pricing of tiles: arithmetic done by hand, and agreement with the columns that the planner uses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import device, gemm_of

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.errors import MissingFigureError
from cleave_plan.fleet.device import Device, EfficiencyPoint
from cleave_plan.plan.repricing import price_gemm, price_tile, region_positions
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role

HALF = Operand(tensor="half", role=Role.ACTIVATION, dtype=DType.FLOAT16)


def test_one_tile_by_hand() -> None:
    """2 x 3 of depth 4 in float32: 32 + 48 bytes down at 10 B/s, 24 up at 5 B/s, 48 FLOP at 100 FLOP/s, 0.5 s latency."""
    tile = price_tile(gemm_of("g", (1, 2, 4, 3)), (0, 2, 0, 3, 0, 4), 1, device("d", latency_s=0.5))
    assert tile.down_bytes == 80
    assert tile.up_bytes == 24
    assert tile.partial_sums == 0
    assert tile.memory_bytes == 1000 + 24
    assert tile.ideal_s == 0.5 + 8.0
    assert tile.executed_s == 0.5 + 3.2 + 4.8  # A kept: 3.2 s, then B for 4.8 s while C leaves in 4.8 s


@pytest.mark.parametrize(
    ("memory", "executed"),
    [
        (10_000.0, 3.2 + 4.8),  # A (32 bytes) kept
        (36.0, 3.2 + 4.8),  # 32.4 bytes beside the stream buffers still hold A
        (30.0, 8.0 + 4.8),  # 27 bytes hold only C (24): it leaves when it is complete
        (20.0, math.inf),  # 18 bytes hold no operand
    ],
)
def test_what_is_kept_depends_on_memory(memory: float, executed: float) -> None:
    """The cheapest order among those whose kept operand fits 0.9 of the memory."""
    tile = price_tile(gemm_of("g", (1, 2, 4, 3)), (0, 2, 0, 3, 0, 4), 1, device("d", memory_bytes=memory))
    assert tile.executed_s == pytest.approx(executed, rel=1e-12)


def test_batch_items_multiply_traffic_but_not_the_kept_operand() -> None:
    """Three batch items: three times the bytes and FLOP, the memory of one."""
    tile = price_tile(gemm_of("g", (5, 2, 4, 3)), (0, 2, 0, 3, 0, 4), 3, device("d", memory_bytes=36.0))
    assert (tile.down_bytes, tile.up_bytes, tile.memory_bytes) == (240, 72, pytest.approx(3.6 + 24))
    assert tile.ideal_s == pytest.approx(24.0)
    assert tile.executed_s == pytest.approx(9.6 + 14.4)


def test_a_cut_inner_axis_returns_partial_sums_of_four_bytes() -> None:
    """float16, depth 2 of 4: 8 + 12 bytes down, 6 sums of 4 bytes up instead of 2."""
    gemm = gemm_of("g", (1, 2, 4, 3), a=HALF, b=HALF, out_dtype=DType.FLOAT16)
    cut = price_tile(gemm, (0, 2, 0, 3, 2, 4), 1, device("d"))
    whole = price_tile(gemm, (0, 2, 0, 3, 0, 4), 1, device("d"))
    assert (cut.down_bytes, cut.up_bytes, cut.partial_sums) == (20, 24, 6)
    assert (whole.down_bytes, whole.up_bytes, whole.partial_sums) == (40, 12, 0)


@pytest.mark.parametrize(
    ("depth", "columns", "seconds"),
    [(1, 1, 2 / 50), (1, 5, 10 / 50), (10, 5, 100 / 75), (100, 5, 1000 / 100), (1000, 5, 10000 / 100)],
)
def test_small_tiles_run_at_the_measured_share(depth: int, columns: int, seconds: float) -> None:
    """A curve of 0.5 at 10 FLOP and 1 at 1,000: half-way on the logarithm (100 FLOP) it gives 0.75, flat outside."""
    curve = (EfficiencyPoint(flop=10, fraction=0.5), EfficiencyPoint(flop=1000, fraction=1.0))
    slow = device("d", downlink_bytes_per_s=1e9, uplink_bytes_per_s=1e9, memory_bytes=1e9, efficiency=curve)
    tile = price_tile(gemm_of("g", (1, 1, depth, columns)), (0, 1, 0, columns, 0, depth), 1, slow)
    assert tile.ideal_s == pytest.approx(seconds, rel=1e-12)


def test_sums_per_device_and_over_all() -> None:
    """Two tiles on one device follow one another; the largest tile decides its memory."""
    tiles = Tiles.of([(1, 0, 2, 0, 3, 0, 4, 0, 1), (1, 2, 3, 0, 3, 0, 4, 0, 1)])
    total = price_gemm(gemm_of("g", (1, 3, 4, 3)), tiles, [device("idle"), device("busy")])
    assert total.ideal_s.tolist() == pytest.approx([0.0, 8.0 + 6.4])  # 80 and 64 bytes at 10 B/s
    assert total.executed_s.tolist() == pytest.approx([0.0, 8.0 + 6.4])  # A kept both times
    assert total.memory_bytes.tolist() == [0.0, 1024.0]
    assert (total.down_bytes, total.up_bytes, total.partial_sums, total.buffer_bytes) == (144, 36, 0, 32)


def test_a_device_without_a_figure_raises() -> None:
    """A missing FLOP/s figure is never taken for 0."""
    with pytest.raises(MissingFigureError, match="float32"):
        price_tile(gemm_of("g", (1, 1, 1, 1)), (0, 1, 0, 1, 0, 1), 1, device("d", flop_per_s={"int8": 1.0}))


LINE = ConvWindow(images=3, channels=2, input=(10,), output=(5,), kernel=(3,), strides=(2,), dilations=(1,), pads=(1,))


@pytest.mark.parametrize(
    ("rows", "positions"),
    [
        ((0, 1), 2),  # taps -1, 0, 1: one of them padding
        ((1, 3), 5),  # taps 1..5
        ((0, 5), 10),  # a whole image
        ((4, 6), 3 + 2),  # the end of one image (taps 7, 8, 9) and the begin of the next
        ((4, 11), 3 + 10 + 2),  # the image between goes whole
    ],
)
def test_regions_of_a_line_by_hand(rows: tuple[int, int], positions: int) -> None:
    """Input positions that ranges of output positions read: kernel 3, stride 2, one position of padding."""
    assert region_positions(LINE, *rows) == positions


def test_a_convolution_tile_is_sent_its_region_and_not_its_matrix() -> None:
    """Two output positions of LINE read 5 inputs of 2 channels: 40 bytes, where im2col would send 48."""
    gemm = gemm_of("c", (1, 15, 6, 4), window=LINE)
    tile = price_tile(gemm, (1, 3, 0, 4, 0, 6), 1, device("d"))
    assert tile.down_bytes == 5 * 2 * 4 + 6 * 4 * 4


@st.composite
def windows(draw: st.DrawFn) -> ConvWindow:
    """Random convolutions of one to three axes, padded and dilated."""
    axes = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        reach = (kernel - 1) * dilation + 1
        size, pad = draw(st.integers(1, 6)), draw(st.integers(0, 2))
        output = (max(size + 2 * pad, reach) - reach) // stride + 1
        axes.append((size, output, kernel, stride, dilation, pad))
    sizes, outputs, kernels, strides, dilations, pads = (tuple(column) for column in zip(*axes, strict=True))
    return ConvWindow(
        images=draw(st.integers(1, 3)), channels=draw(st.integers(1, 3)), input=sizes, output=outputs, kernel=kernels,
        strides=strides, dilations=dilations, pads=pads,
    )  # fmt: skip


@given(windows(), st.data())
@settings(max_examples=100, deadline=None)
def test_regions_are_the_hull_of_what_is_read(window: ConvWindow, data: st.DataObject) -> None:
    """Beside the dumb way: write down every output position and every tap, and take the box around them per image."""
    rows = window.images * window.rows_per_image
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    coordinates = list(product(range(window.images), *(range(size) for size in window.output)))[start:stop]
    first, last = coordinates[0][0], coordinates[-1][0]
    expected = max(last - first - 1, 0) * math.prod(window.input)
    for image in {first, last}:
        volume = 1
        for axis, size in enumerate(window.input):
            taps = [
                place[1 + axis] * window.strides[axis] - window.pads[axis] + tap * window.dilations[axis]
                for place in coordinates if place[0] == image for tap in range(window.kernel[axis])
            ]  # fmt: skip
            volume *= sum(1 for position in range(min(taps), max(taps) + 1) if 0 <= position < size)
        expected += volume
    assert region_positions(window, start, stop) == expected


@st.composite
def priced_cases(draw: st.DrawFn) -> tuple[Gemm, Tiles, list[Device]]:
    """A GEMM or convolution, random boxes inside it and unequal devices, some with a curve and some short of memory."""
    window = draw(st.one_of(st.none(), windows()))
    kinds = st.sampled_from([DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT8, DType.INT4])
    if window is None:
        shape = GemmShape(*(draw(st.integers(1, 30)) for _ in range(4)))
    else:
        depth = window.channels * math.prod(window.kernel)
        shape = GemmShape(draw(st.integers(1, 3)), window.images * window.rows_per_image, depth, draw(st.integers(1, 20)))
    a, b = (Operand(tensor=name, role=Role.ACTIVATION, dtype=draw(kinds)) for name in "ab")
    gemm = gemm_of("g", tuple(shape), a=a, b=b, out_dtype=draw(kinds), window=window)
    curve = (
        EfficiencyPoint(flop=30, fraction=0.2),
        EfficiencyPoint(flop=900, fraction=0.7),
        EfficiencyPoint(flop=9e4, fraction=1),
    )
    positive = st.floats(0.5, 1e4)
    devices = [
        device(
            f"d{place}", flop_per_s={"any": draw(positive)}, downlink_bytes_per_s=draw(positive),
            uplink_bytes_per_s=draw(positive), latency_s=draw(st.floats(0, 2)), memory_bytes=draw(positive),
            efficiency=draw(st.sampled_from([(), curve, curve[:2]])),
        )
        for place in range(3)
    ]  # fmt: skip
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        box: list[int] = []
        for size in (shape.m, shape.n, shape.k, shape.batch):
            low = draw(st.integers(0, size - 1))
            box += [low, draw(st.integers(low + 1, size))]
        rows.append((draw(st.integers(0, 2)), *box))
    return gemm, Tiles.of(rows), devices


@given(priced_cases())
@settings(max_examples=150, deadline=None)
def test_both_pricings_agree(case: tuple[Gemm, Tiles, list[Device]]) -> None:
    """The columns that the planner uses and the arithmetic of the second opinion were written apart and agree to 1e-12."""
    gemm, tiles, devices = case
    columns = price(gemm, tiles, device_columns(devices, gemm.dtype))
    for place, index in enumerate(tiles.device.tolist()):
        box = tuple(int(tiles.column(name)[place]) for name in ("m_start", "m_stop", "n_start", "n_stop", "k_start", "k_stop"))
        batch = int(tiles.batch_stop[place] - tiles.batch_start[place])
        tile = price_tile(gemm, box, batch, devices[index])
        mine = [tile.down_bytes, tile.up_bytes, tile.memory_bytes, tile.ideal_s, tile.executed_s]
        theirs = [columns.down_bytes, columns.up_bytes, columns.memory_bytes, columns.ideal_s, columns.executed_s]
        assert mine == pytest.approx([float(np.broadcast_to(column, len(tiles))[place]) for column in theirs], rel=1e-12)
