"""Checking the tiles that devices return: whether to, what was found, and what it took."""

from __future__ import annotations

import time

import numpy as np

from cleave_plan.execution.engines.base import Finished
from cleave_plan.kernels.integrity import check_tile
from cleave_plan.onnx_io.products import Operands


class Inspector:
    """Checks returned tiles if ``on``. Its random choices come from the system, so that no device can know them."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._draw = np.random.default_rng()
        self.tiles = 0
        self.seconds = 0.0

    def flaw(self, lowered: Operands, finished: Finished) -> str:
        """What is wrong with a tile, in one clause; empty when nothing is found, or nothing is looked for."""
        if not self.on:
            return ""
        begin = time.perf_counter()
        work, box, result = lowered.work, finished.task.box, finished.result
        try:
            found = check_tile(work, lowered.arrays, box, work.fetch(result, box) if finished.in_place else result, self._draw)
        except ValueError as error:  # another shape or type than the tile has
            return str(error)
        finally:
            self.tiles, self.seconds = self.tiles + 1, self.seconds + time.perf_counter() - begin
        return "" if found is None else str(found)

    def reset(self) -> None:
        """Count from here on."""
        self.tiles, self.seconds = 0, 0.0
