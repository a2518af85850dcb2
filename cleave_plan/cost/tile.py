r"""What tiles cost on devices: bytes down and up, FLOP, memory, and three times.

A tile is a box ``batch_start:batch_stop x m_start:m_stop x n_start:n_stop x k_start:k_stop`` of one GEMM on one
device (or on the server: see :mod:`cleave_plan.cost.level`). With r, c, k, g the lengths along M, N, K and batch, b_a,
b_b, b_out, b_acc bytes per element, and for device i F FLOP/s (of this dtype and tile size), d downlink, u uplink,
l latency, m memory:

    a     = g*r*k*b_a          (a convolution: the input region that the rows read, halo included, padding not)
    b     = g*k*c*b_b
    down  = a + b
    up    = g*r*c*b_out        (b_acc instead of b_out when K is cut)
    flop  = 2*g*r*c*k

    ideal              l + max(down/d, flop/F, up/u)
    executed           the least over the operand that is kept, of those that fit 0.9*m (one batch item at a time):
      A or B kept      l + kept/d + max((down - kept)/d, flop/F, up/u)
      C kept           l + max(down/d, flop/F) + up/u
    store-and-forward  l + down/d + flop/F + up/u

    a chain (:mod:`cleave_plan.workload.chain`): down, up and flop by its form, K and V kept; items follow one another, the
    next one's K and V arriving while rows of this one pass:
                     l + item/d + (g - 1)*max(down, flop, up)/g + max(rows/d, flop/F, rows up/u)/g + item up/u
                     (down, up, flop: seconds of the tile; item, rows: of one batch item)

Memory of a tile = stream buffers (0.1*m) + the least of the kept operand's bytes for one batch item:
r*k*b_a (or the region), k*c*b_b, r*c*b_acc. A device can take part only if one row and one column of whole depth fit
its stream buffers: k*(b_a + b_b) <= 0.1*m.

What a device holds already (:class:`Held`) is not sent: a and b above are what is left to send. Pieces that are held take
memory all the time, so 0.9*m - resident is left for a tile, and a tile needs room only for what is not resident.

All functions work on whole columns of tiles; scalars broadcast. Units: bytes, FLOP, seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.workload.chain import ChainForm
from cleave_plan.workload.gemm import ConvWindow, Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STREAM_SHARE = 0.1
"""Share of a device's memory that is set apart for stream buffers."""

