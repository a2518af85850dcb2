"""What a model does to a convolution's sums next, done to each tile by whoever computed it while it is in the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cleave_plan.kernels.arrays import Array, as_ieee
from cleave_plan.kernels.conv import Rooms, image_ranges
from cleave_plan.workload.gemm import ConvWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """min(max(sums + bias + addend, low), high), element by element, in the type of the sums.

    ``parts``: where columns are not bounded alike (products side by side), the bounds up to each column that ends some.
    Two operands follow those of the product: bias [groups, N] and addend (as the whole result), None where there is none.
    They are the server's own work handed on within one machine, so that they do not count as bytes that travel.
    """

    low: float = -math.inf
    high: float = math.inf
    parts: tuple[tuple[int, Epilogue], ...] = ()

    def within(self, columns: slice) -> list[tuple[slice, Epilogue]]:
        """``columns`` in ranges that have one pair of bounds each."""
        if not self.parts:
            return [(columns, self)]
        ends = [0, *(stop for stop, _ in self.parts)]
        ranges = [slice(max(begin, columns.start), min(end, columns.stop)) for begin, end in pairwise(ends)]
        return [(own, part) for own, (_, part) in zip(ranges, self.parts, strict=True) if own.start < own.stop]

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return (self.low, self.high) != (-math.inf, math.inf)

    @as_ieee
    def apply(
        self, window: ConvWindow, rows: slice, columns: slice, rooms: Rooms, bias: Array | None, addend: Rooms | None
    ) -> None:  # fmt: skip
        """Finish the sums of a tile's ``rows`` and ``columns`` where they stand in ``rooms``.

        ``bias`` [groups, columns] is the tile's part, ``addend`` gives what is added to each room.
        """
        bounds = [(slice(own.start - columns.start, own.stop - columns.start), part) for own, part in self.within(columns)]
        for place in image_ranges(window, rows):
            for image in range(place.start, place.stop):
                room = rooms(place, image, image + 1)
                if bias is not None:
                    room += bias[..., None]
                if addend is not None:
                    room += addend(place, image, image + 1)
                for own, part in bounds:
                    some = room[:, :, own]
                    if part.low > -math.inf:
                        np.maximum(some, part.low, out=some)
                    if part.high < math.inf:
                        np.minimum(some, part.high, out=some)


RELU = Epilogue(low=0.0)
NOTHING_MORE = Epilogue()
