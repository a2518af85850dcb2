"""One tile of one GEMM: cutting what a device is sent, and multiplying it.

:func:`cut` names the bytes that travel (they equal ``down_bytes`` of :mod:`cleave_plan.cost.tile`), :func:`multiply` is
all that a device does with them. Neither knows where the arrays lie: shared memory, a message, or a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.conv import convolve, cut_images
from cleave_plan.kernels.gemm import multiply_block
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
    """What every tile of a GEMM shares: its shape, the element types, and the window if it is a convolution."""

    shape: GemmShape
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    window: ConvWindow | None

    @classmethod
    def of(cls, gemm: Gemm) -> Product:
        """The product that ``gemm`` computes."""
        return cls(shape=gemm.shape, a_dtype=gemm.a.dtype, b_dtype=gemm.b.dtype, out_dtype=gemm.out_dtype, window=gemm.window)

    @property
    def a_shape(self) -> tuple[int, ...]:
        """Shape of the A operand in canonical form: [batch, M, K], or [images, channels, *input] of a convolution."""
        if self.window is None:
            return self.shape.batch, self.shape.m, self.shape.k
        return self.window.images, self.shape.batch * self.window.channels, *self.window.input

    @property
    def b_shape(self) -> tuple[int, int, int]:
        """Shape of the B operand in canonical form: [batch, K, N]."""
        return self.shape.batch, self.shape.k, self.shape.n

    def result_dtype(self, box: Box) -> DType:
        """Element type of a tile's result: the storage type when K is whole, else the accumulator."""
        whole = box.k_stop - box.k_start == self.shape.k
        return self.out_dtype if whole else accumulator(self.a_dtype)

    def result_bytes(self, box: Box) -> int:
        """Bytes that travel back."""
        g, r, c = box.result_shape
        return self.result_dtype(box).bytes_of(g * r * c)


class Pieces(NamedTuple):
    """What travels to a device for one tile: blocks of A (several for a convolution over several images) and of B."""

    a: tuple[Array, ...]
    b: Array

    @property
    def nbytes(self) -> int:
        """Bytes that travel down."""
        return sum(piece.nbytes for piece in self.a) + self.b.nbytes


def accumulator(dtype: DType) -> DType:
    """The type in which sums of products of ``dtype`` are kept: 32 bits wide at least, of the same kind."""
    if dtype is DType.FLOAT64:
        return dtype
    if dtype.value.startswith(("float", "bfloat")):
        return DType.FLOAT32
    kind = "uint" if dtype.value.startswith("uint") else "int"
    return DType(f"{kind}{dtype.accumulator_bits}")


def cut(product: Product, a: Array, b: Array, box: Box) -> Pieces:
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
    weights = b[box.batch, box.inner, box.columns]
    if product.window is None:
        return Pieces((a[box.batch, box.rows, box.inner],), weights)
    return Pieces(cut_images(product.window, a, rows=box.rows, groups=box.batch), weights)


def multiply(product: Product, pieces: Pieces, box: Box) -> Array:
    """The tile's result, [batch, rows, columns] in ``product.result_dtype(box)``, from its pieces alone."""
    working = numpy_dtype(accumulator(product.a_dtype))
    wanted = numpy_dtype(product.result_dtype(box))
    if 0 in box.result_shape:
        return np.zeros(box.result_shape, wanted)
    if product.window is None:
        return multiply_block(pieces.a[0], pieces.b, working).astype(wanted, copy=False)
    result = convolve(product.window, pieces.a, pieces.b, rows=box.rows, working=working)
    return result.astype(wanted, copy=False)
