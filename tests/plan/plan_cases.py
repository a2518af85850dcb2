"""Small fleets, workloads and plans for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cleave_plan.cost.tile import Tiles
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.plan.objective import Recount
from cleave_plan.plan.plan import (
    Assignment,
    LevelReport,
    Mode,
    Plan,
    Predicted,
    Reference,
    SolverReport,
    SolverStatus,
)
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, ServerOperator, TensorInfo, Workload

MODEL_HASH = "a" * 64
FLEET_HASH = "b" * 64

SOLVER = SolverReport(
    name="none", status=SolverStatus.OPTIMAL, objective=1.0, bound=1.0, gap=0.0, build_s=None, solve_s=None, variables=0, rows=0
)


def device(name: str, **changes: Any) -> Device:
    """100 FLOP/s, 10 B/s down, 5 B/s up, no latency, 10,000 bytes."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 100.0}, "downlink_bytes_per_s": 10.0, "uplink_bytes_per_s": 5.0, "latency_s": 0.0,
        "memory_bytes": 10_000.0,
    }  # fmt: skip
    return Device(name=name, **(figures | changes))


def server(name: str, **changes: Any) -> Server:
    """1,000 FLOP/s, 100 B/s memory bandwidth, 50 B/s out, 20 B/s in, 100,000 bytes."""
    figures: dict[str, Any] = {
        "flop_per_s": {"any": 1000.0}, "memory_bytes": 100_000.0, "memory_bandwidth_bytes_per_s": 100.0,
        "egress_bytes_per_s": 50.0, "ingress_bytes_per_s": 20.0,
    }  # fmt: skip
    return Server(name=name, **(figures | changes))


def fleet_of(devices: Sequence[Device], servers: Sequence[Server]) -> Fleet:
    return Fleet(name="home", devices=tuple(devices), servers=tuple(servers), sha256=FLEET_HASH)


def gemm_of(name: str, shape: tuple[int, int, int, int], level: int = 0, **changes: Any) -> Gemm:
    """A float32 MatMul of an activation and the parameter ``NAME.weight``; ``shape`` is (batch, m, k, n)."""
    parts: dict[str, Any] = {
        "a": Operand(tensor=f"{name}.in", role=Role.ACTIVATION, dtype=DType.FLOAT32),
        "b": Operand(tensor=f"{name}.weight", role=Role.PARAMETER, dtype=DType.FLOAT32),
        "out_dtype": DType.FLOAT32,
    }
    return Gemm(
        name=name, node=name, op="MatMul", shape=GemmShape(*shape), output=f"{name}.out", level=level, **(parts | changes)
    )


def workload_of(gemms: Sequence[Gemm], **changes: Any) -> Workload:
    """Levels as the GEMMs say, 100 live bytes in each, one operator of 200 bytes before the first."""
    depth = 1 + max((gemm.level for gemm in gemms), default=-1)
    levels = tuple(
        Level(index=index, gemms=tuple(i for i, gemm in enumerate(gemms) if gemm.level == index), live_bytes=100)
        for index in range(depth)
    )
    parameters = {gemm.b.tensor: gemm.b_bytes for gemm in gemms if gemm.b.role is Role.PARAMETER}
    parts: dict[str, Any] = {
        "name": "toy", "sha256": MODEL_HASH, "gemms": tuple(gemms), "levels": levels,
        "server_operators": (ServerOperator(name="relu", op="Relu", level=0, bytes=200),),
        "inputs": (TensorInfo(name="x", dtype="float32", shape=(1,)),),
        "outputs": (TensorInfo(name="y", dtype="float32", shape=(1,)),),
        "parameters": parameters, "parameter_elements": 0, "dims": {"batch": 2}, "shapes": {"x": (2, 3)},
    }  # fmt: skip
    return Workload(**(parts | changes))


def assigned(gemms: Sequence[str], tiles: Tiles | Sequence[tuple[int, ...]], **changes: Any) -> Assignment:
    """Tiles, or rows as in Tiles.of: (device, m_start, m_stop, n_start, n_stop, k_start, k_stop, batch_start, batch_stop)."""
    parts: dict[str, Any] = {
        "class_name": "class of " + gemms[0], "mode": Mode.TWO_DIMENSIONAL, "server": "s0", "servers": ("s0",), "shares": (1.0,),
    }  # fmt: skip
    return Assignment(gemms=tuple(gemms), tiles=tiles if isinstance(tiles, Tiles) else Tiles.of(tiles), **(parts | changes))


