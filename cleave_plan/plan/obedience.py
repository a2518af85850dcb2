"""Does a plan obey its constraints? Findings name the constraint, the GEMM or device, and what the plan does instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from cleave_plan.fleet.device import Fleet
from cleave_plan.ordering import natural
from cleave_plan.plan.comparison import TOLERANCE
from cleave_plan.plan.constraints import Floats, caps_of, excluded, matches
from cleave_plan.plan.finding import Code, Finding
from cleave_plan.plan.objective import Figures
from cleave_plan.plan.plan import Assignment, Constraint, Plan
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.graph import Workload


def obedience(
    plan: Plan, products: Workload, assignments: Sequence[Assignment], fleet: Fleet, figures: Figures
) -> Iterator[Finding]:
    """Constraints that the plan breaks. Memory is not judged here: ``fleet`` as the constraints leave it already is less.

    ``products`` and ``assignments``: the workload as the plan joins it, and the assignments naming its GEMMs; ``figures``:
    recomputed from the tiles, with one entry for each level.
    """
    if not plan.constraints:
        return
    yield from _gemms(plan)
    yield from _exclusions(plan, fleet)
    yield from _caps(plan, products, assignments, fleet, figures)


def _finding(constraint: str, where: str, sentence: str) -> Finding:
    return Finding(code=Code.CONSTRAINT, where=where, sentence=f"constraint {constraint!r}: {sentence}")


def _gemms(plan: Plan) -> Iterator[Finding]:
    for place, assignment in enumerate(plan.assignments):
        for constraint in plan.constraints:
            name = next((name for name in assignment.gemms if matches(name, constraint.gemms)), None)
            if name is None:
                continue
            where = f"$.assignments[{place}]"
            if constraint.modes and assignment.mode not in constraint.modes:
                yield _finding(constraint.name, f"{where}.mode", f"{name!r} has mode {assignment.mode.value!r}")
            strangers = [server for server in assignment.servers if constraint.servers and server not in constraint.servers]
            if strangers:
                yield _finding(constraint.name, f"{where}.servers", f"{name!r} is on server {strangers[0]!r}")


def _exclusions(plan: Plan, fleet: Fleet) -> Iterator[Finding]:
    banned = excluded(plan.constraints, fleet)
    for place, assignment in enumerate(plan.assignments):
        used = {plan.device_names[i] for i in np.unique(assignment.tiles.device).tolist() if i < len(plan.device_names)}
        for device in sorted(used & banned.keys(), key=natural):
            where = f"$.assignments[{place}].device"
            yield _finding(banned[device], where, f"{device!r} computes a tile of {assignment.gemms[0]!r}")


def _caps(plan: Plan, products: Workload, assignments: Sequence[Assignment], fleet: Fleet, figures: Figures) -> Iterator[Finding]:
    """The worst device of each kind of cap speaks for all."""
    caps = caps_of(plan.constraints, fleet.devices)
    if not caps.any:
        return
    work = _work_shares(assignments, products, len(fleet.devices))
    time_s = np.max([level.device_executed_s for level in figures.levels], axis=0, initial=0.0)
    for used, cap, field in ((work, caps.work, "work"), (time_s, caps.time_s, "time_s")):
        beyond = np.flatnonzero(used > cap * (1 + TOLERANCE))
        if beyond.size:
            worst = int(beyond[np.argmax(used[beyond] / cap[beyond])])
            device, value = fleet.devices[worst].name, float(used[worst])
            shown = f"{value:.4g} of the work" if field == "work" else format_value(value, Unit.SECONDS)
            name = _capped_by(plan.constraints, device, field)
            yield _finding(name, "$.assignments", f"{device!r} has {shown} of a level")


def _capped_by(constraints: Sequence[Constraint], device: str, field: str) -> str:
    """The constraint whose cap on ``device`` is the smallest."""
    holding = [one for one in constraints if getattr(one, field) is not None and matches(device, one.devices)]
    return min(holding, key=lambda one: float(getattr(one, field))).name


def _work_shares(assignments: Sequence[Assignment], products: Workload, devices: int) -> Floats:
    """Each device's largest share of the multiply-adds of any level."""
    gemms = {gemm.name: gemm for gemm in products.gemms}
    total: defaultdict[int, int] = defaultdict(int)
    for gemm in products.gemms:
        total[gemm.level] += gemm.macs
    work: defaultdict[int, Floats] = defaultdict(lambda: np.zeros(devices + 1))
    for assignment in assignments:
        volume = np.bincount(assignment.tiles.device, _volumes(assignment), minlength=devices + 1)
        for name in assignment.gemms:
            work[gemms[name].level] += gemms[name].repeats * volume
    shares = [done[:-1] / total[level] for level, done in work.items() if total[level] > 0]
    return np.asarray(np.max(shares, axis=0)) if shares else np.zeros(devices)


def _volumes(assignment: Assignment) -> Floats:
    """Multiply-adds of each tile."""
    t = assignment.tiles
    sizes = (t.m_stop - t.m_start, t.n_stop - t.n_start, t.k_stop - t.k_start, t.batch_stop - t.batch_start)
    return np.asarray(np.prod([size.astype(float) for size in sizes], axis=0))
