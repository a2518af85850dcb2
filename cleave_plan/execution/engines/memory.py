"""Memory that one machine's processes share and that cannot be left behind.

It is a file without a name (``memfd`` on Linux, an unlinked temporary file elsewhere), handed to workers as an inherited
descriptor: there is nothing in ``/dev/shm`` to clean up, no other user can open it, and the kernel frees it when the last
process that holds it is gone, however it went. It is mapped once, as large as the machine's memory, and takes pages only
where arrays are. An array's pages go to the next array when its last view goes: pages are touched once and used again.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from contextlib import suppress
from math import prod
from typing import NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.cores import memory_bytes
from cleave_plan.kernels.arrays import LINE_BYTES, Array, dtype_of_array, numpy_dtype

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14: page tables are filled at once, where each page's first touch would cost a trap."""

_RESERVE_STEP = 4 << 20
"""Bytes by which the part that has pages grows, at least."""


class Block(NamedTuple):
    """An array in an arena: its place in bytes, and what it holds; ``strides`` in bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @classmethod
    def contiguous(cls, offset: int, shape: tuple[int, ...], dtype: DType) -> Block:
        """An array in C order."""
        strides, step = [], numpy_dtype(dtype).itemsize
        for size in reversed(shape):
            strides.append(step)
            step *= size
        return cls(offset, shape, tuple(reversed(strides)), dtype)


class Arena:
    """A shared file, seen by this process as arrays. The server allocates; workers only look."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        self._size = os.fstat(self.descriptor).st_size
        self._map: mmap.mmap | None = mmap.mmap(self.descriptor, self._size)
        self._address: int = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        self._reserved = self._mapped = 0
        self._free: list[tuple[int, int]] = [(0, self._size)]

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An array without values; its place is free again when it and all its views are gone.

        Raises ExecutionError when the machine has no memory for it.
        """
        kind = numpy_dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        if not nbytes:
            return np.empty(shape, kind)
        assert self._map is not None
        room = -(-nbytes // LINE_BYTES) * LINE_BYTES  # arrays start on cache lines
        offset = self._allocate(room)
        flat = np.frombuffer(self._map, np.uint8, nbytes, offset)
        weakref.finalize(flat, self._release, offset, room).atexit = False
        array: Array = flat.view(kind).reshape(shape)
        return array

    def block_of(self, array: Array) -> Block | None:
        """Where ``array`` lies; None when any of it lies elsewhere."""
        offset = array.__array_interface__["data"][0] - self._address
        dense = array.flags.c_contiguous
        low, high = (0, array.nbytes - array.itemsize) if dense else _span(array.shape, array.strides)
        inside = offset + low >= 0 and offset + high + array.itemsize <= self._size
        return Block(offset, array.shape, array.strides, dtype_of_array(array)) if inside and array.size else None

    def view(self, block: Block) -> Array:
        """The array in a block; raises ValueError when the block leaves the arena."""
        kind = numpy_dtype(block.dtype)
        if not prod(block.shape):
            return np.empty(block.shape, kind)
        low, high = _span(block.shape, block.strides)
        if block.offset + low < 0 or block.offset + high + kind.itemsize > self._size or self._map is None:
            raise ValueError(f"{block} leaves the shared memory of {self._size} bytes")
        return np.ndarray(block.shape, kind, self._map, block.offset, block.strides)

    def prepare(self, block: Block) -> None:
        """Make everything up to the end of a block, which lies in the arena, ready to be touched, where the system can."""
        self._populate(block.offset + _span(block.shape, block.strides)[1] + numpy_dtype(block.dtype).itemsize)

    def close(self) -> None:
        """Let go of the file; the mapping goes with the last array on it."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _allocate(self, room: int) -> int:
        """First fit: low places first, so that the part with pages stays small."""
        for place, (offset, length) in enumerate(self._free):
            if length >= room:
                self._reserve(offset + room)
                self._free[place : place + 1] = [(offset + room, length - room)] if length > room else []
                return offset
        raise _no_memory(room, "the machine's memory is smaller")

    def _release(self, offset: int, room: int) -> None:
        """Give a place back, joined with the free places beside it."""
        after = next((place for place, (start, _) in enumerate(self._free) if start > offset), len(self._free))
        if after < len(self._free) and self._free[after][0] == offset + room:
            room += self._free.pop(after)[1]
        if after and sum(self._free[after - 1]) == offset:
            after -= 1
            start, length = self._free.pop(after)
            offset, room = start, length + room
        self._free.insert(after, (offset, room))

    def _reserve(self, end: int) -> None:
        """Make sure of pages up to ``end``: a file that only claims its size says "no memory" by killing a process later."""
        if end <= self._reserved:
            return
        end = min(self._size, max(end, self._reserved + _RESERVE_STEP))
        try:
            if sys.platform == "linux":
                os.posix_fallocate(self.descriptor, self._reserved, end - self._reserved)
        except OSError as error:
            raise _no_memory(end, error.strerror or str(error)) from None
        self._reserved = end
        self._populate(end)

    def _populate(self, end: int) -> None:
        """Map the pages up to ``end`` that are not mapped here; they must be reserved."""
        end = min(self._size, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)
        if end > self._mapped and self._map is not None and sys.platform == "linux":
            with suppress(OSError):  # an older kernel: pages are mapped when they are touched
                self._map.madvise(_POPULATE_WRITE, self._mapped, end - self._mapped)
            self._mapped = end


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """The lowest and the highest first byte of an element, relative to that of the first; strides may be negative."""
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)


def _no_memory(nbytes: int, why: str) -> ExecutionError:
    return ExecutionError(
        f"no shared memory for {nbytes} bytes of operands and results ({why})",
        remedy="plan a smaller batch, or run on a machine with more memory",
    )


def _anonymous_file() -> int:
    """An unnamed file as large as the machine's memory, without pages."""
    size = memory_bytes()
    if sys.platform == "linux":
        descriptor = os.memfd_create("cleave-plan", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
