"""Products in the fixed blocks of a :class:`~cleave_plan.kernels.grid.Grid`: the same bits wherever a tile begins and ends.

Every block is multiplied from copies in C order, whatever the layout of the operands, with one thread in BLAS.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.conv import ImageRange, Rooms, im2col, image_ranges
from cleave_plan.kernels.grid import Grid, within
from cleave_plan.kernels.threads import one_thread
from cleave_plan.workload.gemm import ConvWindow


def multiply_blocks(
    grid: Grid, a: Array, b: Array, out: Array, *, rows: slice, columns: slice, inner: slice
) -> Array:  # fmt: skip
    """``a[g, r, k] @ b[g, k, c]`` in ``out``, of whose product they are the ranges ``rows``, ``inner`` and ``columns``.

    Raises ValueError when these are not on the grid, or ``inner`` is no node of its tree.
    """
    if grid.nodes(inner.start, inner.stop) != [(inner.start, inner.stop)]:
        raise ValueError(f"{inner.start}:{inner.stop} is no node of K on the grid")
    high = within(grid.rows, rows.start, rows.stop)
    deep = within(grid.inner, inner.start, inner.stop)
    with one_thread():
        left = {(r.start, k.start + inner.start): np.ascontiguousarray(a[:, r, k]) for r in high for k in deep}
        for column in within(grid.columns, columns.start, columns.stop):
            right = {k.start + inner.start: np.ascontiguousarray(b[:, k, column]) for k in deep}
            for row in high:

                def block(start: int, stop: int, row: int = row.start, right: dict[int, Array] = right) -> Array | None:
                    return np.matmul(left[row, start], right[start]) if grid.is_block(start, stop) else None

                out[:, row, column] = grid.add_up(inner.start, inner.stop, block)
    return out


def convolve_blocks(
    grid: Grid, window: ConvWindow, pieces: tuple[Array, ...], weights: Array, *, rows: slice, columns: slice, rooms: Rooms
) -> None:  # fmt: skip
    """As :func:`~cleave_plan.kernels.conv.convolve`, image by image; ``columns`` is the range of N that ``weights`` are of.

    Raises ValueError when rows or columns are not on the grid.
    """
    kernels = [
        (column, np.ascontiguousarray(weights[:, :, column].transpose(0, 2, 1)))
        for column in within(grid.columns, columns.start, columns.stop)
    ]
    size = window.rows_per_image
    within(grid.rows, rows.start, rows.stop)
    edges = np.array([cut for cut in grid.rows if cut <= size])
    with one_thread():
        for place, piece in zip(image_ranges(window, rows), pieces, strict=True):
            cuts = edges[(edges >= place.first) & (edges <= place.last + 1)].tolist()
            for image in range(place.start, place.stop):
                room = rooms(place, image, image + 1)
                for first, end in pairwise(cuts):
                    part = ImageRange(image, image + 1, first, end - 1)
                    matrix = im2col(window, place, piece[image - place.start : image - place.start + 1], part, len(weights))
                    for column, some in kernels:
                        room[0, :, column, first - place.first : end - place.first] = np.matmul(some, matrix)
