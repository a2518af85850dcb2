"""What the local engine keeps in shared memory: operands, each once, and the constants among them, which workers may prepare."""

from __future__ import annotations

import sys
from bisect import bisect_right, insort

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.memory import Arena, Block
from cleave_plan.kernels.arrays import Array


class SharedArrays:
    """Arrays in an arena, and the copies of those that lie elsewhere.

    A constant is an array that was read-only when it was brought here. It keeps its place for as long as the arena lives, so
    that its block names its numbers, whatever is opened and closed in between.
    """

    def __init__(self) -> None:
        self._arena = Arena()
        self._constants: list[Array] = []
        self._places: list[tuple[int, int]] = []  # of constants, begin and end, in order
        self._placed: dict[tuple[object, ...], tuple[Array, Array]] = {}

    @property
    def descriptor(self) -> int:
        """The descriptor of the memory, for workers to inherit."""
        return self._arena.descriptor

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An array without values."""
        return self._arena.empty(shape, dtype)

    def share(self, array: Array) -> Array:
        """The numbers of ``array``: itself where it lies here, else a copy, which is a constant if ``array`` is read-only."""
        placed = self.reach(array)
        if placed is not array and not array.flags.writeable:
            placed.flags.writeable = False
            self._constants.append(placed)
            begin = self.block(placed).offset
            insort(self._places, (begin, begin + placed.nbytes))
        return placed

    def reach(self, array: Array) -> Array:
        """As :meth:`share`, but a copy is no constant, and goes with its last view."""
        return array if self._arena.block_of(array) is not None else self._copy(array)

    def place(self, array: Array) -> Array:
        """As :meth:`share`, for an operand of a job: one copy until :meth:`forget`, and no constant."""
        if self._arena.block_of(array) is not None:
            return array
        interface = array.__array_interface__
        key = (interface["data"][0], array.shape, array.strides, array.dtype)
        if key not in self._placed:
            # The array is kept: its address names it for only as long as it lives.
            self._placed[key] = (array, self._copy(array))
        return self._placed[key][1]

    def block(self, array: Array) -> Block:
        """Where an array of this memory lies; an empty one lies anywhere."""
        return self._arena.block_of(array) or Block.contiguous(0, array.shape, DType(array.dtype.name))

    def is_constant(self, array: Array) -> bool:
        """Whether ``array`` is a view of a constant: its numbers never change."""
        place = self._arena.block_of(array)
        if array.flags.writeable or place is None:
            return False
        before = bisect_right(self._places, (place.offset, sys.maxsize)) - 1
        return before >= 0 and place.offset < self._places[before][1]

    def forget(self) -> None:
        """Let go of the copies of :meth:`place`."""
        self._placed.clear()

    def close(self) -> None:
        """Let go of the memory; it goes with the last array on it."""
        self._placed.clear()
        self._constants.clear()
        self._arena.close()

    def _copy(self, array: Array) -> Array:
        copy = self._arena.empty(array.shape, DType(array.dtype.name))
        copy[...] = array
        return copy
