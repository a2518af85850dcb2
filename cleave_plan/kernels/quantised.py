"""Integer products with zero points, requantised results, and weights that travel packed.

Products of small integers are computed in floating point, by BLAS, wherever no sum can leave the range in which it is exact:
the result is the integer one, bit for bit, including the wrap-around of the 32-bit accumulator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array

_EXACT = ((np.dtype(np.float32), 2**24), (np.dtype(np.float64), 2**53))
"""Largest integers up to which each type holds every integer."""

_SMALL_BITS = 16


class Companions(NamedTuple):
    """What accompanies the operands of a quantised product; None where there is nothing.

    Each is cut along the axes on which it is longer than 1: ``a_zero`` [batch, M, 1] and ``b_zero`` [batch, 1, N] are taken
    off the operands; ``bias`` (in the accumulator's type), ``scale`` (float32) and ``y_zero`` [batch, M, N] turn the sum into
    a requantised result, round((sum + bias) * scale) + y_zero; ``b_scale`` and ``b_offset`` [batch, N, blocks of K] are those
    of packed weights.
    """

    a_zero: Array | None = None
    b_zero: Array | None = None
    bias: Array | None = None
    scale: Array | None = None
    y_zero: Array | None = None
    b_scale: Array | None = None
    b_offset: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(array.nbytes for array in self if array is not None)


NOTHING = Companions()


class Coding(NamedTuple):
    """How B is packed: codes of ``bits`` bits along K, the first in the lowest bits of a byte; ``block`` codes share a scale.

    B is then [batch, N, bytes], and its value (code - offset) * scale.
    """

    bits: int
    block: int
    signed: bool = False

    def bytes_of(self, depth: int) -> int:
        """Bytes of ``depth`` codes of one column."""
        return -(-depth * self.bits // 8)

    def places(self, start: int, stop: int) -> tuple[slice, slice]:
        """The bytes of one column, and the blocks, that hold the codes ``start:stop`` of K."""
        return slice(start * self.bits // 8, self.bytes_of(stop)), slice(start // self.block, -(-stop // self.block))


def cut_companions(along: Companions, *, batch: slice, rows: slice, columns: slice, blocks: slice) -> Companions:
    """The parts that a tile needs."""
    result = (batch, rows, columns)
    places = (result, result, result, result, result, (batch, columns, blocks), (batch, columns, blocks))
    return Companions(*(None if array is None else _part(array, box) for array, box in zip(along, places, strict=True)))


def _part(array: Array, box: tuple[slice, ...]) -> Array:
    return array[tuple(side if size > 1 else slice(None) for side, size in zip(box, array.shape, strict=True))]


def exact_type(a: DType, b: DType, depth: int) -> np.dtype[Any] | None:
    """The floating-point type in which sums of ``depth`` products of these integers, zero points taken off, are exact.

    None when no type is, or when they are not small integers.
    """
    if a.is_float or b.is_float or max(a.bits, b.bits) > _SMALL_BITS:
        return None
    largest = depth * (2**a.bits - 1) * (2**b.bits - 1)
    return next((dtype for dtype, limit in _EXACT if largest <= limit), None)


def shifted(array: Array, zero: Array | None, working: np.dtype[Any]) -> Array:
    """``array - zero`` in ``working``."""
    wide = array.astype(working, copy=False)
    if zero is None or not zero.any():
        return wide
    less: Array = wide - (zero.reshape(()) if zero.size == 1 else zero).astype(working)
    return less


def narrowed(sums: Array, dtype: np.dtype[Any]) -> Array:
    """Sums in the accumulator's type; whole numbers in floating point wrap around as integers do."""
    if sums.dtype.kind == "f" and dtype.kind in "iu":
        sums = sums.astype(np.int64)
    return sums.astype(dtype, copy=False)


def requantised(sums: Array, along: Companions, dtype: np.dtype[Any]) -> Array:
    """round((sums + bias) * scale) + y_zero, halves to even, held within the range of ``dtype``."""
    if along.bias is not None:
        sums = sums + along.bias
    scale = np.float32(1) if along.scale is None else along.scale
    rounded = np.rint(sums.astype(np.float32) * scale)
    if along.y_zero is not None:
        rounded += along.y_zero.astype(np.float32)
    limits = np.iinfo(dtype)
    result: Array = np.clip(rounded, limits.min, limits.max).astype(dtype)
    return result


def dynamically_quantised(x: Array) -> tuple[Array, Array, Array]:
    """``x`` as uint8 over its own range (which always holds 0), its scale and its zero point: DynamicQuantizeLinear."""
    low, high = (np.float32(bound) for bound in (min(0.0, x.min(initial=0.0)), max(0.0, x.max(initial=0.0))))
    scale = np.float32(1) if low == high else (high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255)).astype(np.uint8)
    codes = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    return codes, np.asarray(scale, np.float32), np.asarray(zero)


def decoded(coding: Coding, codes: Array, along: Companions, inner: slice, working: np.dtype[Any]) -> Array:
    """Weights [batch, K, N] of the range ``inner`` of K from the bytes that hold it, [batch, N, bytes]."""
    first = inner.start * coding.bits // 8 * 8 // coding.bits
    values = _unpacked(codes, coding)[..., inner.start - first : inner.stop - first]
    blocks = np.arange(inner.start, inner.stop) // coding.block - inner.start // coding.block
    values = values.astype(working)
    for array, apply in ((along.b_offset, np.subtract), (along.b_scale, np.multiply)):
        if array is not None:
            values = apply(values, array if array.shape[-1] == 1 else array[..., blocks], dtype=working, casting="unsafe")
    return values.transpose(0, 2, 1)


def _unpacked(codes: Array, coding: Coding) -> Array:
    if coding.bits == 8:
        return codes.view(np.int8) if coding.signed else codes
    shifts = np.arange(0, 8, coding.bits, dtype=np.uint8)
    values = (codes[..., None] >> shifts) & np.uint8(2**coding.bits - 1)
    values = values.reshape(*codes.shape[:-1], -1)
    if not coding.signed:
        return values
    half = 1 << (coding.bits - 1)
    return ((values ^ half).astype(np.int8) - np.int8(half)).astype(np.int8)
