"""Putting the tiles of one GEMM together, in an order that does not depend on which device was faster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.chain import ChainProduct, Work
from cleave_plan.kernels.quantised import NOTHING, Companions
from cleave_plan.kernels.tile import Box, accumulator, complete


class Assembly:
    """The whole result of a GEMM or chain (``work.whole_shape``), filled tile by tile.

    ``boxes`` are the tiles by number; ``whole`` is the array to fill. Tiles that hold the whole of K are placed as they come,
    or stand in place already. Those that do not are partial sums: they are added in the order of their ranges of K when all
    are there, in the accumulator's type, so that the order does not depend on who computed them.
    """

    def __init__(
        self, work: Work, boxes: Mapping[int, Box], along: Companions = NOTHING, *, whole: Array | None = None
    ) -> None:  # fmt: skip
        self._work = work
        self._along = along
        self._waiting = set(boxes)
        self._boxes = dict(boxes)
        self._partial: dict[int, Array] = {}
        self._cut = {tile for tile, box in boxes.items() if not work.holds_inner(box)}
        self._result: Array = np.empty(work.whole_shape, numpy_dtype(work.out_dtype)) if whole is None else whole

    def add(self, tile: int, result: Array, *, in_place: bool = False) -> None:
        """Take in the result of ``tile``; a partial sum must stay valid until :meth:`finish`."""
        self._waiting.remove(tile)
        if tile in self._cut:
            self._partial[tile] = result
        elif not in_place:
            self._work.place(self._result, self._boxes[tile], result)

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

    def finish(self) -> Array:
        """The result in the GEMM's storage type; where partial sums were added, that is done here."""
        work = self._work
        if (not self._cut and self._boxes) or isinstance(work, ChainProduct):  # a chain has no partial sums
            return self._result
        # A product over an empty K is 0, and no tile says so.
        sums = np.zeros(work.whole_box.result_shape, numpy_dtype(accumulator(work.a_dtype)))
        for tile in sorted(self._partial, key=lambda tile: (self._boxes[tile].k_start, tile)):
            sums[work.area(self._boxes[tile])] += self._partial[tile]
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
