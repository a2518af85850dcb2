"""The price of one GEMM under one assignment, computed a second time: plain arithmetic on one tile after the other.

This shares no code with the planner or with :func:`cleave_plan.cost.tile.price`; it is written from the same formulas
(planning.md section 1 and the docstring of :mod:`cleave_plan.cost.tile`) so that a slip in either shows as a
disagreement. It is meant to be read beside those formulas, not to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from cleave_plan.cost.tile import Floats, Tiles
from cleave_plan.fleet.device import Device, Server
from cleave_plan.plan.keeping import TileHold
from cleave_plan.workload.chain import ChainForm
from cleave_plan.workload.gemm import ConvWindow, Gemm

STREAM_SHARE = 0.1
"""Share of a device's memory for stream buffers (planning.md section 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileWork:
    """One tile wherever it is computed: bytes of A, of B and of accumulators for one batch item; for all of them, bytes of
    the result and FLOP. ``partial_sums``: elements of the result where K is cut, else 0. ``scores``, ``between``: bytes that
    a server moves besides when it computes the tile of a chain."""

    a_item: float
    b_item: float
    c_item: float
    up_bytes: float
    flop: int
    partial_sums: int
    scores: int = 0
    between: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePrice:
    """One tile on one device: bytes down and up, partial sums, bytes of memory, seconds by both costs.

    ``executed_s`` is infinite when no operand fits the device beside its stream buffers.
    """

    down_bytes: float
    up_bytes: float
    partial_sums: int
    memory_bytes: float
    ideal_s: float
    executed_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GemmPrice:
    """One GEMM under one assignment: sums over its tiles; the columns have one entry per device of the fleet.

    ``down_bytes`` is what is sent, ``spared_bytes`` what is not because devices hold it.

    ``ideal_s`` and ``executed_s``: seconds of each device's tiles, one after the other; ``memory_bytes``: the most that
    one of its tiles needs (0 for a device without tiles). ``buffer_bytes``: one row and one column of whole depth, what
    the stream buffers of every device that takes part must hold. Tiles that the server computes itself are in
    ``server_s`` and nowhere else: they cross no link, and their partial sums are not received from anyone.
    """

    ideal_s: Floats
    executed_s: Floats
    memory_bytes: Floats
    down_bytes: float
    up_bytes: float
    partial_sums: int
    buffer_bytes: float
    server_s: float
    spared_bytes: float


NOTHING = TileHold()


def price_gemm(
    gemm: Gemm,
    tiles: Tiles,
    devices: Sequence[Device],
    server: Server,
    holds: Sequence[TileHold] | None = None,
    resident: Mapping[int, float] | None = None,
) -> GemmPrice:
    """Price ``tiles`` of ``gemm``; ``tiles.device`` indexes ``devices``, one past the last of them is ``server``.

    ``holds``: what each tile's device holds of its operands; ``resident``: bytes that devices keep, by place.

    Raises MissingFigureError when a device, or the server where it has a tile, lacks a FLOP/s figure for the GEMM's dtype.
    """
    ideal, executed, memory = (np.zeros(len(devices)) for _ in range(3))
    down: list[float] = []
    up: list[float] = []
    own_s: list[float] = []
    partial_sums = 0
    columns = (tiles.m_start, tiles.m_stop, tiles.n_start, tiles.n_stop, tiles.k_start, tiles.k_stop)
    items = (tiles.batch_stop - tiles.batch_start).tolist()
    boxes = zip(*(column.tolist() for column in columns), strict=True)
    spared: list[float] = []
    for place, box, batch, hold in zip(tiles.device.tolist(), boxes, items, holds or [NOTHING] * len(tiles), strict=True):
        if place == len(devices):
            own_s.append(server_tile_s(gemm, box, batch, server))
            continue
        price = price_tile(gemm, box, batch, devices[place], hold, (resident or {}).get(place, 0.0))
        spared.append(_spared_bytes(gemm, hold))
        ideal[place] += price.ideal_s
        executed[place] += price.executed_s
        memory[place] = max(memory[place], price.memory_bytes)
        down.append(price.down_bytes)
        up.append(price.up_bytes)
        partial_sums += price.partial_sums
    return GemmPrice(
        ideal_s=ideal, executed_s=executed, memory_bytes=memory,
        down_bytes=math.fsum(down), up_bytes=math.fsum(up), partial_sums=partial_sums,
        buffer_bytes=_buffer_bytes(gemm), server_s=math.fsum(own_s),
        spared_bytes=math.fsum(spared),
    )  # fmt: skip


