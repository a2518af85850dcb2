"""Plans written by hand: boxes straight into assignments, with no planner in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from cleave_plan.cost.tile import Tiles
from cleave_plan.kernels.tile import Box
from cleave_plan.plan.plan import Assignment, Mode, Plan, Predicted, Reference, SolverReport, SolverStatus
from cleave_plan.workload.gemm import Gemm, GemmShape
from cleave_plan.workload.graph import Workload

Tiling = Sequence[tuple[int, Box]]

_PREDICTED = Predicted(
    batch_s=1.0, first_batch_s=1.0, levels_s=1.0, server_operators_s=0.0,
    ideal_levels_s=1.0, bound_s=1.0, gap=0.0, levels=(), devices_used=1,
    devices_total=1, one_device_s=None, one_device_name=None, server_only_s=None, downlink_bytes=0.0, uplink_bytes=0.0,
    server_memory_bytes={}, device_memory_bytes={}, spared_bytes=0.0, device_kept_bytes={},
)  # fmt: skip
_SOLVER = SolverReport(
    name="by hand", status=SolverStatus.OPTIMAL, objective=1.0, bound=1.0, gap=0.0, build_s=0.0, solve_s=0.0, variables=0, rows=0
)


def hand_plan(workload: Workload, tilings: Mapping[str, Tiling], devices: int = 8) -> Plan:
    """A plan with the tiles ``(device, box)`` of each GEMM; the server computes those without a tiling."""
    assignments = []
    for gemm in workload.gemms:
        tiles = tilings.get(gemm.name)
        assignments.append(
            Assignment(
                class_name=gemm.name, mode=Mode.TWO_DIMENSIONAL if tiles else Mode.SERVER, gemms=(gemm.name,), server="server",
                servers=("server",), shares=(1.0,), tiles=Tiles.of([(device, *box) for device, box in tiles or ()]),
            )
        )  # fmt: skip
    return Plan(
        model=Reference(name=workload.name, sha256=workload.sha256), fleet=Reference(name="hand", sha256=""),
        dims=workload.dims, shapes=workload.shapes, settings={}, device_names=tuple(f"device-{i}" for i in range(devices)),
        server_names=("server",), assignments=tuple(assignments), predicted=_PREDICTED, solver=_SOLVER,
    )  # fmt: skip


def random_tiling(shape: GemmShape, generator: random.Random, *, cuts: int, devices: int, inner: bool) -> list[tuple[int, Box]]:
    """An exact tiling by random guillotine cuts along every axis (K only with ``inner``), on random devices."""
    boxes = [[(0, shape.m), (0, shape.n), (0, shape.k), (0, shape.batch)]]
    for _ in range(cuts):
        place, axis = generator.randrange(len(boxes)), generator.choice((0, 1, 2, 3) if inner else (0, 1, 3))
        start, stop = boxes[place][axis]
        if stop - start > 1:
            middle = generator.randrange(start + 1, stop)
            box = boxes.pop(place)
            boxes += [[*box[:axis], (start, middle), *box[axis + 1 :]], [*box[:axis], (middle, stop), *box[axis + 1 :]]]
    if 0 in shape:
        return []
    return [(generator.randrange(devices), Box(*(end for side in box for end in side))) for box in boxes]


def random_plan(workload: Workload, *, seed: int, devices: int = 8, cuts: int = 5, keep: float = 0.1) -> Plan:
    """Every GEMM that devices may compute cut at random; about a share ``keep`` of them stays on the server."""
    generator = random.Random(seed)
    tilings = {}
    for gemm in workload.gemms:
        if generator.random() >= keep and not gemm.pinned:
            tilings[gemm.name] = random_tiling(gemm.shape, generator, cuts=cuts, devices=devices, inner=gemm.window is None)
    return hand_plan(workload, tilings, devices)


def rows(gemm: Gemm, *parts: int) -> list[tuple[int, Box]]:
    """Row tiles of the given heights, one device each."""
    ends = [sum(parts[:place]) for place in range(len(parts) + 1)]
    batch, _, k, n = gemm.shape
    return [(d, Box(a, b, 0, n, 0, k, 0, batch)) for d, (a, b) in enumerate(itertools.pairwise(ends))]


def columns(gemm: Gemm, *parts: int) -> list[tuple[int, Box]]:
    """Column tiles of the given widths, one device each."""
    ends = [sum(parts[:place]) for place in range(len(parts) + 1)]
    batch, m, k, _ = gemm.shape
    return [(d, Box(0, m, a, b, 0, k, 0, batch)) for d, (a, b) in enumerate(itertools.pairwise(ends))]
