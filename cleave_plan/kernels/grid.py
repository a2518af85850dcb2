r"""Fixed blocks: how a product is computed so that its bits do not depend on how it is cut.

BLAS rounds a slice of a product differently from the same slice of the whole. So, where bits count, a product of floating-point
numbers has a **grid** that follows from its own shape alone, and only whole blocks of it are ever multiplied: each from copies
of its operands that lie in the same order everywhere, with one thread. Tiles are snapped to the grid; as every coordinate moves
by the same monotone rule, tiles that covered the product exactly still do.

K has blocks too, so that it may be cut. They are added as a **tree**: a range of blocks is the sum of its two parts, of which the
first holds the largest power of two of blocks that leaves something over. A tile that holds a part of K holds one node of the
tree (:meth:`Grid.nodes` takes others apart), and the nodes of all tiles are added as the tree says.

Whole numbers need no grid: their sums are exact in any order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.workload.gemm import ConvWindow, Gemm, Join

Cuts = tuple[int, ...]
"""Places at which an axis is cut, from 0 to its length."""

INNER_BLOCK = 512
"""Least K of a block; the more there are, the more sums are written and read again."""

MOST_INNER_BLOCKS = 16

CHAIN_ROWS = 64
"""Rows of attention whose scores exist together."""

POSITIONS = 256
"""Output positions of a convolution's block: of one image, and of whole rows of it where several fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where M, N and K of one product are cut into blocks."""

    rows: Cuts
    columns: Cuts
    inner: Cuts

    def nodes(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The fewest nodes of the tree of K that ``start:stop``, on the grid, is made of."""
        first, last = bisect_left(self.inner, start), bisect_left(self.inner, stop)

        def parts(low: int, high: int) -> Iterator[tuple[int, int]]:
            if first <= low and high <= last:
                yield self.inner[low], self.inner[high]
            elif low < last and first < high:
                middle = _middle(low, high)
                yield from parts(low, middle)
                yield from parts(middle, high)

        return list(parts(0, len(self.inner) - 1))

    def add_up(self, start: int, stop: int, node: Callable[[int, int], Array | None]) -> Array:
        """The sum over a node ``start:stop`` of the tree: ``node`` gives a fresh sum where there is one, None where its two parts
        have to be added."""

        def total(low: int, high: int) -> Array:
            own = node(self.inner[low], self.inner[high])
            if own is not None:
                return own
            middle = _middle(low, high)
            left = total(low, middle)
            return np.add(left, total(middle, high), out=left)

        return total(bisect_left(self.inner, start), bisect_left(self.inner, stop))

    def is_block(self, start: int, stop: int) -> bool:
        """Whether a node is one block."""
        return bisect_left(self.inner, stop) - bisect_left(self.inner, start) == 1


def grid_of(gemm: Gemm) -> Grid | None:
    """The grid of a product, which follows from its shape and the extents of its members; None where sums are exact anyhow."""
    if not gemm.a.dtype.value.startswith(("float", "bfloat", "complex")):
        return None
    _, m, k, n = gemm.shape
    if gemm.join is Join.CHAIN:
        return Grid(rows=_cuts(m, CHAIN_ROWS), columns=(0, n), inner=(0, k))
    columns = _side_by_side(gemm.extents if gemm.join is Join.N else (n,))
    if gemm.window is not None:
        return Grid(rows=_of_images(gemm.window), columns=columns, inner=(0, k))
    blocks = max(1, min(MOST_INNER_BLOCKS, k // INNER_BLOCK))
    return Grid(rows=_even(m), columns=columns, inner=_cuts(k, -(-k // blocks)))


def snapped(place: int, cuts: Cuts) -> int:
    """The cut that is nearest to ``place``; of two, the one before it."""
    after = bisect_left(cuts, place)
    if cuts[after] == place:
        return place
    before = cuts[after - 1]
    return before if place - before <= cuts[after] - place else cuts[after]


def within(cuts: Cuts, start: int, stop: int) -> list[slice]:
    """The blocks between two cuts, counted from the first of them."""
    some = cuts[bisect_left(cuts, start) : bisect_left(cuts, stop) + 1]
    if not some or (some[0], some[-1]) != (start, stop):
        raise ValueError(f"{start}:{stop} is not on the grid")
    return [slice(low - start, high - start) for low, high in pairwise(some)]


def _middle(low: int, high: int) -> int:
    return low + (1 << ((high - low - 1).bit_length() - 1))


def _edge(size: int) -> int:
    """Length of a block: long enough for BLAS, short enough that a product can be cut at some dozen places."""
    return 64 if size < 1024 else 128 if size < 4096 else 256


def _cuts(size: int, step: int) -> Cuts:
    return (*range(0, size, max(step, 1)), size)


def _even(size: int) -> Cuts:
    return _cuts(size, _edge(size))


def _side_by_side(extents: Sequence[int]) -> Cuts:
    """Each member is cut as it would be alone."""
    cuts, start = [0], 0
    for extent in extents:
        cuts += [start + place for place in _even(extent)[1:]]
        start += extent
    return tuple(cuts)


def _of_images(window: ConvWindow) -> Cuts:
    """Cuts of output rows: of each image, whole rows of positions together as long as there are not too many."""
    size = window.rows_per_image
    row = window.output[-1] if len(window.output) > 1 else 1
    step = row * max(1, POSITIONS // max(row, 1))
    return (0, *(image * size + place for image in range(window.images) for place in _cuts(size, step)[1:]))
