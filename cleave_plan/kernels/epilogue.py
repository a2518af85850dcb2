"""What a model does to a convolution's sums next, done to each tile by whoever computed it while it is in the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cleave_plan.kernels.arrays import Array, as_ieee
from cleave_plan.kernels.conv import Rooms, image_ranges
from cleave_plan.workload.gemm import ConvWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """min(max(sums + bias + addend, low), high), element by element, in the type of the sums.

    Two operands follow those of the product: bias [groups, N] and addend (as the whole result), None where there is none.
    They are the server's own work handed on within one machine, so that they do not count as bytes that travel.
    """

    low: float = -math.inf
    high: float = math.inf

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return (self.low, self.high) != (-math.inf, math.inf)

    @as_ieee
    def apply(self, window: ConvWindow, rows: slice, rooms: Rooms, bias: Array | None, addend: Rooms | None) -> None:
        """Finish the sums of a tile's ``rows`` where they stand in ``rooms``.

        ``bias`` [groups, columns] is the tile's part, ``addend`` gives what is added to each room.
        """
        for place in image_ranges(window, rows):
            for image in range(place.start, place.stop):
                room = rooms(place, image, image + 1)
                if bias is not None:
                    room += bias[..., None]
                if addend is not None:
                    room += addend(place, image, image + 1)
                if self.low > -math.inf:
                    np.maximum(room, self.low, out=room)
                if self.high < math.inf:
                    np.minimum(room, self.high, out=room)


RELU = Epilogue(low=0.0)
NOTHING_MORE = Epilogue()
