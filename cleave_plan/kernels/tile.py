"""One tile of one GEMM: cutting what a device is sent, and where its result belongs.

:func:`cut` names the bytes that travel (they equal ``down_bytes`` of :mod:`cleave_plan.cost.tile`);
:func:`cleave_plan.kernels.multiply.multiply` is all that a device does with them. Neither knows where the arrays lie: shared
memory, a message, or a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, accumulator, numpy_dtype
from cleave_plan.kernels.channel_blocks import PLAIN, Blocks, opened, place_in_blocks, rooms_of_blocks
from cleave_plan.kernels.conv import Rooms, copy_rooms, cut_images, rooms_of_images, rooms_of_tile
from cleave_plan.kernels.epilogue import Epilogue
from cleave_plan.kernels.grid import Grid
from cleave_plan.kernels.multiply import convolve_tile, is_direct, multiply
from cleave_plan.kernels.quantised import NOTHING, Coding, Companions, cut_companions
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape


class Box(NamedTuple):
    """The part of a GEMM that one tile computes: half-open ranges, in the column order of a plan."""

    m_start: int
    m_stop: int
    n_start: int
    n_stop: int
    k_start: int
    k_stop: int
    batch_start: int
    batch_stop: int

    @property
    def rows(self) -> slice:
        """Range of M."""
        return slice(self.m_start, self.m_stop)

    @property
    def columns(self) -> slice:
        """Range of N."""
        return slice(self.n_start, self.n_stop)

    @property
    def inner(self) -> slice:
        """Range of K."""
        return slice(self.k_start, self.k_stop)

    @property
    def batch(self) -> slice:
        """Range of the batch axis."""
        return slice(self.batch_start, self.batch_stop)

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """(batch, rows, columns) of the tile's result."""
        return self.batch_stop - self.batch_start, self.m_stop - self.m_start, self.n_stop - self.n_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What every tile of a GEMM shares: its shape, the element types, the window if it is a convolution, B's packing if any,
    the grid in whose blocks it is computed where its bits must not depend on the tile, what is done to the sums of a
    convolution in floating point before they are its result, and which of its arrays lie in blocks of channels.
    """

    shape: GemmShape
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    window: ConvWindow | None
    coding: Coding | None = None
    grid: Grid | None = None
    epilogue: Epilogue | None = None
    blocks: Blocks = PLAIN

    @classmethod
    def of(cls, gemm: Gemm, coding: Coding | None = None) -> Product:
        """The product that ``gemm`` computes, its B packed by ``coding``."""
        return cls(
            shape=gemm.shape, a_dtype=gemm.a.dtype, b_dtype=gemm.b.dtype, out_dtype=gemm.out_dtype, window=gemm.window,
            coding=coding,
        )  # fmt: skip

    @property
    def a_shape(self) -> tuple[int, ...]:
        """Shape of the A operand in canonical form: [batch, M, K], or [images, channels, *input] of a convolution."""
        if self.window is None:
            return self.shape.batch, self.shape.m, self.shape.k
        return self.window.images, self.shape.batch * self.window.channels, *self.window.input

    @property
    def b_shape(self) -> tuple[int, int, int]:
        """Shape of the B operand in canonical form: [batch, K, N], or [batch, N, bytes] when it is packed."""
        batch, _, k, n = self.shape
        return (batch, k, n) if self.coding is None else (batch, n, self.coding.bytes_of(k))

    def holds_inner(self, box: Box) -> bool:
        """Whether a tile holds the whole of K, so that its result is final."""
        return box.k_stop - box.k_start == self.shape.k

    def result_dtype(self, box: Box) -> DType:
        """Element type of a tile's result: the storage type when K is whole, else the accumulator."""
        return self.out_dtype if self.holds_inner(box) else accumulator(self.a_dtype)

    def result_bytes(self, box: Box) -> int:
        """Bytes that travel back."""
        g, r, c = box.result_shape
        return self.result_dtype(box).bytes_of(g * r * c)

    def result_shape(self, box: Box) -> tuple[int, int, int]:
        """(batch, rows, columns) of a tile's result."""
        return box.result_shape

    def area(self, box: Box) -> tuple[slice, ...]:
        """Where a tile's result stands in that of the whole, if this is no convolution."""
        return box.batch, box.rows, box.columns

    @property
    def whole_box(self) -> Box:
        """The product as one tile."""
        batch, m, k, n = self.shape
        return Box(0, m, 0, n, 0, k, 0, batch)

    @property
    def whole_shape(self) -> tuple[int, int, int]:
        """Shape of the whole result: [batch, M, N], or [images, batch * N, positions] of a convolution, as models have it."""
        batch, m, _, n = self.shape
        return (batch, m, n) if self.window is None else (self.window.images, batch * n, self.window.rows_per_image)

    def columns_of(self, whole: Array, columns: slice) -> Array:
        """Some columns of the whole result of a product without batch, as the whole result of a narrower one; a view."""
        return whole[:, :, columns] if self.window is None else whole[:, columns]

    def place(self, whole: Array, box: Box, result: Array) -> None:
        """Put a tile's result into the whole."""
        if self.window is None:
            whole[self.area(box)] = result
        elif self.blocks.out:
            place_in_blocks(whole, self.window, self.blocks.size, box.rows, box.columns, result)
        else:
            copy_rooms(self.window, box.rows, rooms_of_tile(result, self.window, box.rows), self.rooms(whole, box))

    def fetch(self, whole: Array, box: Box) -> Array:
        """A tile's result out of the whole; a view where it can be one."""
        if self.window is None:
            return whole[self.area(box)]
        result = np.empty(box.result_shape, whole.dtype)
        source = rooms_of_blocks(whole, self.blocks.size, box.columns) if self.blocks.out else self.rooms(whole, box)
        copy_rooms(self.window, box.rows, source, rooms_of_tile(result, self.window, box.rows))
        return result

    def run(self, operands: Sequence[Array | None], box: Box, out: Array | None = None) -> tuple[int, Array]:
        """Bytes that a tile reads of ``operands`` (A, B, companions, those of the epilogue, in this order), and its result, in
        ``out`` if given."""
        pieces = self.pieces(operands, box)
        result = multiply(self, pieces, box, out)
        if self.window is not None:
            self._finish(operands, box, rooms_of_tile(result, self.window, box.rows))
        return pieces.nbytes, result

    def run_into(self, operands: Sequence[Array | None], box: Box, whole: Array) -> int:
        """Compute a tile that holds the whole of K where it belongs in ``whole``; the bytes that it reads of ``operands``."""
        if self.window is None:
            return self.run(operands, box, whole[self.area(box)])[0]
        pieces = self.pieces(operands, box)
        if 0 in box.result_shape:
            return pieces.nbytes
        if self.blocks.out:
            self.place(whole, box, self.run(operands, box)[1])
            return pieces.nbytes
        if is_direct(self, pieces, box):
            convolve_tile(self, pieces, box, whole.dtype, self.rooms(whole, box))
        else:
            self.place(whole, box, multiply(self, pieces, box))
        self._finish(operands, box, self.rooms(whole, box))
        return pieces.nbytes

    def _finish(self, operands: Sequence[Array | None], box: Box, rooms: Rooms) -> None:
        """The epilogue of a tile whose sums stand in ``rooms``."""
        if self.epilogue is not None and self.window is not None:
            bias, addend = self.beside(operands, box)
            self.epilogue.apply(self.window, box.rows, box.columns, rooms, bias, addend)

    def beside(self, operands: Sequence[Array | None], box: Box) -> tuple[Array | None, Rooms | None]:
        """What a tile's epilogue reads: its part of the bias, [groups, columns], and where its addend stands."""
        bias, addend = operands[-2:]
        own = None if bias is None else bias[box.batch, box.columns]
        return own, None if addend is None else self.addend_rooms(addend, box)

    def addend_rooms(self, addend: Array, box: Box) -> Rooms:
        """Where the whole ``addend`` has what is added to a tile."""
        return rooms_of_blocks(addend, self.blocks.size, box.columns) if self.blocks.addend else self.rooms(addend, box)

    def pieces(self, operands: Sequence[Array | None], box: Box) -> Pieces:
        """Views of what a tile reads of ``operands``; raises ValueError where they do not fit."""
        a, b, *along = operands if self.epilogue is None else operands[:-2]
        if a is None or b is None:
            raise ValueError("an operand is absent")
        return cut(self, a, b, box, Companions(*along))

    def rooms(self, whole: Array, box: Box) -> Rooms:
        """Where the results of a convolution's tile stand in ``whole``."""
        assert self.window is not None
        return rooms_of_images(whole, self.window, self.shape.batch, box.batch, box.columns)


