"""Putting the tiles of one GEMM together, in an order that does not depend on which device was faster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise, product

import numpy as np

from cleave_plan.kernels.arrays import Array, accumulator, as_ieee, numpy_dtype
from cleave_plan.kernels.chain import ChainProduct, Work
from cleave_plan.kernels.grid import Grid
from cleave_plan.kernels.multiply import complete
from cleave_plan.kernels.quantised import NOTHING, Companions
from cleave_plan.kernels.tile import Box, Product


class Assembly:
    """The whole result of a GEMM or chain (``work.whole_shape``), filled tile by tile.

    ``boxes`` are the tiles by number; ``whole`` is the array to fill. Tiles that hold the whole of K are placed as they come,
    or stand in place already. Those that do not are partial sums: they are added when all are there, in the accumulator's type,
    in an order that does not depend on who computed them: that of their ranges of K, or as the product's grid says.
    """

    def __init__(
        self, work: Work, boxes: Mapping[int, Box], along: Companions = NOTHING, *, whole: Array | None = None
    ) -> None:  # fmt: skip
        self._work = work
        self._along = along
        self._waiting = set(boxes)
        self._boxes = dict(boxes)
        self._partial: dict[int, Array] = {}
        self._contested: dict[int, Array] = {}
        self._cut = {tile for tile, box in boxes.items() if not work.holds_inner(box)}
        self._result: Array = np.empty(work.whole_shape, numpy_dtype(work.out_dtype)) if whole is None else whole

    def add(self, tile: int, result: Array, *, in_place: bool = False, contested: bool = False) -> None:
        """Take in the result of ``tile``, which must stay valid until :meth:`finish` if it is a partial sum or ``contested``.

        ``contested``: somebody else may still write this tile into the whole.
        """
        self._waiting.remove(tile)
        if tile in self._cut:
            self._partial[tile] = result
        elif contested and not in_place:
            self._contested[tile] = result
        elif not in_place:
            self._work.place(self._result, self._boxes[tile], result)

    def waits_for(self, tile: int) -> bool:
        """Whether ``tile`` has neither come nor been replaced."""
        return tile in self._waiting

    def replace(self, tile: int, pieces: Mapping[int, Box]) -> None:
        """Wait for ``pieces``, which cover the box of ``tile`` exactly and have new numbers, in its place."""
        self._waiting.remove(tile)
        was_cut = tile in self._cut
        self._cut.discard(tile)
        del self._boxes[tile]
        self._boxes |= pieces
        self._waiting |= pieces.keys()
        if was_cut:
            self._cut |= pieces.keys()

    def compute(self, tile: int, operands: tuple[Array | None, ...]) -> None:
        """Compute ``tile`` here, from the whole operands."""
        box = self._boxes[tile]
        if tile in self._cut:
            self.add(tile, self._work.run(operands, box)[1])
        else:
            self._work.run_into(operands, box, self._result)
            self._waiting.remove(tile)

    @property
    def complete(self) -> bool:
        """Whether every tile has come."""
        return not self._waiting

    @as_ieee
    def finish(self) -> Array:
        """The result in the GEMM's storage type; where partial sums were added, that is done here."""
        work = self._work
        if self._contested:  # what is written late goes into the array that is left behind
            self._result = self._result.copy()
            for tile, result in self._contested.items():
                work.place(self._result, self._boxes[tile], result)
            self._contested.clear()
        if (not self._cut and self._boxes) or isinstance(work, ChainProduct):  # a chain has no partial sums
            return self._result
        # A product over an empty K is 0, and no tile says so.
        sums = np.zeros(work.whole_box.result_shape, numpy_dtype(accumulator(work.a_dtype)))
        if work.grid is None:
            for tile in sorted(self._partial, key=lambda tile: (self._boxes[tile].k_start, tile)):
                sums[work.area(self._boxes[tile])] += self._partial[tile]
        else:
            self._add_up(work, work.grid, sums)
        self._partial.clear()
        finished = complete(work, sums, self._along)
        if not self._boxes:
            work.place(self._result, work.whole_box, finished)
            return self._result
        if len(self._cut) == len(self._boxes):
            return finished
        for tile in self._cut:
            area = work.area(self._boxes[tile])
            self._result[area] = finished[area]
        return self._result

    def _add_up(self, work: Product, grid: Grid, sums: Array) -> None:
        """Add partial sums as the tree of K says, in each part of the result that no tile's edge runs through."""
        boxes = np.array([self._boxes[tile] for tile in self._partial]).reshape(-1, 8)
        results = list(self._partial.values())
        rows, columns, items = (np.unique(boxes[:, place : place + 2]) for place in (0, 2, 6))
        for part in product(*(pairwise(edges.tolist()) for edges in (rows, columns, items))):
            (m, m_stop), (n, n_stop), (g, g_stop) = part
            here = (boxes[:, 0] <= m) & (m < boxes[:, 1]) & (boxes[:, 2] <= n) & (n < boxes[:, 3])
            found = np.flatnonzero(here & (boxes[:, 6] <= g) & (g < boxes[:, 7])).tolist()
            if not found:
                continue
            nodes = {}
            for place in found:
                own = Box(*boxes[place].tolist())
                area = slice(g - own.batch_start, g_stop - own.batch_start), slice(m - own.m_start, m_stop - own.m_start)
                nodes[own.k_start, own.k_stop] = results[place][(*area, slice(n - own.n_start, n_stop - own.n_start))]
            sums[g:g_stop, m:m_stop, n:n_stop] = grid.add_up(0, work.shape.k, partial(_copied, nodes))


def _copied(nodes: Mapping[tuple[int, int], Array], start: int, stop: int) -> Array | None:
    found = nodes.get((start, stop))
    return None if found is None else found.copy()
