"""The second opinion on a plan: is it for this model and this fleet, does it compute everything once, does it fit, and
does it take what it says? Nothing here comes from the planner.

Proved, in this order, each fault a :class:`~cleave_plan.plan.finding.Finding` with its JSON path:

1. hashes, dimensions, shapes and names are those of the model and the fleet;
2. every GEMM of the model is in exactly one assignment, and no other;
3. the tiles of each assignment, the server's own among them, cover batch x M x N x K exactly
   (:mod:`cleave_plan.plan.cover`);
4. every tile fits its device beside what the device keeps, what tiles find there is a piece that the device had before
   (:mod:`cleave_plan.plan.keeping`), every server holds what is placed on it;
5. every figure of ``predicted`` is what :mod:`cleave_plan.plan.objective` makes of the tiles, to 1e-9 relative, and the
   bound does not exceed the plan's own time;
6. the constraints that the plan was made under hold (:mod:`cleave_plan.plan.obedience`).

What it cannot prove is the bound itself, nor the times of the alternatives (one device, server only).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cleave_plan.cost.tile import Tiles
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.fleet.percentile import at_percentile
from cleave_plan.plan.comparison import TOLERANCE, compare
from cleave_plan.plan.constraints import fleet_view
from cleave_plan.plan.cover import Flaw, cover_flaw
from cleave_plan.plan.document import COLUMNS
from cleave_plan.plan.finding import Code, Finding, Verdict
from cleave_plan.plan.identity import decisions, names, same_fleet, same_model
from cleave_plan.plan.obedience import obedience
from cleave_plan.plan.objective import Figures, Recount, products_of
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.plan.repricing import STREAM_SHARE
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.gemm import Gemm, GemmShape
from cleave_plan.workload.graph import Workload

__all__ = ["Code", "Figures", "Finding", "Verdict", "verify"]

_WHOLE_AXIS = {Mode.ROW: "n", Mode.COLUMN: "m"}
"""The axis that no tile of a mode cuts."""


def verify(plan: Plan, workload: Workload, fleet: Fleet) -> Verdict:
    """Judge ``plan`` against ``workload`` (loaded with the plan's dims and shapes) and ``fleet``.

    The plan may use some of the fleet's servers (``plan.server_names``, the first of which runs the operators).
    Raises MissingFigureError when the fleet has no FLOP/s figure for a dtype that a device or server is given.
    """
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    identity = [*same_model(plan, workload), *same_fleet(plan, fleet)]
    broken = [*names(plan, fleet), *decisions(plan, gemms)]
    for place, assignment in enumerate(plan.assignments):
        broken += _servers(assignment, plan.server_names, f"$.assignments[{place}]")
        broken += _boxes(assignment.tiles, len(plan.device_names), f"$.assignments[{place}]")
        broken += _held_pieces(assignment, len(plan.device_names), f"$.assignments[{place}]")
    counts = {"gemms": len(gemms), "tiles": sum(len(assignment.tiles) for assignment in plan.assignments)}
    if broken:
        return Verdict(findings=(*identity, *broken), figures=None, **counts)

    try:
        view, assignments = products_of(workload, plan.assignments)
    except ValueError as error:
        joined = Finding(code=Code.TILE, where="$.assignments", sentence=str(error))
        return Verdict(findings=(*identity, joined), figures=None, **counts)
    gemms = {gemm.name: gemm for gemm in view.workload.gemms}
    cover = [*_covers(assignments, gemms)]
    fleet = at_percentile(fleet_view(plan.constraints, fleet), plan.percentile)
    servers = _chosen(fleet.servers, plan.server_names)
    recount = Recount(workload, plan.assignments, fleet.devices, servers)
    figures = recount.figures()
    memory = [*_device_memory(assignments, gemms, fleet.devices, recount), *_server_memory(servers, figures)]
    obeyed = obedience(plan, view.workload, assignments, fleet, figures)
    findings = [*identity, *cover, *_held_from_nowhere(recount), *memory, *obeyed]
    if not cover:  # the times of tiles that do not add up to the work would only bury the reason
        findings += compare(plan.predicted, view, fleet.devices, figures)
    return Verdict(findings=tuple(findings), figures=figures, **counts)


def _chosen(servers: Sequence[Server], names: Sequence[str]) -> tuple[Server, ...]:
    by_name = {server.name: server for server in servers}
    return tuple(by_name[name] for name in names)


def _servers(assignment: Assignment, known: Sequence[str], where: str) -> Iterator[Finding]:
    def finding(field: str, sentence: str) -> Finding:
        return Finding(code=Code.SERVERS, where=f"{where}.{field}", sentence=sentence)

    strangers = [name for name in (assignment.server, *assignment.servers) if name not in known]
    if strangers:
        yield finding("servers", f"{strangers[0]!r} is not in server_names")
    if assignment.servers[:1] != (assignment.server,) or len(set(assignment.servers)) != len(assignment.servers):
        yield finding("servers", f"{assignment.server!r} must stand first in servers, and each name once")
    if len(assignment.shares) != len(assignment.servers) or not all(share >= 0 for share in assignment.shares):
        yield finding("shares", "each of servers needs one share of 0 or more")
    elif abs(math.fsum(assignment.shares) - 1) > TOLERANCE:
        yield finding("shares", f"the shares sum to {math.fsum(assignment.shares)!r}, not to 1")
    if assignment.mode is Mode.SERVER and len(assignment.servers) > 1:
        yield finding("servers", "a GEMM in server mode is computed on one server")


def _boxes(tiles: Tiles, devices: int, where: str) -> Iterator[Finding]:
    """Tiles that are no boxes at all, or neither on a device nor on the server (one past the last device)."""
    if len({len(tiles.column(name)) for name in COLUMNS}) > 1:
        yield Finding(code=Code.TILE, where=where, sentence="the columns have different lengths")
        return
    bad = (tiles.device < 0) | (tiles.device > devices)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        sentence = f"tile {place} is on device {int(tiles.device[place])}, there are {devices} (and {devices} means the server)"
        yield Finding(code=Code.TILE, where=f"{where}.device[{place}]", sentence=sentence)
    for axis in ("m", "n", "k", "batch"):
        empty = np.flatnonzero(tiles.column(f"{axis}_stop") <= tiles.column(f"{axis}_start"))
        if empty.size:
            sentence = f"tile {int(empty[0])} is empty along {axis}: its stop is not above its start"
            yield Finding(code=Code.TILE, where=f"{where}.{axis}_stop[{int(empty[0])}]", sentence=sentence)


def _held_pieces(assignment: Assignment, devices: int, where: str) -> Iterator[Finding]:
    """Columns that are not one count for each tile, within its piece, and nothing for the server's own tiles."""
    tiles = assignment.tiles
    for name, axis, held in (("held_a", "m", assignment.held_a), ("held_b", "n", assignment.held_b)):
        if len(held) == 0:
            continue
        if len(held) != len(tiles):
            sentence = f"{name} has {len(held)} entries for {len(tiles)} tiles"
            yield Finding(code=Code.HELD, where=f"{where}.{name}", sentence=sentence)
            return
        most = np.where(tiles.device < devices, tiles.column(f"{axis}_stop") - tiles.column(f"{axis}_start"), 0)
        bad = np.flatnonzero((held < 0) | (held > most))
        if bad.size:
            place = int(bad[0])
            sentence = f"tile {place} finds {int(held[place])} along {axis}, of which it reads {int(most[place])}"
            yield Finding(code=Code.HELD, where=f"{where}.{name}[{place}]", sentence=sentence)


def _held_from_nowhere(recount: Recount) -> Iterator[Finding]:
    for place, side, name in recount.from_nowhere():
        sentence = f"operand {side.upper()} of {name!r} is found on devices, but it changes and nothing read it before"
        yield Finding(code=Code.HELD, where=f"$.assignments[{place}].held_{side}", sentence=sentence)


def _covers(assignments: Sequence[Assignment], gemms: Mapping[str, Gemm]) -> Iterator[Finding]:
    """Each assignment against each shape among its GEMMs (one, where they are identical)."""
    for place, assignment in enumerate(assignments):
        where, tiles = f"$.assignments[{place}]", assignment.tiles
        if assignment.mode is Mode.SERVER:
            if len(tiles):
                yield Finding(code=Code.MODE, where=where, sentence="mode is 'server', but there are tiles")
            continue
        pinned = next((gemms[name] for name in assignment.gemms if gemms[name].pinned), None)
        if pinned is not None:
            sentence = f"mode must be 'server', only the server can compute {pinned.name!r}: {pinned.pinned}"
            yield Finding(code=Code.MODE, where=where, sentence=sentence)
            continue
        by_shape = {gemms[name].shape: name for name in reversed(assignment.gemms)}
        for shape, name in by_shape.items():
            flaw = cover_flaw(tiles, shape)
            if flaw is not None:
                yield flaw_finding(flaw, name, shape, where)
            elif gemms[name].chain is not None and (cut := _cut_tile(tiles, shape, "k")) is not None:
                sentence = f"tile {cut} cuts K of {name!r}, which is a chain: only its batch and its rows can be cut"
                yield Finding(code=Code.TILE, where=where, sentence=sentence)
            elif assignment.mode in _WHOLE_AXIS and (cut := _cut_tile(tiles, shape, _WHOLE_AXIS[assignment.mode])) is not None:
                sentence = f"mode is {assignment.mode.value!r}, but tile {cut} does not span {_WHOLE_AXIS[assignment.mode]}"
                yield Finding(code=Code.MODE, where=where, sentence=sentence)


def _cut_tile(tiles: Tiles, shape: GemmShape, axis: str) -> int | None:
    """The first tile that does not span ``axis``."""
    length = tiles.column(f"{axis}_stop") - tiles.column(f"{axis}_start")
    cut = np.flatnonzero(length != getattr(shape, axis))
    return int(cut[0]) if cut.size else None


def flaw_finding(flaw: Flaw, name: str, shape: GemmShape, where: str) -> Finding:
    """What ``flaw`` in the cover of GEMM ``name`` means, as a finding at the JSON path ``where``."""
    batch, m, n, k = flaw.point
    point = f"batch item {batch}, row {m}, column {n}, inner index {k} of {name!r}"
    holders = ", ".join(str(tile) for tile in flaw.tiles[:4])
    if flaw.outside:
        size = f"{shape.batch} x {shape.m} x {shape.n} x {shape.k}"
        return Finding(code=Code.OUTSIDE, where=where, sentence=f"tile {holders} holds {point}, outside its {size}")
    if not flaw.tiles:
        return Finding(code=Code.GAP, where=where, sentence=f"no tile computes {point}")
    return Finding(code=Code.OVERLAP, where=where, sentence=f"tiles {holders} all compute {point}")


def _device_memory(
    assignments: Sequence[Assignment], gemms: Mapping[str, Gemm], devices: Sequence[Device], recount: Recount
) -> Iterator[Finding]:
    """Each tile beside stream buffers and kept pieces, and one row and one column of whole depth in the buffers."""
    memory = np.array([device.memory_bytes for device in devices])
    left = memory - recount.kept_bytes()
    for place, assignment in enumerate(assignments):
        where = f"$.assignments[{place}]"
        classes = {gemms[name].class_key: gemms[name] for name in reversed(assignment.gemms)}
        for gemm in classes.values():
            price = recount.price(gemm)
            limits = _Limits(where=where, gemm=gemm.name, devices=devices)
            yield from limits.check(Code.DEVICE_MEMORY, "a tile of", price.memory_bytes, left)
            buffers = np.where(price.memory_bytes > 0, price.buffer_bytes, 0.0)
            yield from limits.check(
                Code.SMALLEST_TILE, "in stream buffers, one row and one column of", buffers, STREAM_SHARE * memory
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Compares what an assignment needs of devices with what they have; the worst device speaks for all."""

    where: str
    gemm: str
    devices: Sequence[Device]

    def check(self, code: Code, what: str, need: np.ndarray, limit: np.ndarray) -> Iterator[Finding]:
        """A finding when any device needs more than its limit (both in bytes, columns over devices)."""
        beyond = np.flatnonzero(need > limit * (1 + TOLERANCE))
        if not beyond.size:
            return
        worst = int(beyond[np.argmax(need[beyond] - limit[beyond])])
        more = f" (and {beyond.size - 1} more devices are short)" if beyond.size > 1 else ""
        required, available = format_value(float(need[worst]), Unit.BYTES), format_value(float(limit[worst]), Unit.BYTES)
        sentence = f"{what} {self.gemm!r} needs {required} on device {self.devices[worst].name}, which has {available}{more}"
        yield Finding(code=code, where=self.where, sentence=sentence)


def _server_memory(servers: Sequence[Server], figures: Figures) -> Iterator[Finding]:
    for server in servers:
        need = figures.server_memory_bytes[server.name]
        if need > server.memory_bytes * (1 + TOLERANCE):
            required, available = format_value(need, Unit.BYTES), format_value(server.memory_bytes, Unit.BYTES)
            sentence = f"parameters and live activations need {required} on server {server.name}, which has {available}"
            yield Finding(code=Code.SERVER_MEMORY, where=f"$.predicted.server_memory_bytes.{server.name}", sentence=sentence)