class Pieces(NamedTuple):
    """What travels to a device for one tile: blocks of A (several for a convolution over several images), of B, companions."""

    a: tuple[Array, ...]
    b: Array
    along: Companions = NOTHING

    @property
    def nbytes(self) -> int:
        """Bytes that travel down."""
        return sum(piece.nbytes for piece in self.a) + self.b.nbytes + self.along.nbytes


def cut(product: Product, a: Array, b: Array, box: Box, along: Companions = NOTHING) -> Pieces:
    """Views of the canonical operands ``a`` (``product.a_shape``) and ``b`` (``product.b_shape``) that the tile reads; those of
    images in blocks of channels are opened.

    Raises ValueError when the operands have other shapes, the box leaves them (a slice would be cut short silently), or
    it cuts the K of a convolution, for which no input region is defined.
    """
    batch, m, k, n = product.shape
    if a.shape != product.a_shape or b.shape != product.b_shape:
        raise ValueError(f"operands of shapes {a.shape} and {b.shape} instead of {product.a_shape} and {product.b_shape}")
    if not all(0 <= start <= stop <= size for start, stop, size in zip(box[::2], box[1::2], (m, n, k, batch), strict=True)):
        raise ValueError(f"{box} leaves the product of batch, M, K, N = {tuple(product.shape)}")
    if product.window is not None and box.k_stop - box.k_start < k:
        raise ValueError(f"{box} cuts the inner axis of a convolution")
    if product.coding is None:
        weights, blocks = b[box.batch, box.inner, box.columns], slice(None)
    else:
        packed, blocks = product.coding.places(box.k_start, box.k_stop)
        weights = b[box.batch, box.columns, packed]
    own = cut_companions(along, batch=box.batch, rows=box.rows, columns=box.columns, blocks=blocks)
    if product.window is None:
        return Pieces((a[box.batch, box.rows, box.inner],), weights, own)
    images = opened(a, product.blocks.size) if product.blocks.a else a
    return Pieces(cut_images(product.window, images, rows=box.rows, groups=box.batch), weights, own)


def whole_of(product: Product, operands: Sequence[Array | None]) -> Array:
    """The whole result, computed as one tile."""
    whole = np.empty(product.whole_shape, numpy_dtype(product.out_dtype))
    product.run_into(operands, product.whole_box, whole)
    return whole
