"""One tile of one GEMM: cutting what a device is sent, and multiplying it.

:func:`cut` names the bytes that travel (they equal ``down_bytes`` of :mod:`cleave_plan.cost.tile`), :func:`multiply` is
all that a device does with them. Neither knows where the arrays lie: shared memory, a message, or a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.conv import convolve, cut_images
from cleave_plan.kernels.gemm import multiply_block
from cleave_plan.kernels.quantised import (
    NOTHING,
    Coding,
    Companions,
    cut_companions,
    decoded,
    exact_type,
    narrowed,
    requantised,
    shifted,
)  # fmt: skip
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
    """What every tile of a GEMM shares: its shape, the element types, the window if it is a convolution, B's packing if any."""

    shape: GemmShape
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    window: ConvWindow | None
    coding: Coding | None = None

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
        """Where a tile's result stands in that of the whole."""
        return box.batch, box.rows, box.columns

    @property
    def whole_shape(self) -> tuple[int, int, int]:
        """Shape of the whole result, [batch, M, N]."""
        return self.shape.batch, self.shape.m, self.shape.n

    def run(self, operands: Sequence[Array | None], box: Box, out: Array | None = None) -> tuple[int, Array]:
        """Bytes that a tile reads of ``operands`` (A, B, companions, in this order), and its result, in ``out`` if given."""
        a, b, *along = operands
        if a is None or b is None:
            raise ValueError("an operand is absent")
        pieces = cut(self, a, b, box, Companions(*along))
        return pieces.nbytes, multiply(self, pieces, box, out)


class Pieces(NamedTuple):
    """What travels to a device for one tile: blocks of A (several for a convolution over several images), of B, companions."""

    a: tuple[Array, ...]
    b: Array
    along: Companions = NOTHING

    @property
    def nbytes(self) -> int:
        """Bytes that travel down."""
        return sum(piece.nbytes for piece in self.a) + self.b.nbytes + self.along.nbytes


def accumulator(dtype: DType) -> DType:
    """The type in which sums of products of ``dtype`` are kept: 32 bits wide at least, of the same kind.

    Integers of up to 16 bits are summed in int32, whatever their sign, as ONNX does.
    """
    if dtype is DType.FLOAT64:
        return dtype
    if dtype.value.startswith(("float", "bfloat")):
        return DType.FLOAT32
    if dtype.bits < DType.INT32.bits:
        return DType.INT32
    return dtype


def cut(product: Product, a: Array, b: Array, box: Box, along: Companions = NOTHING) -> Pieces:
    """Views of the canonical operands ``a`` (``product.a_shape``) and ``b`` (``product.b_shape``) that the tile reads.

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
    return Pieces(cut_images(product.window, a, rows=box.rows, groups=box.batch), weights, own)


def multiply(product: Product, pieces: Pieces, box: Box, out: Array | None = None) -> Array:
    """The tile's result, [batch, rows, columns] in ``product.result_dtype(box)``, from its pieces alone; in ``out`` if given.

    Raises ValueError when ``out`` has another shape or type.
    """
    kind = numpy_dtype(product.result_dtype(box))
    if out is None:
        out = np.empty(box.result_shape, kind)
    elif out.shape != box.result_shape or out.dtype != kind:
        raise ValueError(f"room for {out.dtype}{list(out.shape)} where {box} has {kind}{list(box.result_shape)}")
    if not out.size:
        return out
    sums_type = numpy_dtype(accumulator(product.a_dtype))
    working = exact_type(product.a_dtype, product.b_dtype, box.k_stop - box.k_start) or sums_type
    if working == kind and pieces.along.scale is None:  # sums are the result as they are, and are formed where they belong
        return _sums(product, pieces, box, working, out)
    sums = narrowed(_sums(product, pieces, box, working), sums_type)
    out[...] = complete(product, sums, pieces.along) if product.holds_inner(box) else sums
    return out


def complete(product: Product, sums: Array, along: Companions) -> Array:
    """Finished sums in the storage type, requantised where the product is."""
    stored = numpy_dtype(product.out_dtype)
    return sums.astype(stored, copy=False) if along.scale is None else requantised(sums, along, stored)


def _sums(product: Product, pieces: Pieces, box: Box, working: np.dtype[Any], out: Array | None = None) -> Array:
    along = pieces.along
    a = tuple(shifted(piece, along.a_zero, working) for piece in pieces.a)
    if product.coding is None:
        b = shifted(pieces.b, along.b_zero, working)
    else:
        b = decoded(product.coding, pieces.b, along, box.inner, working)
    if product.window is None:
        return multiply_block(a[0], b, working, out)
    return convolve(product.window, a, b, rows=box.rows, working=working, out=out)
