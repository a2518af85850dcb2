"""The exact-cover proof beside counting every element."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.cost.tile import Tiles
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.workload.gemm import GemmShape

Box = tuple[tuple[int, int], ...]
"""((batch start, stop), (m ...), (n ...), (k ...))."""


def tiles_of(boxes: list[Box]) -> Tiles:
    return Tiles.of([(0, *m, *n, *k, *batch) for batch, m, n, k in boxes])


def counted(boxes: list[Box], margin: int = 12) -> np.ndarray:
    """How many boxes hold each point of a grid that is larger than any of them."""
    grid = np.zeros((margin,) * 4, dtype=int)
    for box in boxes:
        grid[tuple(slice(start, stop) for start, stop in box)] += 1
    return grid


@st.composite
def exact_covers(draw: st.DrawFn) -> tuple[GemmShape, list[Box]]:
    """Cut a box in two again and again, at random axes and places: guillotine tilings of every shape."""
    batch, m, n, k = (draw(st.integers(1, 5)) for _ in range(4))
    boxes: list[Box] = [((0, batch), (0, m), (0, n), (0, k))]
    for _ in range(draw(st.integers(0, 8))):
        place, axis = draw(st.integers(0, len(boxes) - 1)), draw(st.integers(0, 3))
        start, stop = boxes[place][axis]
        if stop - start > 1:
            cut = draw(st.integers(start + 1, stop - 1))
            whole = boxes.pop(place)
            boxes += [(*whole[:axis], part, *whole[axis + 1 :]) for part in ((start, cut), (cut, stop))]
    return GemmShape(batch, m, k, n), draw(st.permutations(boxes))


ranges = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
random_boxes = st.lists(st.tuples(ranges, ranges, ranges, ranges), max_size=6)


@given(exact_covers())
@settings(max_examples=80, deadline=None)
def test_every_exact_cover_is_accepted(case: tuple[GemmShape, list[Box]]) -> None:
    """Random guillotine tilings have no flaw."""
    shape, boxes = case
    assert cover_flaw(tiles_of(boxes), shape) is None


@given(exact_covers(), st.data())
@settings(max_examples=120, deadline=None)
def test_one_moved_edge_is_found(case: tuple[GemmShape, list[Box]], data: st.DataObject) -> None:
    """Move one edge of one box by one: the flaw's point and tiles are those that counting finds there."""
    shape, boxes = case
    place, axis, end = data.draw(st.integers(0, len(boxes) - 1)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 1))
    edge = list(boxes[place][axis])
    edge[end] += data.draw(st.sampled_from([-1, 1]))
    moved = (max(edge[0], 0), edge[1])
    if moved[0] < moved[1]:
        boxes[place] = (*boxes[place][:axis], moved, *boxes[place][axis + 1 :])
    else:
        boxes.pop(place)
    check_against_counting(boxes, shape)


@given(random_boxes, st.tuples(*[st.integers(0, 6)] * 4))
@settings(max_examples=120, deadline=None)
def test_any_boxes_are_judged_as_counting_judges_them(boxes: list[Box], sizes: tuple[int, int, int, int]) -> None:
    """Boxes at random, empty GEMMs among them: a flaw is reported if and only if some element is not counted once."""
    check_against_counting(boxes, GemmShape(*sizes))


def check_against_counting(boxes: list[Box], shape: GemmShape) -> None:
    wanted = np.zeros((12,) * 4, dtype=int)
    wanted[: shape.batch, : shape.m, : shape.n, : shape.k] = 1
    grid = counted(boxes)
    flaw = cover_flaw(tiles_of(boxes), shape)
    assert (flaw is None) == bool((grid == wanted).all())
    if flaw is not None:
        assert grid[flaw.point] != wanted[flaw.point]
        assert len(flaw.tiles) == grid[flaw.point]
        assert all(all(start <= x < stop for x, (start, stop) in zip(flaw.point, boxes[i], strict=True)) for i in flaw.tiles)
        assert flaw.outside == (wanted[flaw.point] == 0)


def test_the_windmill_that_no_guillotine_cuts_is_accepted() -> None:
    """Five rectangles around a centre: volumes add up and nothing overlaps, though no straight cut separates them."""
    plane = [((0, 2), (0, 1)), ((2, 3), (0, 2)), ((1, 3), (2, 3)), ((0, 1), (1, 3)), ((1, 2), (1, 2))]
    boxes = [((0, 1), m, n, (0, 7)) for m, n in plane]
    assert cover_flaw(tiles_of(boxes), GemmShape(1, 3, 7, 3)) is None


def test_equal_volume_is_not_enough() -> None:
    """One tile doubled and another of the same size missing: the sum of volumes is right, the cover is not."""
    quarters = [((0, 1), (i, i + 1), (j, j + 1), (0, 3)) for i, j in product(range(2), range(2))]
    flaw = cover_flaw(tiles_of([*quarters[:3], quarters[0]]), GemmShape(1, 2, 3, 2))
    assert flaw is not None
    assert (flaw.point, flaw.tiles, flaw.outside) == ((0, 0, 0, 0), (0, 3), False)


def test_sizes_whose_volume_passes_int64() -> None:
    """No product of sizes is ever formed: axes of 2^40 are as exact as axes of 2."""
    size = 2**40
    halves: list[Box] = [((0, size), (0, 5), (0, size), (0, size)), ((0, size), (5, size), (0, size), (0, size))]
    shape = GemmShape(size, size, size, size)
    assert cover_flaw(tiles_of(halves), shape) is None
    flaw = cover_flaw(tiles_of(halves[:1]), shape)
    assert flaw is not None
    assert (flaw.point, flaw.tiles) == ((0, 5, 0, 0), ())


def test_ten_thousand_tiles_with_one_row_too_many() -> None:
    """A 100 x 100 grid of tiles is accepted; the same grid with one tile a row longer is not."""
    boxes: list[Box] = [((0, 1), (7 * i, 7 * i + 7), (3 * j, 3 * j + 3), (0, 9)) for i in range(100) for j in range(100)]
    shape = GemmShape(1, 700, 9, 300)
    assert cover_flaw(tiles_of(boxes), shape) is None
    boxes[4217] = ((0, 1), (294, 302), (51, 54), (0, 9))
    flaw = cover_flaw(tiles_of(boxes), shape)
    assert flaw is not None
    assert flaw.point == (0, 301, 51, 0)
    assert flaw.tiles == (4217, 4317)
