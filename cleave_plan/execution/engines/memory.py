"""Memory that one machine's processes share and that cannot be left behind.

It is a file without a name (``memfd`` on Linux, an unlinked temporary file elsewhere), handed to workers as an inherited
descriptor: there is nothing in ``/dev/shm`` to clean up, no other user can open it, and the kernel frees it when the last
process that holds it is gone, however it went. It is used as one arena: blocks are laid out one after another and all let
go together, so that pages are touched once and used again by the next level.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from math import prod
from typing import NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.arrays import Array, numpy_dtype

ALIGNMENT = 64
"""Bytes: blocks start on cache lines."""


class Block(NamedTuple):
    """An array in an arena: its place in bytes and what it holds."""

    offset: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


class Arena:
    """A growing shared file, seen by this process as arrays. The server allocates; workers only look."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._mapped = 0
        self._size = 0
        self._end = 0

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Block:
        """Room for an array; raises ExecutionError when the machine has no memory for it."""
        block = Block(self._end, shape, dtype)
        end = self._end + -(-block.nbytes // ALIGNMENT) * ALIGNMENT
        if end > self._size:
            self._grow(max(end, min(2 * self._size, self._size + (256 << 20))))
        self._end = end
        return block

    def view(self, block: Block) -> Array:
        """The array in a block; it keeps its mapping alive for as long as it is referenced."""
        if not block.nbytes:
            return np.empty(block.shape, numpy_dtype(block.dtype))
        end = block.offset + block.nbytes
        if self._map is None or end > self._mapped:
            self._mapped = os.fstat(self.descriptor).st_size
            self._map = mmap.mmap(self.descriptor, self._mapped)
        flat = np.frombuffer(self._map, np.uint8, block.nbytes, block.offset)
        view: Array = flat.view(numpy_dtype(block.dtype)).reshape(block.shape)
        return view

    def clear(self) -> None:
        """Let go of every block; the pages are kept for the next ones."""
        self._end = 0

    def close(self) -> None:
        """Let go of the file; mappings go with the last array on them."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _grow(self, size: int) -> None:
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            if sys.platform == "linux":
                # Reserving says "no memory" here; a file that only claims its size says so by killing a process later.
                os.posix_fallocate(self.descriptor, self._size, size - self._size)
            else:
                os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise ExecutionError(
                f"no shared memory for {size} bytes of operands and results ({error.strerror})",
                remedy="plan a smaller batch, or run on a machine with more memory",
            ) from None
        self._size = size


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("cleave-plan", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