def plan_of(workload: Workload, fleet: Fleet, assignments: Sequence[Assignment], **changes: Any) -> Plan:
    """A plan whose figures are those that verify recomputes (their values are proved by the tests with literals)."""
    figures = Recount(workload, assignments, fleet.devices, fleet.servers).figures()
    reports = []
    for index, (level, times) in enumerate(zip(workload.levels, figures.levels, strict=True)):
        by_resource = dict(times.server_s)
        by_resource |= {f"device {d.name}": float(s) for d, s in zip(fleet.devices, times.device_executed_s, strict=True)}
        reports.append(LevelReport(
            index=index, count=1, gemms=tuple(workload.gemms[i].name for i in level.gemms), ideal_s=times.ideal_s,
            executed_s=times.executed_s, bound_s=times.ideal_s / 2, binds=max(by_resource, key=by_resource.__getitem__),
        ))  # fmt: skip
    predicted = Predicted(
        batch_s=figures.batch_s, first_batch_s=figures.first_batch_s, levels_s=figures.levels_s,
        server_operators_s=figures.server_operators_s,
        ideal_levels_s=figures.ideal_levels_s, bound_s=sum(report.bound_s for report in reports),
        gap=0.5 if figures.ideal_levels_s else 0.0, levels=tuple(reports), devices_used=len(figures.device_memory_bytes),
        devices_total=len(fleet.devices), one_device_s=None, one_device_name=None, server_only_s=None,
        downlink_bytes=figures.downlink_bytes, uplink_bytes=figures.uplink_bytes,
        server_memory_bytes=figures.server_memory_bytes, device_memory_bytes=figures.device_memory_bytes,
        spared_bytes=figures.spared_bytes, device_kept_bytes=figures.device_kept_bytes,
    )  # fmt: skip
    parts: dict[str, Any] = {
        "model": Reference(name=workload.name, sha256=workload.sha256),
        "fleet": Reference(name=fleet.name, sha256=fleet.sha256),
        "dims": workload.dims, "shapes": workload.shapes, "settings": {"gap": "0.001"},
        "device_names": tuple(device.name for device in fleet.devices),
        "server_names": tuple(server.name for server in fleet.servers),
        "assignments": tuple(assignments), "predicted": predicted, "solver": SOLVER, "notes": ("a note",),
    }  # fmt: skip
    return Plan(**(parts | changes))


def example() -> tuple[Plan, Workload, Fleet]:
    """Three levels: two equal layers over three devices, then one GEMM on the server."""
    fleet = fleet_of([device("d0"), device("d1", uplink_bytes_per_s=2.0), device("d2")], [server("s0"), server("s1")])
    gemms = [gemm_of("l0.fc", (1, 8, 4, 6), 0), gemm_of("l1.fc", (1, 8, 4, 6), 1), gemm_of("head", (1, 8, 6, 1), 2)]
    workload = workload_of(gemms)
    tiles = [(0, 0, 5, 0, 3, 0, 4, 0, 1), (1, 5, 8, 0, 3, 0, 4, 0, 1), (2, 0, 8, 3, 6, 0, 4, 0, 1)]
    assignments = [
        assigned(["l0.fc", "l1.fc"], tiles, servers=("s0", "s1"), shares=(0.75, 0.25)),
        assigned(["head"], [], mode=Mode.SERVER),
    ]
    return plan_of(workload, fleet, assignments), workload, fleet


def shared_example() -> tuple[Plan, Workload, Fleet]:
    """Rows of one 8 x 4 by 4 x 6 GEMM: 0-3 on d0, 4-5 on d1, and 6-7 kept by the server s0; its weights lie on s0 and s1."""
    fleet = fleet_of([device("d0"), device("d1")], [server("s0"), server("s1")])
    workload = workload_of([gemm_of("fc", (1, 8, 4, 6))])
    rows = [(0, 0, 4, 0, 6, 0, 4, 0, 1), (1, 4, 6, 0, 6, 0, 4, 0, 1), (2, 6, 8, 0, 6, 0, 4, 0, 1)]
    assignment = assigned(["fc"], rows, mode=Mode.ROW, servers=("s0", "s1"), shares=(0.75, 0.25))
    return plan_of(workload, fleet, [assignment]), workload, fleet


def with_tiles(plan: Plan, place: int, rows: Sequence[tuple[int, ...]]) -> Plan:
    """The plan with other tiles in one assignment and everything else, its figures too, as it was."""
    assignments = list(plan.assignments)
    assignments[place] = replace(assignments[place], tiles=Tiles.of(rows))
    return replace(plan, assignments=tuple(assignments))


def rows_of(assignment: Assignment) -> list[tuple[int, ...]]:
    """The tiles as rows for Tiles.of."""
    tiles = assignment.tiles
    columns = (
        tiles.device, tiles.m_start, tiles.m_stop, tiles.n_start, tiles.n_stop, tiles.k_start, tiles.k_stop,
        tiles.batch_start, tiles.batch_stop,
    )  # fmt: skip
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]
