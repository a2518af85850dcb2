"""NumPy arrays and the element types that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cleave_plan.dtypes import DType

Array = NDArray[Any]

as_ieee = np.errstate(all="ignore")
"""Decorates what computes a user's values: infinities and NaN are results like others, as in any runtime, and no warnings."""


def dtype_of_array(array: Array) -> DType:
    """The element type of an array; raises ValueError when it has none of ours."""
    return _dtype_of(array.dtype)


@cache
def _dtype_of(dtype: np.dtype[Any]) -> DType:
    """Kept, because NumPy makes the name of a type anew whenever it is asked for."""
    return DType(dtype.name)


LINE_BYTES = 64
"""Bytes of a cache line, and of the widest vector."""


def on_lines(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array without values that begins on a cache line: vectors that lie across two take twice as long to load."""
    nbytes = prod(shape) * dtype.itemsize
    room = np.empty(nbytes + LINE_BYTES, np.uint8)
    skipped = -room.__array_interface__["data"][0] % LINE_BYTES
    array: Array = room[skipped : skipped + nbytes].view(dtype).reshape(shape)
    return array


def dense_on_lines(array: Array) -> Array:
    """``array`` itself where it is one run of memory that begins on a cache line, else such a copy."""
    if array.flags.c_contiguous and array.__array_interface__["data"][0] % LINE_BYTES == 0:
        return array
    copy = on_lines(array.shape, array.dtype)
    copy[...] = array
    return copy


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of ``dtype``; bfloat16 comes from ml_dtypes, which is loaded only when it is met."""
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype.value)


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
