"""Random plans of every form that the format allows, and documents with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from cleave_plan.cost.tile import Tiles
from cleave_plan.plan.plan import (
    Assignment,
    Constraint,
    LevelReport,
    Mode,
    Plan,
    Predicted,
    Reference,
    SolverReport,
    SolverStatus,
)

Edit = Callable[[dict[str, Any]], None]

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
seconds = st.floats(0, 1e12)
large = st.integers(0, 2**63 - 1)
hashes = st.one_of(st.just(""), st.text("0123456789abcdef", min_size=64, max_size=64))
sizes = st.integers(0, 2**40)


@st.composite
def random_tiles(draw: st.DrawFn, devices: int) -> Tiles:
    """Boxes anywhere in the range of int64, on devices or kept by the server."""
    rows = []
    for _ in range(draw(st.integers(0, 3))):
        box: list[int] = []
        for _ in range(4):
            low = draw(st.integers(0, 2**63 - 2))
            box += [low, draw(st.integers(low + 1, 2**63 - 1))]
        rows.append((draw(st.integers(0, devices)), *box))
    return Tiles.of(rows)


@st.composite
def random_assignments(draw: st.DrawFn, devices: int, servers: tuple[str, ...]) -> tuple[Assignment, ...]:
    gemms = draw(st.lists(names, unique=True, max_size=5))
    assignments = []
    while gemms:
        count = draw(st.integers(1, len(gemms)))
        group, gemms = gemms[:count], gemms[count:]
        holders = tuple(draw(st.permutations(servers)))[: draw(st.integers(1, len(servers)))]
        assignments.append(Assignment(
            class_name=draw(names), mode=draw(st.sampled_from(Mode)), gemms=tuple(group), server=holders[0], servers=holders,
            shares=(1.0,) if len(holders) == 1 else (0.25, *[0.75 / (len(holders) - 1)] * (len(holders) - 1)),
            tiles=draw(random_tiles(devices)),
        ))  # fmt: skip
    return tuple(assignments)


@st.composite
def random_predicted(draw: st.DrawFn) -> Predicted:
    levels = tuple(
        LevelReport(
            index=draw(large), count=draw(st.integers(1, 9)), gemms=tuple(draw(st.lists(names, max_size=2))),
            ideal_s=draw(seconds), executed_s=draw(seconds), bound_s=draw(seconds),
            binds=draw(st.sampled_from(["device", "egress", "ingress", "server"])) + " " + draw(names),
        )
        for _ in range(draw(st.integers(0, 3)))
    )  # fmt: skip
    maps = st.dictionaries(names, seconds, max_size=3)
    return Predicted(
        batch_s=draw(seconds), first_batch_s=draw(seconds), levels_s=draw(seconds),
        server_operators_s=draw(seconds), ideal_levels_s=draw(seconds),
        bound_s=draw(seconds), gap=draw(st.floats(-1, 1)), levels=levels, devices_used=draw(large),
        devices_total=draw(st.integers(1, 9)),
        one_device_s=draw(st.none() | seconds), one_device_name=draw(st.none() | names), server_only_s=draw(st.none() | seconds),
        downlink_bytes=draw(seconds), uplink_bytes=draw(seconds), server_memory_bytes=draw(maps), device_memory_bytes=draw(maps),
        spared_bytes=draw(seconds), device_kept_bytes=draw(maps),
    )  # fmt: skip


@st.composite
def random_constraints(draw: st.DrawFn) -> Constraint:
    share = st.none() | st.floats(0, 1)
    return Constraint(
        name=draw(names), gemms=tuple(draw(st.lists(names, max_size=2))), devices=tuple(draw(st.lists(names, max_size=2))),
        modes=tuple(draw(st.lists(st.sampled_from(Mode), max_size=2))), servers=tuple(draw(st.lists(names, max_size=2))),
        exclude=draw(st.booleans()), memory_bytes=draw(st.none() | seconds), headroom=draw(share), work=draw(share),
        time_s=draw(st.none() | seconds),
    )  # fmt: skip


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    """Any plan that the format allows, sensible or not."""
    devices = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    servers = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    solver = SolverReport(
        name=draw(names), status=draw(st.sampled_from(SolverStatus)), objective=draw(seconds), bound=draw(seconds),
        gap=draw(seconds), build_s=None, solve_s=None, variables=draw(large), rows=draw(large),
    )  # fmt: skip
    return Plan(
        model=Reference(name=draw(names), sha256=draw(hashes)), fleet=Reference(name=draw(names), sha256=draw(hashes)),
        dims=draw(st.dictionaries(names, sizes, max_size=3)),
        shapes=draw(st.dictionaries(names, st.lists(sizes, max_size=3).map(tuple), max_size=3)),
        settings=draw(st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=2)),
        device_names=devices, server_names=servers, assignments=draw(random_assignments(len(devices), servers)),
        predicted=draw(random_predicted()), solver=solver, notes=tuple(draw(st.lists(names, max_size=2))),
        training=draw(st.booleans()), constraints=tuple(draw(st.lists(random_constraints(), max_size=2))),
    )  # fmt: skip


def set_at(*path: str | int, value: Any) -> Edit:
    """An edit that puts ``value`` at a JSON path."""

    def edit(document: Any) -> None:
        *parents, last = path
        for key in parents:
            document = document[key]
        document[last] = value

    return edit


def without(*path: str | int) -> Edit:
    def edit(document: Any) -> None:
        *parents, last = path
        for key in parents:
            document = document[key]
        del document[last]

    return edit


TILED = ("assignments", 0)

BAD_DOCUMENTS: dict[str, tuple[Edit, str, str]] = {
    "newer format": (set_at("schema_version", value=2), "$.schema_version", "format 1"),
    "no format": (without("schema_version"), "$", "schema_version"),
    "format in words": (set_at("schema_version", value="1"), "$.schema_version", "int"),
    "unknown field": (set_at("extra", value=1), "$", "extra"),
    "unknown field inside": (set_at("predicted", "levels", 0, "speed", value=1), "$.predicted.levels[0]", "speed"),
    "missing field": (without("predicted", "gap"), "$.predicted", "gap"),
    "columns of unequal length": (set_at(*TILED, "n_stop", value=[3, 3]), "$.assignments[0].n_stop", "3 entries"),
    "device column longer": (set_at(*TILED, "device", value=[0, 1, 2, 0]), "$.assignments[0].m_start", "4 entries"),
    "negative start": (set_at(*TILED, "m_start", 1, value=-1), "$.assignments[0].m_start[1]", ">= 0"),
    "stop at start": (set_at(*TILED, "m_stop", 1, value=5), "$.assignments[0].m_stop[1]", "above its start, 5"),
    "stop below start": (set_at(*TILED, "k_start", 0, value=7), "$.assignments[0].k_stop[0]", "above its start, 7"),
    "stop of 0": (set_at(*TILED, "batch_stop", 0, value=0), "$.assignments[0].batch_stop[0]", ">= 1"),
    "fraction of a row": (set_at(*TILED, "m_stop", 0, value=4.5), "$.assignments[0].m_stop[0]", "int"),
    "a row in words": (set_at(*TILED, "m_stop", 0, value="5"), "$.assignments[0].m_stop[0]", "int"),
    "a row that is null": (set_at(*TILED, "m_stop", 0, value=None), "$.assignments[0].m_stop[0]", "int"),
    "device out of range": (set_at(*TILED, "device", 2, value=4), "$.assignments[0].device[2]", "below 3, or 3 for a tile"),
    "negative device": (set_at(*TILED, "device", 2, value=-1), "$.assignments[0].device[2]", ">= 0"),
    "size over int64": (set_at(*TILED, "n_stop", 0, value=2**63), "$.assignments[0].n_stop[0]", "9223372036854775807"),
    "size of a thousand digits": (set_at("dims", "batch", value=10**1000), "$.dims", "range"),
    "negative dimension": (set_at("dims", "batch", value=-2), "$.dims", ">= 0"),
    "GEMM named twice": (set_at(*TILED, "gemms", value=["l0.fc", "l1.fc", "l0.fc"]), "$.assignments[0].gemms[2]", "l0.fc"),
    "GEMM in two assignments": (
        set_at("assignments", 1, "gemms", value=["l1.fc"]), "$.assignments[1].gemms[0]", "assignments[0]",
    ),
    "assignment of nothing": (set_at(*TILED, "gemms", value=[]), "$.assignments[0].gemms", "length >= 1"),
    "unknown mode": (
        set_at(*TILED, "mode", value="diagonal"), "$.assignments[0].mode", "row, column, two-dimensional, inner, server",
    ),
    "unknown status": (set_at("solver", "status", value="Optimal"), "$.solver.status", "optimal, within-gap, time-limited"),
    "unknown server": (set_at(*TILED, "servers", value=["s0", "s9"]), "$.assignments[0].servers[1]", "one of s0, s1"),
    "server twice": (set_at(*TILED, "servers", value=["s0", "s0"]), "$.assignments[0].servers", "different names"),
    "server not first": (set_at(*TILED, "server", value="s1"), "$.assignments[0].server", "'s0'"),
    "share missing": (set_at(*TILED, "shares", value=[1.0]), "$.assignments[0].shares", "one share for each server"),
    "shares above 1": (set_at(*TILED, "shares", value=[0.75, 0.75]), "$.assignments[0].shares", "sum of 1"),
    "negative share": (set_at(*TILED, "shares", value=[-0.5, 1.5]), "$.assignments[0].shares[0]", ">= 0"),
    "device name twice": (set_at("device_names", value=["d0", "d1", "d0"]), "$.device_names[2]", "'d0' is listed twice"),
    "server name twice": (set_at("server_names", value=["s0", "s0"]), "$.server_names[1]", "'s0' is listed twice"),
    "no devices": (set_at("device_names", value=[]), "$.device_names", "length >= 1"),
    "hash cut short": (set_at("model", "sha256", value="abc"), "$.model.sha256", "[0-9a-f]{64}"),
    "negative time": (set_at("predicted", "batch_s", value=-1.0), "$.predicted.batch_s", ">= 0"),
    "NaN as null": (set_at("predicted", "batch_s", value=None), "$.predicted.batch_s", "float"),
    "gap above 1": (set_at("predicted", "gap", value=1.5), "$.predicted.gap", "<= 1"),
    "nothing binds": (set_at("predicted", "levels", 0, "binds", value=""), "$.predicted.levels[0].binds", "device|egress"),
    "level of no copies": (set_at("predicted", "levels", 0, "count", value=0), "$.predicted.levels[0].count", ">= 1"),
    "memory in words": (
        set_at("predicted", "device_memory_bytes", "d0", value="1 GB"), "$.predicted.device_memory_bytes", "float",
    ),
    "constraint with more than all the memory": (
        set_at("constraints", value=[{
            "name": "c", "gemms": [], "devices": ["d0"], "modes": [], "servers": [], "exclude": False, "memory_bytes": None,
            "headroom": 1.5, "work": None, "time_s": None,
        }]), "$.constraints[0].headroom", "<= 1",
    ),
    "training in words": (set_at("training", value="yes"), "$.training", "bool"),
    "settings in numbers": (set_at("settings", "gap", value=0.001), "$.settings", "str"),
}  # fmt: skip
