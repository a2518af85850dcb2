"""The coupled bound of a training step against every schedule of a few: forward, dX and dW of one product over two devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from planning_cases import device, fleet_of, gemm_of, spread, workload_of

from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.gemm import Operand, Role
from cleave_plan.workload.graph import Workload

BYTES = 4
"""Of an element, of partial sums too."""

Box = tuple[slice, slice, slice]
"""Of (M, K, N) of the forward product, whatever the GEMM: the same three ranges name a tile of each of the three."""

Layout = tuple[Box | None, Box | None]
"""What each of two devices has."""


def layouts(m: int, k: int, n: int) -> Iterator[Layout]:
    """All on one device, or cut once along any axis, K of any of the three products included."""
    whole = (slice(0, m), slice(0, k), slice(0, n))
    yield whole, None
    yield None, whole
    for axis, side in enumerate((m, k, n)):
        for cut in range(1, side):
            first, second = ((*whole[:axis], part, *whole[axis + 1 :]) for part in (slice(0, cut), slice(cut, side)))
            yield first, second  # type: ignore[misc]
            yield second, first  # type: ignore[misc]


def matrices(box: Box | None, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Which elements of X (M, K), W (K, N) and Y (M, N) a tile touches."""
    m, k, n = shape
    marks = {"X": np.zeros((m, k), bool), "W": np.zeros((k, n), bool), "Y": np.zeros((m, n), bool)}
    if box is not None:
        for name, axes in (("X", (0, 1)), ("W", (1, 2)), ("Y", (0, 2))):
            marks[name][box[axes[0]], box[axes[1]]] = True
    return marks


def seconds(own: Device, down: int, up: int, box: Box | None) -> float:
    """Ideal cost of a tile that is sent ``down`` elements and sends ``up`` back."""
    if box is None:
        return 0.0
    flop = 2 * np.prod([side.stop - side.start for side in box])
    return own.latency_s + max(
        BYTES * down / own.downlink_bytes_per_s, flop / own.flop_per_s["any"], BYTES * up / own.uplink_bytes_per_s
    )


def best(shape: tuple[int, int, int], fleet: Fleet) -> float:
    """The least time of both levels when devices keep every element that they were ever sent, in memory without end."""
    found = list(layouts(*shape))
    touched = [[matrices(box, shape) for box in layout] for layout in found]
    least = np.inf
    for forward, given in enumerate(touched):
        first = max(
            seconds(own, given[i]["X"].sum() + given[i]["W"].sum(), given[i]["Y"].sum(), found[forward][i])
            for i, own in enumerate(fleet.devices)
        )
        d_x = [
            [
                seconds(own, at["Y"].sum() + (at["W"] & ~had["W"]).sum(), at["X"].sum(), box)
                for own, at, had, box in zip(fleet.devices, layout, given, boxes, strict=True)
            ]
            for layout, boxes in zip(touched, found, strict=True)
        ]
        missing_x = [[(at["X"] & ~had["X"]).sum() for at, had in zip(layout, given, strict=True)] for layout in touched]
        for one, two in product(range(len(found)), repeat=2):
            second = max(
                d_x[one][i]
                + seconds(
                    own, missing_x[two][i] + (touched[two][i]["Y"] & ~touched[one][i]["Y"]).sum(), touched[two][i]["W"].sum(),
                    found[two][i],
                )
                for i, own in enumerate(fleet.devices)
            )  # fmt: skip
            least = min(least, first + second)
    return float(least)


def case(seed: int) -> tuple[Workload, Fleet, tuple[int, int, int]]:
    """One learned product with sides of 1 to 3, and two devices with memory for everything."""
    rng = np.random.default_rng([13, seed])
    m, k, n = (int(side) for side in rng.integers(1, 4, 3))
    forward = gemm_of("g", (1, m, k, n))
    learned = replace(forward, a=Operand(tensor="x", role=Role.ACTIVATION, dtype=forward.a.dtype, learned=True))
    members = [
        device(
            f"d{place}", flop_per_s={"any": spread(rng, 50, 5e4)}, downlink_bytes_per_s=spread(rng, 20, 500),
            uplink_bytes_per_s=spread(rng, 20, 2e3), latency_s=float(rng.choice([0.0, rng.uniform(0, 0.1)])), memory_bytes=1e6,
        )
        for place in range(2)
    ]  # fmt: skip
    return training_workload(workload_of([learned], parameter_elements=k * n)), fleet_of(members), (m, k, n)


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_beats_the_coupled_bound(seed: int) -> None:
    """Not even one whose devices find every single element that they had, piece by piece or not."""
    workload, fleet, shape = case(seed)
    plan = make_plan(workload, fleet, without=frozenset({"server"}), gap=0.0)
    assert [len(level.gemms) for level in workload.levels] == [1, 2]
    reached = best(shape, fleet)
    assert plan.predicted.bound_s <= reached * (1 + 1e-9)
    assert verify(plan, workload, fleet).ok
