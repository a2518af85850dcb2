"""What can be said about a plan whose model or fleet is not at hand: less than the second opinion, and it says so.

Proved without both: the tiles of each assignment fill a box exactly once (the GEMM's own box where the model is given,
else the smallest box around the tiles), and the totals are those of the levels. The model adds its hash and that
each of its GEMMs is planned once; the fleet adds its hash and names. Memory, the times of tiles and the objective need
both: see :func:`cleave_plan.plan.verify.verify`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.comparison import same
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.plan.finding import Code, Finding, Verdict
from cleave_plan.plan.identity import decisions, names, same_fleet, same_model
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.plan.verify import flaw_finding
from cleave_plan.workload.gemm import GemmShape
from cleave_plan.workload.graph import Workload

NEEDS_MODEL = ("the model's hash", "that every GEMM of the model is planned, at its full size")
NEEDS_FLEET = ("the fleet's hash and names",)
NEEDS_BOTH = ("memory of devices and servers", "the time of each tile, and with it the objective")


def not_checked(workload: Workload | None, fleet: Fleet | None) -> tuple[str, ...]:
    """What :func:`consistency` cannot know with what it is given, in words."""
    missing: tuple[str, ...] = ()
    if workload is None:
        missing += NEEDS_MODEL
    if fleet is None:
        missing += NEEDS_FLEET
    return missing + NEEDS_BOTH if missing else ()


def consistency(plan: Plan, workload: Workload | None = None, fleet: Fleet | None = None) -> Verdict:
    """Judge ``plan`` by itself, with its model or with its fleet; the figures of the verdict are None."""
    findings = [*_covers(plan, workload), *_totals(plan)]
    if workload is not None:
        findings = [*same_model(plan, workload), *decisions(plan, {gemm.name: gemm for gemm in workload.gemms}), *findings]
    if fleet is not None:
        findings = [*same_fleet(plan, fleet), *names(plan, fleet), *findings]
    gemms = sum(len(assignment.gemms) for assignment in plan.assignments)
    tiles = sum(len(assignment.tiles) for assignment in plan.assignments)
    return Verdict(findings=tuple(findings), figures=None, gemms=gemms, tiles=tiles)


def _covers(plan: Plan, workload: Workload | None) -> Iterator[Finding]:
    shapes = {gemm.name: gemm.shape for gemm in workload.gemms} if workload is not None else {}
    for place, assignment in enumerate(plan.assignments):
        if assignment.mode is Mode.SERVER:
            continue
        where = f"$.assignments[{place}]"
        if not len(assignment.tiles):
            yield Finding(code=Code.GAP, where=where, sentence=f"no tile computes anything of {assignment.gemms[0]!r}")
            continue
        name = assignment.gemms[0]
        shape = shapes.get(name, _box_around(assignment))
        flaw = cover_flaw(assignment.tiles, shape)
        if flaw is not None:
            yield flaw_finding(flaw, name, shape, where)


def _box_around(assignment: Assignment) -> GemmShape:
    """The smallest GEMM that the tiles could be all of."""
    tiles = assignment.tiles
    return GemmShape(*(int(stops.max()) for stops in (tiles.batch_stop, tiles.m_stop, tiles.k_stop, tiles.n_stop)))


def _totals(plan: Plan) -> Iterator[Finding]:
    """Sums over the levels and over the tiles, beside what the plan says of itself."""
    p = plan.predicted
    used = {device for assignment in plan.assignments for device in assignment.tiles.device.tolist()}
    used.discard(len(plan.device_names))  # the server's own tiles
    sums = {
        "levels_s": math.fsum(level.executed_s * level.count for level in p.levels),
        "ideal_levels_s": math.fsum(level.ideal_s * level.count for level in p.levels),
        "batch_s": p.levels_s + p.server_operators_s,
        "gap": 1 - p.bound_s / p.ideal_levels_s if p.ideal_levels_s > 0 else 0.0,
        "devices_used": len(used),
        "devices_total": len(plan.device_names),
    }
    for name, found in sums.items():
        stated = getattr(p, name)
        if not same(stated, found, scale=1.0 if name == "gap" else 0.0):
            sentence = f"the plan says {stated!r}, its own parts give {found!r}"
            yield Finding(code=Code.FIGURE, where=f"$.predicted.{name}", sentence=sentence)
