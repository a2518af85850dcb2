"""Putting the tiles of one GEMM together, in an order that does not depend on which device was faster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.tile import Box, Product, accumulator


class Assembly:
    """The canonical result [batch, M, N] of a GEMM, filled tile by tile.

    Tiles that hold the whole of K are placed as they come. Those that do not are partial sums: they are added in the order
    of their numbers when all are there, in the accumulator's type, so that every run gives the same bits.
    """

    def __init__(self, product: Product, boxes: Mapping[int, Box]) -> None:
        self._product = product
        self._waiting = set(boxes)
        self._boxes = boxes
        self._partial: dict[int, Array] = {}
        self._cut = {tile for tile, box in boxes.items() if box.k_stop - box.k_start < product.shape.k}
        shape = (product.shape.batch, product.shape.m, product.shape.n)
        dtype = numpy_dtype(accumulator(product.a_dtype) if self._cut else product.out_dtype)
        # A product over an empty K is 0, and no tile says so.
        self._result: Array = np.zeros(shape, dtype) if self._cut or not boxes else np.empty(shape, dtype)

    def add(self, tile: int, result: Array) -> None:
        """Take in the result of ``tile``; a partial sum must stay valid until :meth:`finish`."""
        self._waiting.remove(tile)
        if tile in self._cut:
            self._partial[tile] = result
        else:
            box = self._boxes[tile]
            self._result[box.batch, box.rows, box.columns] = result

    @property
    def complete(self) -> bool:
        """Whether every tile has come."""
        return not self._waiting

    def finish(self) -> Array:
        """The result in the GEMM's storage type."""
        for tile in sorted(self._partial):
            box = self._boxes[tile]
            self._result[box.batch, box.rows, box.columns] += self._partial[tile]
        self._partial.clear()
        return self._result.astype(numpy_dtype(self._product.out_dtype), copy=False)