def price_tile(
    gemm: Gemm, box: tuple[int, ...], batch: int, device: Device, hold: TileHold = NOTHING, resident: float = 0.0
) -> TilePrice:
    """Price one tile ``box`` of ``batch`` batch items on ``device``; the box is as in :func:`tile_work`.

    ``hold``: what the device holds of the operands, and ``resident``, bytes of all that it keeps.
    """
    work = tile_work(gemm, box, batch)
    a_sent = batch * work.a_item - hold.a_spared * gemm.a.bits / 8
    b_sent = batch * work.b_item - hold.b_spared * gemm.b.bits / 8
    a_s, b_s = a_sent / device.downlink_bytes_per_s, b_sent / device.downlink_bytes_per_s
    up_s = work.up_bytes / device.uplink_bytes_per_s
    flop_s = work.flop / (device.rate(gemm.a.dtype) * _fraction(device, work.flop))

    room = (1 - STREAM_SHARE) * device.memory_bytes - resident
    if gemm.chain is not None:
        result_s = batch * gemm.chain.out_item_bytes / device.uplink_bytes_per_s
        kept = [(float(gemm.chain.held_bytes), _item_after_item(a_s, b_s, flop_s, up_s - result_s, result_s, batch))]
    else:
        kept = [
            (work.a_item - hold.a_there * gemm.a.bits / 8, a_s + max(b_s, flop_s, up_s)),
            (work.b_item - hold.b_there * gemm.b.bits / 8, b_s + max(a_s, flop_s, up_s)),
            (work.c_item, max(a_s + b_s, flop_s) + up_s),
        ]
    return TilePrice(
        down_bytes=a_sent + b_sent, up_bytes=work.up_bytes, partial_sums=work.partial_sums,
        memory_bytes=STREAM_SHARE * device.memory_bytes + min(size for size, _ in kept),
        ideal_s=device.latency_s + max(a_s + b_s, flop_s, up_s),
        executed_s=device.latency_s + min((seconds for size, seconds in kept if size <= room), default=math.inf),
    )  # fmt: skip


def _spared_bytes(gemm: Gemm, hold: TileHold) -> float:
    """Bytes that a tile's device is not sent."""
    return hold.a_spared * gemm.a.bits / 8 + hold.b_spared * gemm.b.bits / 8


def server_tile_s(gemm: Gemm, box: tuple[int, ...], batch: int, server: Server) -> float:
    """Seconds that ``server`` takes for a tile of its own: its arithmetic, or its pieces of A, B and C through its memory."""
    work = tile_work(gemm, box, batch)
    touched = batch * work.a_item + batch * work.b_item + work.up_bytes + work.scores
    between_s = work.between / server.memory_bandwidth_bytes_per_s
    return max(work.flop / server.rate(gemm.a.dtype), touched / server.memory_bandwidth_bytes_per_s) + between_s


def tile_work(gemm: Gemm, box: tuple[int, ...], batch: int) -> TileWork:
    """The work of ``batch`` batch items of ``box`` = (m_start, m_stop, n_start, n_stop, k_start, k_stop)."""
    m_start, m_stop, n_start, n_stop, k_start, k_stop = box
    if gemm.chain is not None:
        return _chain_work(gemm.chain, m_stop - m_start, batch, gemm.shape.k)
    rows, columns, depth = m_stop - m_start, n_stop - n_start, k_stop - k_start
    cut_inside = depth < gemm.shape.k
    sum_size = gemm.a.dtype.accumulator_bits / 8
    return TileWork(
        a_item=_a_elements(gemm, m_start, m_stop, depth) * gemm.a.bits / 8,
        b_item=depth * columns * gemm.b.bits / 8,
        c_item=rows * columns * sum_size,
        up_bytes=batch * rows * columns * (sum_size if cut_inside else gemm.out_dtype.bits / 8),
        flop=2 * batch * rows * columns * depth,
        partial_sums=batch * rows * columns if cut_inside else 0,
    )


