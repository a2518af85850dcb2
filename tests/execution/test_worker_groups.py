"""Which devices one process plays."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hand_plans import random_tiling
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.dtypes import DType
from cleave_plan.execution.admission import Placed
from cleave_plan.execution.engines.process import share_out
from cleave_plan.execution.session import device_load
from cleave_plan.execution.sharing import MOST_DEVICES, groups_of
from cleave_plan.kernels.tile import Box
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape, Operand, Role

WINDOW = ConvWindow(
    images=8, channels=3, input=(10, 10), output=(10, 10), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1)
)  # fmt: skip


def product(name: str, level: int, tiles: list[tuple[int, Box]], *, convolution: bool) -> Placed:
    """A product of 800 x 6 with its tiles."""
    x, w = (Operand(tensor=name, role=role, dtype=DType.FLOAT32) for role in (Role.ACTIVATION, Role.PARAMETER))
    gemm = Gemm(
        name=name, node=name, op="Conv", shape=GemmShape(1, 800, 27, 6), a=x, b=w, output=name, out_dtype=DType.FLOAT32,
        level=level, window=WINDOW if convolution else None,
    )  # fmt: skip
    return Placed(gemm=gemm, members=(gemm,), tiles=tuple((f"d{device}", box) for device, box in tiles))


def rows(*ends: tuple[int, int, int]) -> list[tuple[int, Box]]:
    """Tiles of all columns: device, first row, end."""
    return [(device, Box(start, stop, 0, 6, 0, 27, 0, 1)) for device, start, stop in ends]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1), (2, 3, 1, 0)])
def test_neighbours_stay_together(order: tuple[int, ...]) -> None:
    """Four equal strips of a convolution: the upper two and the lower two, whatever the devices are called."""
    strips = rows(*((device, 200 * place, 200 * (place + 1)) for place, device in enumerate(order)))
    placed = [product("c", 0, strips, convolution=True)]
    found = groups_of(placed, device_load(placed), 2)
    assert {frozenset(group) for group in found} == {
        frozenset(f"d{device}" for device in half) for half in (order[:2], order[2:])
    }  # fmt: skip


def test_levels_are_even() -> None:
    """Two devices work in one level and two in the other: each process has one of both, though sums would allow otherwise."""
    first, second = rows((0, 0, 400), (1, 400, 800)), rows((2, 0, 400), (3, 400, 800))
    placed = [product("a", 0, first, convolution=False), product("b", 1, second, convolution=False)]
    for group in groups_of(placed, device_load(placed), 2):
        assert len({"d0", "d1"} & set(group)) == len({"d2", "d3"} & set(group)) == 1


def slowest(placed: list[Placed], groups: list[tuple[str, ...]]) -> float:
    """Multiply-adds of the busiest process, level by level."""
    levels = {place.gemm.level: device_load([place]) for place in placed}
    return sum(max(sum(load.get(name, 0.0) for name in group) for group in groups) for load in levels.values())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_any_plan(seed: int, devices: int, groups: int, convolution: bool) -> None:
    """Each device is in one group, none is empty, and without convolutions levels are no less even than by sums alone."""
    generator = random.Random(seed)
    shape = GemmShape(1, 800, 27, 6)
    placed = [
        product(name, level, random_tiling(shape, generator, cuts=12, devices=devices, inner=False), convolution=convolution)
        for level, name in enumerate("abc")
    ]
    load = device_load(placed)
    found = groups_of(placed, load, groups)
    assert sorted(name for group in found for name in group) == sorted(load)
    assert all(found)
    assert len(found) == min(groups, len(load))
    if not convolution:
        assert slowest(placed, found) <= slowest(placed, share_out(load, len(found))) * (1 + 1e-9)
    assert found == groups_of(placed, load, groups)


def test_many_devices_are_shared_out_by_their_sums() -> None:
    """The search is for few."""
    load = {f"d{device}": float(work) for device, work in enumerate(np.arange(MOST_DEVICES + 1) + 1)}
    assert groups_of([], load, 2) == share_out(load, 2)
