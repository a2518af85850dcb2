"""Tiles of one process that are sent together: which are computed as one, and that each is answered as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines import wire
from cleave_plan.execution.engines.base import Finished, Lost, Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.engines.together import hull, rectangles
from cleave_plan.kernels.tile import Box, Product, whole_of
from cleave_plan.workload.gemm import ConvWindow, GemmShape

WINDOW = ConvWindow(
    images=4, channels=3, input=(9, 8), output=(9, 8), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1)
)  # fmt: skip
CONVOLUTION = Product(
    shape=GemmShape(1, 288, 27, 6), a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32, window=WINDOW
)  # fmt: skip
MATRIX = Product(
    shape=GemmShape(1, 288, 27, 6), a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32, window=None
)  # fmt: skip
TILES = (
    ("a", Box(0, 100, 0, 6, 0, 27, 0, 1)), ("b", Box(100, 200, 0, 4, 0, 27, 0, 1)), ("a", Box(100, 200, 4, 6, 0, 27, 0, 1)),
    ("a", Box(200, 288, 0, 3, 0, 27, 0, 1)), ("c", Box(200, 288, 3, 6, 0, 27, 0, 1)),
)  # fmt: skip
"""Of two workers: a and c are one, b is the other."""


@st.composite
def disjoint_boxes(draw: st.DrawFn) -> tuple[Box, ...]:
    """Some cells of a grid, uneven along every axis."""
    ends = [sorted(draw(st.sets(st.integers(0, 9), min_size=2, max_size=4))) for _ in range(4)]
    sides = [list(pairwise(axis)) for axis in ends]
    cells = [Box(*m, *n, *k, *g) for m in sides[0] for n in sides[1] for k in sides[2] for g in sides[3]]
    return tuple(draw(st.lists(st.sampled_from(cells), unique=True, max_size=10)))


def volume(box: Box) -> int:
    """Points in a box."""
    return prod(stop - start for start, stop in zip(box[::2], box[1::2], strict=True))


@settings(deadline=None)
@given(disjoint_boxes())
def test_groups_are_boxes(boxes: tuple[Box, ...]) -> None:
    """Each box is in one group, and a group has as many points as the box around it: it is full."""
    groups = rectangles(boxes)
    assert sorted(place for group in groups for place in group) == list(range(len(boxes)))
    for group in groups:
        assert volume(hull([boxes[place] for place in group])) == sum(volume(boxes[place]) for place in group)


def test_neighbours_are_joined_until_none_is_left() -> None:
    """Four quarters are one; what touches at a corner, or along a part of a side, is not."""
    quarters = tuple(Box(m, m + 2, n, n + 3, 0, 5, 0, 1) for m in (0, 2) for n in (0, 3))
    assert [sorted(group) for group in rectangles(quarters)] == [[0, 1, 2, 3]]
    assert len(rectangles((quarters[0], quarters[3]))) == 2
    assert len(rectangles((quarters[0], quarters[1]._replace(m_stop=1)))) == 2


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    """Two workers with three identities."""
    engine = LocalEngine(2)
    engine.start({"a": 1.0, "b": 1.0, "c": 1.0})
    try:
        yield engine
    finally:
        engine.stop()


def operands_of(product: Product) -> tuple[np.ndarray, np.ndarray]:
    """Seeded operands."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (product.a_shape, product.b_shape))
    return a, b


def collected(engine: LocalEngine, tasks: int) -> list[Finished | Lost]:
    """Events until all tasks are answered or lost."""
    events: list[Finished | Lost] = []
    while tasks:
        event = engine.collect(30)
        assert isinstance(event, Finished | Lost), event
        events.append(event)
        tasks -= len(event.tasks) if isinstance(event, Lost) else 1
    return events


@pytest.mark.parametrize(
    ("product", "orders"), [(CONVOLUTION, [(0,), (1,), (2,), (3, 4)]), (MATRIX, [(0,), (1,), (2,), (3,), (4,)])]
)
def test_each_tile_is_answered(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, product: Product, orders: list[tuple[int, ...]]
) -> None:
    """Neighbours of a convolution on one worker are one order, tiles that are apart are not; results and bytes are as ever."""
    sent: list[tuple[int, ...]] = []
    tiles = wire.tiles
    monkeypatch.setattr(wire, "tiles", lambda order: (sent.append(tuple(tile for tile, _ in order.tiles)), tiles(order))[1])
    operands = operands_of(product)
    whole = engine.open(0, product, operands)
    apart = Task(0, 5, "a", TILES[0][1], apart=True)
    engine.send(*(Task(0, tile, *spot) for tile, spot in enumerate(TILES)), apart)
    events = [event for event in collected(engine, 6) if isinstance(event, Finished)]
    assert sorted(sent) == [*orders, (5,)]
    assert sorted(event.task.tile for event in events) == list(range(6))
    for event in events:
        assert event.bytes_down == product.pieces(operands, event.task.box).nbytes
        assert event.bytes_up == product.result_bytes(event.task.box)
        assert event.in_place is not event.task.apart
    np.testing.assert_allclose(whole, whole_of(product, operands), rtol=1e-5, atol=1e-5)
    (copy,) = (event.result for event in events if event.task.apart)
    np.testing.assert_allclose(copy, product.fetch(whole, TILES[0][1]), rtol=1e-5, atol=1e-5)


def test_a_lost_device_takes_its_tiles_only(engine: LocalEngine) -> None:
    """Of tiles that were sent as one, those of the device that is dropped are lost; another worker computes the others again."""
    operands = operands_of(CONVOLUTION)
    whole = engine.open(0, CONVOLUTION, operands)
    engine.send(*(Task(0, tile, *spot) for tile, spot in enumerate(TILES)))
    engine.drop("a", "was told to go")
    events = collected(engine, 5)
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert lost.devices == ("a",)
    done = {event.task.tile for event in events if isinstance(event, Finished)}
    assert done >= {1, 4}
    assert done | {task.tile for task in lost.tasks} == set(range(5))
    wanted = whole_of(CONVOLUTION, operands)
    for tile in done:
        box = TILES[tile][1]
        np.testing.assert_allclose(CONVOLUTION.fetch(whole, box), CONVOLUTION.fetch(wanted, box), rtol=1e-5, atol=1e-5)
