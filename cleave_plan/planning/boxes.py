"""Boxes of tilings as one array: a row for each box, so that a fleet of any size is a few whole-array operations.

Two kinds of rows, both of whole numbers: *rectangles* of one batch item, ``(device, row_start, row_stop, column_start,
column_stop)``, and *boxes*, ``(device, row_start, row_stop, column_start, column_stop, k_start, k_stop, item_start, item_stop)``,
in the order of :data:`~cleave_plan.cost.tile.BOX`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.tile import Tiles

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Rectangles = Ints
"""Five columns; see the module's docstring."""

Boxes = Ints
"""Nine columns; see the module's docstring."""

_TURNED = [0, 3, 4, 1, 2]
"""Columns of a rectangle with rows and columns exchanged."""


def table(rows: Sequence[Sequence[int]], width: int) -> Ints:
    """``rows`` (of ``width`` numbers each, perhaps none) as an array."""
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def boxes_of_items(rectangles: Rectangles, depth: int, first: Ints | int, stop: Ints | int, *, turned: bool = False) -> Boxes:
    """``rectangles`` over the whole ``depth`` and the items from ``first`` to ``stop``; ``turned``: along the other side."""
    boxes = np.empty((len(rectangles), 9), dtype=np.int64)
    boxes[:, :5] = rectangles[:, _TURNED] if turned else rectangles
    boxes[:, 5], boxes[:, 6], boxes[:, 7], boxes[:, 8] = 0, depth, first, stop
    return boxes


def tiles_of_copies(boxes: Boxes, batch: int, copies: int) -> tuple[Tiles, ...]:
    """One :class:`Tiles` for each of ``copies`` GEMMs whose batches stand one after the other in the boxes' items."""
    answer = []
    for copy in range(copies):
        start, stop = (np.clip(boxes[:, column] - copy * batch, 0, batch) for column in (7, 8))
        mine = stop > start
        device, m_start, m_stop, n_start, n_stop, k_start, k_stop = boxes[mine, :7].T
        answer.append(
            Tiles(
                device=device, m_start=m_start, m_stop=m_stop, n_start=n_start, n_stop=n_stop, k_start=k_start, k_stop=k_stop,
                batch_start=start[mine], batch_stop=stop[mine],
            )
        )  # fmt: skip
    return tuple(answer)


def run_of(starts: Ints, total: int) -> Ints:
    """For each of ``total`` things, which run of ``starts`` (the places where runs begin, the first at 0) it stands in."""
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, total)))


def place_in_run(run: Ints) -> Ints:
    """For each thing its place in its run; ``run``: the number of its run, rising."""
    first = np.searchsorted(run, run)
    return np.arange(len(run)) - first


def before_in_run(sizes: Ints, run: Ints) -> Ints:
    """For each thing the sum of the ``sizes`` before it in its run."""
    before = np.cumsum(sizes) - sizes
    return np.asarray(before - before[np.searchsorted(run, run)])


def rounded(weight: Floats, total: int) -> Ints:
    """Integers in proportion to ``weight`` that add up to ``total`` (largest remainders; alike where all weigh nothing)."""
    return rounded_runs(weight, np.zeros(len(weight), dtype=np.int64), np.array([total], dtype=np.int64))


def rounded_runs(weight: Floats, run: Ints, totals: Ints) -> Ints:
    """:func:`rounded` for runs of things, each with its own total; ``run``: the number of each thing's run, rising."""
    size = np.bincount(run, minlength=len(totals))
    whole = np.bincount(run, weight, minlength=len(totals))
    share = np.where(whole[run] > 0, weight / np.where(whole > 0, whole, 1.0)[run], 1 / size[run])
    exact = share * totals[run]
    floor: Ints = np.floor(exact).astype(np.int64)
    spare = totals - np.bincount(run, floor, minlength=len(totals)).astype(np.int64)
    order = np.lexsort((floor - exact, run))  # the run's largest remainders first
    floor[order] += place_in_run(run[order]) < spare[run[order]]
    return floor


def cut_in_parts(start: Ints, stop: Ints, parts: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranges cut in ``parts`` nearly equal ones each: which range every part is of, its start and its stop."""
    of = np.repeat(np.arange(len(parts)), parts)
    step, length, pieces = place_in_run(of), (stop - start)[of], parts[of]
    return of, start[of] + length * step // pieces, start[of] + length * (step + 1) // pieces


def turned(boxes: Boxes) -> Boxes:
    """``boxes`` with rows and columns exchanged."""
    return boxes[:, [*_TURNED, 5, 6, 7, 8]]
