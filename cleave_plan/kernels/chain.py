"""One tile of attention: scores of rows of Q with K, the operators between, and their product with V.

Arrays are canonical: Q [batch, rows, d_k], K [batch, d_k, length], V [batch, length, d_v]; what the operators read beside the
scores (``sides``) is [batch, rows, length] with any of these 1 where it does not vary. A tile is rows ``m_start:m_stop`` of the
items ``batch_start:batch_stop``; its scores exist a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, accumulator, as_ieee, numpy_dtype
from cleave_plan.kernels.elementwise import apply
from cleave_plan.kernels.gemm import multiply_block
from cleave_plan.kernels.grid import Grid, within
from cleave_plan.kernels.threads import one_thread
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.workload.gemm import GemmShape

BLOCK = 1 << 20
"""Scores that a device holds at a time (more only where one row has more)."""


class Step(NamedTuple):
    """One operator: ``inputs`` are places among the values (0: the scores, then the sides, then the steps' results)."""

    op: str
    inputs: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProduct:
    """What every tile of a chain shares: ``shape`` as the plan has it (batch, rows, depth, 1), sizes, types and steps.

    ``result``: the place of the value that is multiplied by V. ``constant[s]``: whether side s is the same in every run, so
    that it does not travel with a tile. ``grid``: the blocks of rows in which it is computed where bits must not depend on
    the tile.
    """

    shape: GemmShape
    d_k: int
    length: int
    d_v: int
    dtype: DType
    scores_dtype: DType
    out_dtype: DType
    steps: tuple[Step, ...]
    result: int
    constant: tuple[bool, ...]
    grid: Grid | None = None

    def result_shape(self, box: Box) -> tuple[int, int, int]:
        """(items, rows, d_v) of the tile's result."""
        return box.batch_stop - box.batch_start, box.m_stop - box.m_start, self.d_v

    def holds_inner(self, box: Box) -> bool:
        """A chain's tile is always final."""
        return True

    def result_dtype(self, box: Box) -> DType:
        """Element type of the tile's result."""
        return self.out_dtype

    def result_bytes(self, box: Box) -> int:
        """Bytes that travel back."""
        return self.out_dtype.bytes_of(prod(self.result_shape(box)))

    def area(self, box: Box) -> tuple[slice, ...]:
        """Where the tile's result stands in that of the whole."""
        return box.batch, box.rows, slice(None)

    @property
    def whole_shape(self) -> tuple[int, int, int]:
        """Shape of the whole result."""
        return self.shape.batch, self.shape.m, self.d_v

    def place(self, whole: Array, box: Box, result: Array) -> None:
        """Put a tile's result into the whole."""
        whole[self.area(box)] = result

    def fetch(self, whole: Array, box: Box) -> Array:
        """A tile's result out of the whole, a view."""
        return whole[self.area(box)]

    def run_into(self, operands: Sequence[Array | None], box: Box, whole: Array) -> int:
        """Compute a tile where it belongs in ``whole``; the bytes that it reads of ``operands``."""
        return self.run(operands, box, whole[self.area(box)])[0]

    def cut(self, operands: Sequence[Array | None], box: Box) -> ChainPieces:
        """Views of Q, K, V and the sides (``operands`` in this order) that the tile reads.

        Raises ValueError when they have other shapes, or the box leaves the chain or cuts anything but batch and rows.
        """
        batch, rows, depth, _ = self.shape
        arrays = [operand for operand in operands if operand is not None]
        wanted = ((batch, rows, self.d_k), (batch, self.d_k, self.length), (batch, self.length, self.d_v))
        if tuple(array.shape for array in arrays[:3]) != wanted or len(arrays) != 3 + len(self.constant):
            raise ValueError(f"operands of shapes {[array.shape for array in arrays]} instead of {wanted} and the sides")
        for side in arrays[3:]:
            if any(size not in (1, whole) for size, whole in zip(side.shape, (batch, rows, self.length), strict=True)):
                raise ValueError(f"a side of shape {side.shape} does not broadcast to {(batch, rows, self.length)}")
        inside = 0 <= box.m_start < box.m_stop <= rows and 0 <= box.batch_start < box.batch_stop <= batch
        if not inside or box[2:6] != (0, 1, 0, depth):
            raise ValueError(f"{box} is no tile of a chain of batch, M, K, N = {tuple(self.shape)}")
        q, k, v, *sides = arrays
        return ChainPieces(
            q[box.batch, box.rows], k[box.batch], v[box.batch], tuple(_part(side, box) for side in sides), self.constant
        )

    def run(self, operands: Sequence[Array | None], box: Box, out: Array | None = None) -> tuple[int, Array]:
        """Bytes that a tile reads of ``operands`` (see :meth:`cut`), and its result, in ``out`` if given."""
        pieces = self.cut(operands, box)
        return pieces.nbytes, self.compute(pieces, box, out)

    @as_ieee
    def compute(self, pieces: ChainPieces, box: Box, out: Array | None = None) -> Array:
        """The tile's result, [items, rows, d_v], from its pieces alone, in ``out`` if given; ValueError when it does not fit."""
        items, rows, _ = self.result_shape(box)
        out = np.empty(self.result_shape(box), numpy_dtype(self.out_dtype)) if out is None else out
        if out.shape != self.result_shape(box):
            raise ValueError(f"room for {list(out.shape)} where {box} has {list(self.result_shape(box))}")
        most = max(1, BLOCK // self.length)
        if self.grid is None:
            high = min(rows, most)
            blocks = [slice(row, row + high) for row in range(0, rows, high)]
        else:
            blocks = within(self.grid.rows, box.m_start, box.m_stop)
            high = max(block.stop - block.start for block in blocks)
        with nullcontext() if self.grid is None else one_thread():
            deep = max(1, most // high)
            for item in range(0, items, deep):
                self._compute(pieces, out, slice(item, item + deep), blocks)
        return out

    def _compute(self, pieces: ChainPieces, out: Array, some: slice, blocks: Sequence[slice]) -> None:
        """Some items, block of rows by block of rows; on a grid all factors lie in C order, whatever they are cut from."""
        laid: Callable[[Array], Array] = _as_it_is if self.grid is None else np.ascontiguousarray
        working = numpy_dtype(accumulator(self.dtype))
        k, v = (laid(part[some].astype(working, copy=False)) for part in (pieces.k, pieces.v))
        for block in blocks:
            q = laid(pieces.q[some, block])
            scores = multiply_block(q, k, working).astype(numpy_dtype(self.scores_dtype), copy=False)
            sides = [side[_range(side, 0, some), _range(side, 1, block)] for side in pieces.sides]
            out[some, block] = multiply_block(laid(self._between(scores, sides)), v, working)

    def _between(self, scores: Array, sides: Sequence[Array]) -> Array:
        values = [scores, *sides]
        for step in self.steps:
            values.append(apply(step.op, [values[place] for place in step.inputs], step.dtype))
        return values[self.result]


Work = Product | ChainProduct
"""What tiles are cut from; both run and place them by the same methods."""


class ChainPieces(NamedTuple):
    """What travels to a device for one tile: its rows of Q, K and V of its items, and of the sides what it reads."""

    q: Array
    k: Array
    v: Array
    sides: tuple[Array, ...]
    constant: tuple[bool, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that travel down: a side that varies over rows with every row, any other with every item."""
        items, rows, _ = self.q.shape
        total = self.q.nbytes + self.k.nbytes + self.v.nbytes
        for side, constant in zip(self.sides, self.constant, strict=True):
            if not constant:
                total += items * side_bytes(side.shape, side.itemsize, rows)
        return total


def side_bytes(shape: tuple[int, ...], size: int, rows: int) -> int:
    """Bytes of ``rows`` rows of one item of a side of ``shape`` [batch, rows, length], of elements of ``size`` bytes."""
    return shape[2] * size * (rows if shape[1] > 1 else 1)


def _as_it_is(array: Array) -> Array:
    return array


def _part(side: Array, box: Box) -> Array:
    return side[_range(side, 0, box.batch), _range(side, 1, box.rows)]


def _range(side: Array, axis: int, wanted: slice) -> slice:
    """``wanted`` where the side varies along ``axis``, else its one place."""
    return wanted if side.shape[axis] > 1 else slice(None)