def _chain_work(form: ChainForm, rows: int, batch: int, depth: int) -> TileWork:
    """Rows of Q go down, with them K and V of each item; nothing of a chain is ever a partial sum."""
    return TileWork(
        a_item=rows * form.row_bytes, b_item=form.item_bytes, c_item=math.inf,
        up_bytes=batch * rows * form.out_row_bytes + batch * form.out_item_bytes, flop=2 * batch * rows * depth, partial_sums=0,
        scores=batch * rows * form.scores_bytes, between=batch * rows * form.between_bytes,
    )  # fmt: skip


def _item_after_item(rows_s: float, items_s: float, flop_s: float, up_s: float, result_s: float, batch: int) -> float:
    """Seconds of a chain's tile, all arguments those of ``batch`` items: the first K and V arrive, then each item but the
    last passes with the next one's arriving, then the last passes and leaves its dK and dV."""
    rows, item, flop, up, result = (seconds / batch for seconds in (rows_s, items_s, flop_s, up_s, result_s))
    return item + (batch - 1) * max(item + rows, flop, up + result) + max(rows, flop, up) + result


def _buffer_bytes(gemm: Gemm) -> float:
    """One row and one column of whole depth; of a chain, one row with its scores and its result."""
    if gemm.chain is not None:
        return gemm.chain.stream_bytes
    return gemm.shape.k * (gemm.a.bits + gemm.b.bits) / 8


def _fraction(device: Device, flop: int) -> float:
    """The share of the device's FLOP/s that a tile of ``flop`` reaches: straight lines over log(flop), flat outside."""
    points = device.efficiency
    if not points:
        return 1.0
    if flop <= points[0].flop:
        return points[0].fraction
    for left, right in pairwise(points):
        if flop <= right.flop:
            along = math.log(flop / left.flop) / math.log(right.flop / left.flop)
            return left.fraction + along * (right.fraction - left.fraction)
    return points[-1].fraction


def _a_elements(gemm: Gemm, m_start: int, m_stop: int, depth: int) -> int:
    """Elements of A that one batch item of a tile is sent."""
    window = gemm.window
    if window is None:
        return (m_stop - m_start) * depth
    channels = window.channels * depth // gemm.shape.k
    return channels * region_positions(window, m_start, m_stop)


@lru_cache(maxsize=4096)
def region_positions(window: ConvWindow, m_start: int, m_stop: int) -> int:
    """Input positions sent for output rows ``m_start:m_stop``: images that the range begins and ends in by the box that
    their outputs read, images between whole."""
    first, last = m_start, m_stop - 1
    rows = window.rows_per_image
    if first // rows == last // rows:
        return _box_positions(window, first % rows, last % rows)
    between = last // rows - first // rows - 1
    head = _box_positions(window, first % rows, rows - 1)
    return head + between * math.prod(window.input) + _box_positions(window, 0, last % rows)


def _box_positions(window: ConvWindow, first: int, last: int) -> int:
    """Positions of the least box around all inputs (padding left out) that outputs ``first..last`` of one image read."""
    positions = 1
    inner = window.rows_per_image
    for axis, size in enumerate(window.output):
        inner //= size
        low_step, high_step = first // inner, last // inner  # the coordinate runs through these steps, modulo its size
        coordinates = {step % size for step in range(low_step, min(high_step, low_step + size - 1) + 1)}
        taps = [tap * window.dilations[axis] for tap in range(window.kernel[axis])]
        begin = min(coordinates) * window.strides[axis] - window.pads[axis] + taps[0]
        end = max(coordinates) * window.strides[axis] - window.pads[axis] + taps[-1] + 1
        inside = range(max(begin, 0), min(end, window.input[axis]))
        positions *= len(inside)
    return positions