BOX = ("m_start", "m_stop", "n_start", "n_stop", "k_start", "k_stop", "batch_start", "batch_stop")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Columns of equal length, one entry per tile.

    ``device`` is an index into ``fleet.devices``; ``len(fleet.devices)`` stands for the server that holds the GEMM.
    """

    device: Ints
    m_start: Ints
    m_stop: Ints
    n_start: Ints
    n_stop: Ints
    k_start: Ints
    k_stop: Ints
    batch_start: Ints
    batch_stop: Ints

    def __len__(self) -> int:
        return len(self.device)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, ...]]) -> Tiles:
        """Build from rows ``(device, m_start, m_stop, n_start, n_stop, k_start, k_stop, batch_start, batch_stop)``."""
        table = np.array(list(rows), dtype=np.int64).reshape(-1, 9)
        return cls(device=table[:, 0], **{name: table[:, 1 + place] for place, name in enumerate(BOX)})

    def select(self, chosen: NDArray[np.bool_] | Ints | slice) -> Tiles:
        """The tiles where ``chosen`` is true, or those at the places ``chosen``."""
        return Tiles(device=self.device[chosen], **{name: self.column(name)[chosen] for name in BOX})

    def column(self, name: str) -> Ints:
        """One column by its JSON name."""
        column: Ints = getattr(self, name)
        return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Columns over tiles: what a tile's device holds of its operands.

    ``a_bytes``, ``b_bytes``: bytes (of all batch items) that are not sent. ``a_item``, ``b_item``: bytes of one batch item of
    the operand that lie in resident memory while the tile runs. ``resident``: all that the device keeps, in bytes.
    """

    a_bytes: Floats
    b_bytes: Floats
    a_item: Floats
    b_item: Floats
    resident: Floats

    def select(self, chosen: NDArray[np.bool_]) -> Held:
        """The entries where ``chosen`` is true."""
        return Held(
            a_bytes=self.a_bytes[chosen], b_bytes=self.b_bytes[chosen], a_item=self.a_item[chosen], b_item=self.b_item[chosen],
            resident=self.resident[chosen],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileCosts:
    """Per-tile columns; see the module's formulas. ``kept`` is 0, 1, 2 for A, B, C (the cheapest that fits), or 3 when
    no operand fits the memory (``executed_s`` is then infinite)."""

    a_bytes: Floats
    b_bytes: Floats
    up_bytes: Floats
    flop: Floats
    memory_bytes: Floats
    ideal_s: Floats
    executed_s: Floats
    store_forward_s: Floats
    kept: Ints

    @property
    def down_bytes(self) -> Floats:
        """Bytes from the server to the device."""
        return self.a_bytes + self.b_bytes


def window_positions(window: ConvWindow, m_start: Ints, m_stop: Ints) -> Ints:
    """Input positions (per channel and group) that output rows ``m_start:m_stop`` of a convolution are sent.

    Rows are positions in the order (image, output...). A range inside one image is sent the slab of its first axis on
    which its coordinates differ (whole on the axes after it); a range over several images is sent a tail of the first,
    all of the middle ones and a head of the last. Padding is never sent.
    """
    start, stop = np.asarray(m_start, np.int64), np.asarray(m_stop, np.int64)
    rows = window.rows_per_image
    first, last = start // rows, (stop - 1) // rows
    same = first == last
    head = _image_positions(window, start % rows, np.where(same, (stop - 1) % rows, rows - 1))
    tail = _image_positions(window, np.zeros_like(stop), (stop - 1) % rows)
    middle = np.maximum(last - first - 1, 0) * prod(window.input)
    return np.where(stop <= start, 0, np.where(same, head, head + middle + tail))


def _image_positions(window: ConvWindow, first: Ints, last: Ints) -> Ints:
    """Vectorised volume of the boxes that :meth:`ConvWindow.region` gives, for columns of ``first`` and ``last``."""
    volume = np.ones_like(first)
    free = np.zeros(first.shape, dtype=bool)
    for axis, size in enumerate(window.output):
        inner = prod(window.output[axis + 1 :])
        low = np.where(free, 0, first // inner % size)
        high = np.where(free, size - 1, last // inner % size)
        span = (window.kernel[axis] - 1) * window.dilations[axis] + 1
        begin = np.clip(low * window.strides[axis] - window.pads[axis], 0, window.input[axis])
        end = np.clip(high * window.strides[axis] - window.pads[axis] + span, 0, window.input[axis])
        volume = volume * np.maximum(end - begin, 0)
        free = free | (low != high)
    return volume


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileWork:
    """Per-tile columns that no device figure enters: operand and result bytes of the tile, bytes of each operand that
    may be kept (rows A, B, C; one batch item), and FLOP."""

    a_bytes: Floats
    b_bytes: Floats
    up_bytes: Floats
    kept_bytes: Floats
    flop: Floats


def work_of(gemm: Gemm, tiles: Tiles) -> TileWork:
    """Bytes and FLOP of each tile, wherever it is computed."""
    if gemm.chain is not None:
        return _chain_work(gemm, gemm.chain, tiles)
    shape, a_size, b_size = gemm.shape, gemm.a.bits / 8, gemm.b.bits / 8
    r, c = tiles.m_stop - tiles.m_start, tiles.n_stop - tiles.n_start
    k, g = tiles.k_stop - tiles.k_start, tiles.batch_stop - tiles.batch_start
    if gemm.window is None:
        a_elements = r * k
    else:
        depth = gemm.window.channels * k // max(shape.k, 1)
        a_elements = window_positions(gemm.window, tiles.m_start, tiles.m_stop) * depth
    a_item, b_item = a_elements * a_size, k * c * b_size
    accumulator = gemm.a.dtype.accumulator_bits / 8
    out_size = np.where(k < shape.k, accumulator, gemm.out_dtype.bits / 8)
    return TileWork(
        a_bytes=g * a_item, b_bytes=g * b_item, up_bytes=g * r * c * out_size,
        kept_bytes=np.stack([a_item + 0.0 * c, b_item + 0.0 * r, r * c * accumulator]), flop=2.0 * g * r * c * k,
    )  # fmt: skip


def _chain_work(gemm: Gemm, form: ChainForm, tiles: Tiles) -> TileWork:
    r = (tiles.m_stop - tiles.m_start).astype(np.float64)
    g = (tiles.batch_stop - tiles.batch_start).astype(np.float64)
    never = np.full(len(tiles), np.inf)
    return TileWork(
        a_bytes=g * r * form.row_bytes, b_bytes=g * form.item_bytes, up_bytes=g * (r * form.out_row_bytes + form.out_item_bytes),
        kept_bytes=np.stack([never, np.full(len(tiles), float(form.held_bytes)), never]), flop=2.0 * g * r * gemm.shape.k,
    )  # fmt: skip


def _chain_executed(form: ChainForm, tiles: Tiles, a_s: Floats, b_s: Floats, flop_s: Floats, up_s: Floats) -> Floats:
    """Seconds of a chain's tiles beside their latency; see the module's formula."""
    r, g = tiles.m_stop - tiles.m_start, tiles.batch_stop - tiles.batch_start
    item_up_s = up_s * (form.out_item_bytes / np.maximum(r * form.out_row_bytes + form.out_item_bytes, 1))
    others = (g - 1) * np.maximum(np.maximum(a_s + b_s, flop_s), up_s)
    last = np.maximum(np.maximum(a_s, flop_s), up_s - item_up_s) + item_up_s
    return np.asarray((b_s + others + last) / g)


class _Phases(NamedTuple):
    """Seconds that each tile's device receives A, B and both, computes, and sends."""

    a_s: Floats
    b_s: Floats
    down_s: Floats
    flop_s: Floats
    up_s: Floats

    @classmethod
    def of(cls, work: TileWork, own: DeviceColumns) -> _Phases:
        """``own``: each tile's device, or one for all."""
        a, b = work.a_bytes, work.b_bytes
        down, flop_s = own.downlink, work.flop / own.rate(work.flop)
        return cls(a_s=a / down, b_s=b / down, down_s=(a + b) / down, flop_s=flop_s, up_s=work.up_bytes / own.uplink)

    def executed_s(self, gemm: Gemm, tiles: Tiles, too_large: NDArray[np.bool_]) -> Floats:
        """Seconds of each tile beside its latency where A, B or C is kept, and infinity where that is ``too_large``; both
        of shape (3, tiles)."""
        a_s, b_s, down_s, flop_s, up_s = self
        executed = np.stack([
            a_s + np.maximum(np.maximum(b_s, flop_s), up_s), b_s + np.maximum(np.maximum(a_s, flop_s), up_s),
            np.maximum(down_s, flop_s) + up_s,
        ])  # fmt: skip
        if gemm.chain is not None:
            executed[1] = _chain_executed(gemm.chain, tiles, a_s, b_s, flop_s, up_s)
        executed[too_large] = np.inf
        return executed


def executed_on(gemm: Gemm, tiles: Tiles, work: TileWork, devices: DeviceColumns, device: int) -> Floats:
    """``executed_s`` of :func:`price` of all ``tiles``, whose ``work`` is known, on the one ``device``."""
    own = devices.take(np.array([device]))
    too_large = work.kept_bytes > (1 - STREAM_SHARE) * own.memory
    seconds: Floats = own.latency + _Phases.of(work, own).executed_s(gemm, tiles, too_large).min(axis=0)
    return seconds


def price(gemm: Gemm, tiles: Tiles, devices: DeviceColumns, held: Held | None = None) -> TileCosts:
    """Costs of each tile of ``gemm`` on its device (``devices`` columns are those of the whole fleet).

    ``held``: what the devices hold already, one entry per tile (None: nothing); ``a_bytes`` and ``b_bytes`` of the answer are
    what is sent.
    """
    work = work_of(gemm, tiles)
    own = devices.take(tiles.device)
    room = (1 - STREAM_SHARE) * own.memory
    if held is not None:
        room = room - held.resident
        work = replace(
            work, a_bytes=work.a_bytes - held.a_bytes, b_bytes=work.b_bytes - held.b_bytes,
            kept_bytes=work.kept_bytes - np.stack([held.a_item, held.b_item, 0.0 * held.a_item]),
        )  # fmt: skip
    phases = _Phases.of(work, own)
    executed = phases.executed_s(gemm, tiles, work.kept_bytes > room)
    _, _, down_s, flop_s, up_s = phases
    kept = np.where(np.isinf(executed).all(axis=0), 3, executed.argmin(axis=0))
    return TileCosts(
        a_bytes=work.a_bytes, b_bytes=work.b_bytes, up_bytes=work.up_bytes, flop=work.flop,
        memory_bytes=STREAM_SHARE * own.memory + work.kept_bytes.min(axis=0),
        ideal_s=own.latency + np.maximum(np.maximum(down_s, flop_s), up_s),
        executed_s=own.latency + executed.min(axis=0),
        store_forward_s=own.latency + down_s + flop_s + up_s,
        kept=kept,
    )  # fmt: skip
