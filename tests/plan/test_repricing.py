"""The second pricing of tiles: arithmetic done by hand, and agreement with the columns that the planner uses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import device, gemm_of, server
from random_cases import random_boxes, random_devices, random_gemms, random_servers, windows

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.level import server_tile_seconds
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.errors import MissingFigureError
from cleave_plan.fleet.device import Device, EfficiencyPoint, Server
from cleave_plan.plan.repricing import price_gemm, price_tile, region_positions, server_tile_s
from cleave_plan.workload.gemm import ConvWindow, Gemm, Operand, Role

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
    total = price_gemm(gemm_of("g", (1, 3, 4, 3)), tiles, [device("idle"), device("busy")], server("s0"))
    assert total.ideal_s.tolist() == pytest.approx([0.0, 8.0 + 6.4])  # 80 and 64 bytes at 10 B/s
    assert total.executed_s.tolist() == pytest.approx([0.0, 8.0 + 6.4])  # A kept both times
    assert total.memory_bytes.tolist() == [0.0, 1024.0]
    assert (total.down_bytes, total.up_bytes, total.partial_sums, total.buffer_bytes) == (144, 36, 0, 32)


@pytest.mark.parametrize(
    ("box", "batch", "seconds"),
    [
        ((6, 8, 0, 6, 0, 4), 1, (32 + 96 + 48) / 100),  # whole depth, whole columns; 96 FLOP take 0.096 s
        ((6, 8, 0, 6, 0, 4), 5, 5 * 1.76),  # every batch item has operands of its own
        ((0, 8, 2, 3, 0, 4), 1, (128 + 16 + 32) / 100),
        ((0, 8, 0, 6, 1, 2), 1, (32 + 24 + 192) / 100),  # depth 1: partial sums of 4 bytes
    ],
)
def test_a_tile_of_the_servers_own_by_hand(box: tuple[int, ...], batch: int, seconds: float) -> None:
    """Pieces of A, B and C through 100 B/s of memory, where the arithmetic (1,000 FLOP/s) is faster."""
    assert server_tile_s(gemm_of("g", (5, 8, 4, 6)), box, batch, server("s0")) == pytest.approx(seconds, rel=1e-12)


def test_a_servers_tile_is_counted_in_accumulators_where_the_inner_axis_is_cut() -> None:
    """float16, 2 x 3: depth 2 of 4 leaves 6 sums of 4 bytes, depth 4 leaves 6 results of 2."""
    gemm = gemm_of("g", (1, 2, 4, 3), a=HALF, b=HALF, out_dtype=DType.FLOAT16)
    assert server_tile_s(gemm, (0, 2, 0, 3, 2, 4), 1, server("s0")) == pytest.approx((8 + 12 + 24) / 100)
    assert server_tile_s(gemm, (0, 2, 0, 3, 0, 4), 1, server("s0")) == pytest.approx((16 + 24 + 12) / 100)


def test_a_servers_tile_may_be_bound_by_arithmetic() -> None:
    """96 FLOP at 4 FLOP/s."""
    slow = server("s0", flop_per_s={"float32": 4.0})
    assert server_tile_s(gemm_of("g", (1, 8, 4, 6)), (6, 8, 0, 6, 0, 4), 1, slow) == pytest.approx(24.0)


def test_the_servers_tiles_are_nowhere_but_in_its_seconds() -> None:
    """One tile for the device, two for the server: its times add (0.76 s each), and no byte, sum or memory is counted."""
    tiles = Tiles.of([(0, 0, 2, 0, 3, 0, 4, 0, 1), (1, 2, 3, 0, 3, 0, 4, 0, 1), (1, 3, 4, 0, 3, 0, 4, 0, 1)])
    total = price_gemm(gemm_of("g", (1, 4, 4, 3)), tiles, [device("d0")], server("s0"))
    assert total.server_s == pytest.approx(2 * (16 + 48 + 12) / 100)
    assert (total.down_bytes, total.up_bytes, total.partial_sums) == (80, 24, 0)
    assert total.ideal_s.tolist() == pytest.approx([8.0])
    assert total.memory_bytes.tolist() == [1024.0]
    halves = Tiles.of([(0, 0, 2, 0, 3, 0, 2, 0, 1), (1, 0, 2, 0, 3, 2, 4, 0, 1)])
    assert price_gemm(gemm_of("g", (1, 2, 4, 3)), halves, [device("d0")], server("s0")).partial_sums == 6


def test_a_server_needs_its_figure_only_where_it_computes() -> None:
    """A missing FLOP/s figure of the server raises when a tile is its own, and not before."""
    gemm, blind = gemm_of("g", (1, 2, 4, 3)), server("s0", flop_per_s={"int8": 1.0})
    assert price_gemm(gemm, Tiles.of([(0, 0, 2, 0, 3, 0, 4, 0, 1)]), [device("d0")], blind).server_s == 0.0
    with pytest.raises(MissingFigureError, match="float32"):
        price_gemm(gemm, Tiles.of([(1, 0, 2, 0, 3, 0, 4, 0, 1)]), [device("d0")], blind)


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


def test_a_convolution_tile_of_the_server_reads_its_region() -> None:
    """Rows 4-10 of LINE read 3 + 10 + 2 inputs of 2 channels: 120 bytes, with 96 of kernels and 112 of results."""
    gemm = gemm_of("c", (1, 15, 6, 4), window=LINE)
    assert server_tile_s(gemm, (4, 11, 0, 4, 0, 6), 1, server("s0")) == pytest.approx((120 + 96 + 112) / 100)


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


@given(random_gemms(), random_devices(3), random_servers(), st.data())
@settings(max_examples=150, deadline=None)
def test_both_pricings_agree(gemm: Gemm, devices: list[Device], servers: list[Server], data: st.DataObject) -> None:
    """The columns that the planner uses and the arithmetic of the second opinion were written apart and agree to 1e-12."""
    tiles = data.draw(random_boxes(gemm.shape, len(devices)))
    for place, index in enumerate(tiles.device.tolist()):
        only = tiles.select(np.arange(len(tiles)) == place)
        box = tuple(int(only.column(name)[0]) for name in ("m_start", "m_stop", "n_start", "n_stop", "k_start", "k_stop"))
        batch = int(only.batch_stop[0] - only.batch_start[0])
        if index == len(devices):
            mine = [server_tile_s(gemm, box, batch, server) for server in servers]
            theirs = [server_tile_seconds(gemm, only, server) for server in servers]
        else:
            tile = price_tile(gemm, box, batch, devices[index])
            columns = price(gemm, only, device_columns(devices, gemm.dtype))
            mine = [tile.down_bytes, tile.up_bytes, tile.memory_bytes, tile.ideal_s, tile.executed_s]
            theirs = [
                float(column.sum())
                for column in (
                    columns.down_bytes, columns.up_bytes, columns.memory_bytes, columns.ideal_s, columns.executed_s,
                )
            ]  # fmt: skip
        assert mine == pytest.approx(theirs, rel=1e-12)
