"""The coefficients of one GEMM that bounds and tilings work with, and the devices that may take part.

For one batch item of C[M,N] = A[M,K] @ B[K,N] a tile of r rows and c columns on a device moves
``row_bytes*r + col_bytes*c + halo_bytes`` down and ``out_bytes*r*c`` up, and computes ``flop*r*c``. For a convolution
rows are output positions: a tile is sent whole slabs of the input, so ``halo_bytes`` over-estimates what the exact
count (:func:`cleave_plan.cost.tile.window_positions`) will charge, and the bound uses ``bound_row_bytes``,
``bound_rows`` instead: for any one kernel tap, distinct output positions read distinct input positions, and taps of
different places modulo the stride read different ones. So r rows none of whose q such taps is padding read at least q*r
positions (a patch embedding: every element of its patch); rows with a tap in padding are left out of the bound.

A chain (:mod:`cleave_plan.workload.chain`) has one column, whose bytes are those of its batch item.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.workload.chain import ChainForm
from cleave_plan.workload.gemm import ConvWindow, Gemm

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_NOTHING = 1e-12
"""Bytes of a row that reads nothing, where a bound divides by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Coefficients of one GEMM, in bytes and FLOP per row, column or element of C; ``items`` batch items.

    ``stream_bytes`` must fit the stream buffers of a device that takes part, ``held_bytes`` the rest of its memory.
    ``whole_depth``: K may not be cut (a convolution's operands are regions that overlap, a chain is no single product).
    """

    rows: int
    columns: int
    depth: int
    items: int
    row_bytes: float
    col_bytes: float
    halo_bytes: float
    out_bytes: float
    accumulator_bytes: float
    flop: float
    bound_row_bytes: float
    bound_rows: int
    stream_bytes: float
    held_bytes: float = 0.0
    whole_depth: bool = False

    @property
    def area(self) -> int:
        """Elements of C in one batch item."""
        return self.rows * self.columns

    def transposed(self) -> Terms:
        """The same work with rows and columns exchanged (C' = B' A'); only for planning, never for bounds."""
        return replace(
            self, rows=self.columns, columns=self.rows, row_bytes=self.col_bytes, col_bytes=self.row_bytes,
            bound_row_bytes=self.col_bytes, bound_rows=self.columns,
        )  # fmt: skip


def terms_of(gemm: Gemm, copies: int = 1) -> Terms:
    """Coefficients of ``gemm``; ``copies`` identical GEMMs of one level count as further batch items."""
    shape = gemm.shape
    if gemm.chain is not None:
        return _chain_terms(gemm, gemm.chain, copies)
    a_size, b_size = gemm.a.bits / 8, gemm.b.bits / 8
    row_bytes, halo, bound_row, bound_rows = shape.k * a_size, 0.0, shape.k * a_size, shape.m
    if gemm.window is not None:
        row_bytes, halo, bound_row, bound_rows = _window_terms(gemm.window, a_size)
    return Terms(
        rows=shape.m, columns=shape.n, depth=shape.k, items=shape.batch * copies, row_bytes=row_bytes,
        col_bytes=shape.k * b_size, halo_bytes=halo, out_bytes=gemm.out_dtype.bits / 8,
        accumulator_bytes=gemm.a.dtype.accumulator_bits / 8, flop=2.0 * shape.k, bound_row_bytes=bound_row,
        bound_rows=bound_rows, stream_bytes=shape.k * (a_size + b_size), whole_depth=gemm.window is not None,
    )  # fmt: skip


def eligible(terms: Terms, devices: DeviceColumns) -> Bools:
    """Devices whose stream buffers hold one row and one column of whole depth (of a chain: what it keeps for an item too)."""
    room = (1 - STREAM_SHARE) * devices.memory
    return (terms.stream_bytes <= STREAM_SHARE * devices.memory) & (terms.held_bytes <= room)


def only(devices: DeviceColumns, able: Bools) -> DeviceColumns:
    """The others get a latency that keeps them out of every bound and tiling."""
    return replace(devices, latency=np.where(able, devices.latency, np.inf))


def _chain_terms(gemm: Gemm, form: ChainForm, copies: int) -> Terms:
    """Rows of a chain; its one column stands for the item."""
    shape = gemm.shape
    up = form.out_row_bytes + form.out_item_bytes / shape.m
    return Terms(
        rows=shape.m, columns=shape.n, depth=shape.k, items=shape.batch * copies, row_bytes=form.row_bytes,
        col_bytes=form.item_bytes, halo_bytes=0.0, out_bytes=up, accumulator_bytes=gemm.a.dtype.accumulator_bits / 8,
        flop=2.0 * shape.k, bound_row_bytes=form.row_bytes, bound_rows=shape.m, stream_bytes=form.stream_bytes,
        held_bytes=form.held_bytes, whole_depth=True,
    )  # fmt: skip


def _window_terms(window: ConvWindow, a_size: float) -> tuple[float, float, float, int]:
    """Row bytes, halo bytes, the bound's row bytes, and the rows that the bound may count."""
    position = window.channels * a_size
    reached = [
        min((size - 1) * stride + (kernel - 1) * dilation + 1, length)
        for size, stride, kernel, dilation, length in zip(
            window.output, window.strides, window.kernel, window.dilations, window.input, strict=True
        )
    ]
    per_row = prod(reached) / max(prod(window.output), 1)
    slab = prod(reached[1:])
    first_span = min((window.kernel[0] - 1) * window.dilations[0] + 1, window.input[0])
    reads = [_reads(window, axis) for axis in range(len(window.output))]
    real = window.images * prod(rows for _, rows in reads)
    if real == 0:  # every output is padding: the rows are work all the same, and read nothing
        return per_row * position, first_span * slab * position, _NOTHING, window.images * window.rows_per_image
    return per_row * position, first_span * slab * position, position * prod(taps for taps, _ in reads), real


def _reads(window: ConvWindow, axis: int) -> tuple[int, int]:
    """``(taps, rows)``: so many output positions of one axis read that many distinct input positions each.

    Taps of different places modulo the stride read different positions: one of each, or the one that reads real input most
    often where padding spoils the others.
    """
    stride = window.strides[axis]
    outputs = np.arange(window.output[axis]) * stride - window.pads[axis]
    taps = np.arange(window.kernel[axis]) * window.dilations[axis]
    places = outputs[:, None] + taps[None, :]
    real = (places >= 0) & (places < window.input[axis])
    each = [np.flatnonzero(taps % stride == rest) for rest in np.unique(taps % stride)]
    best = [own[real[:, own].sum(axis=0).argmax()] for own in each]
    together, alone = int(real[:, best].all(axis=1).sum()), int(real.sum(axis=0).max())
    return (len(best), together) if len(best) * together >= alone else (1, alone)
