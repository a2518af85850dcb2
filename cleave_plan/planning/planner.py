"""A workload and a fleet in, a plan out: options, program, answer, and the figures recomputed from the tiles.

What the plan predicts is never the program's objective: it is priced again from the assignments, level by level, and
the two must agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cleave_plan.errors import CleaveError, InfeasibleError, UsageError
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.percentile import at_percentile, told
from cleave_plan.plan.plan import Constraint, Plan, Reference, SolverReport, SolverStatus
from cleave_plan.planning.candidates import Candidates, total_bound
from cleave_plan.planning.chains import usable_chains
from cleave_plan.planning.constrained import plan_under
from cleave_plan.planning.decide import Decision, assignments_of, decisions_of
from cleave_plan.planning.formulation import Program, build_program
from cleave_plan.planning.placing import base_memory
from cleave_plan.planning.predict import notes_of, predict
from cleave_plan.planning.resident import prepare, solve_with_kept
from cleave_plan.planning.rules import Rules
from cleave_plan.planning.solver import Answer, Outcome, available, solve
from cleave_plan.planning.tied import tied_bounds
from cleave_plan.progress import Progress, silent
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.graph import Workload
from cleave_plan.workload.joined import view_of

SWITCHES = frozenset({"server", "shared", "inner", "level-joint", "chains", "reuse"})
"""What ``without`` may name."""

_AGREEMENT = 1e-6


def make_plan(
    workload: Workload,
    fleet: Fleet,
    *,
    without: frozenset[str] = frozenset(),
    constraints: Sequence[Constraint] = (),
    percentile: float | None = None,
    gap: float = 1e-3,
    time_limit_s: float = 60.0,
    progress: Progress = silent,
) -> Plan:
    """The best plan found for one batch of ``workload`` on ``fleet``.

    ``without`` switches features off: "server" forbids GEMMs on the server, "shared" the joining of GEMMs that share an
    operand or a result, "inner" the cutting of K, "level-joint" the sharing of the fleet by groups of devices in levels of
    several GEMMs, "chains" the computing of attention as one piece of work, "reuse" the keeping of operands on devices.
    ``constraints`` are a user's demands, which the plan obeys and lists. ``percentile``: figures that were measured with their
    spread are taken at that percentile of their samples (:mod:`cleave_plan.fleet.percentile`), times and bound are those of
    that fleet, and notes say what varies.
    ``gap`` is the integer program's relative gap (not the plan's, which is proven against the lower bound),
    ``time_limit_s`` bounds its solve. Raises InfeasibleError (exit 3) when no plan exists, naming constraints in conflict, and
    MissingFigureError when the fleet lacks a figure that is needed.
    """
    unknown = without - SWITCHES
    if unknown:
        raise UsageError(f"cannot plan without {', '.join(sorted(unknown))}", expected=f"one of {', '.join(sorted(SWITCHES))}")

    def plan(tagged: Workload, view: Fleet, rules: Rules) -> Plan:
        return _plan(tagged, view, rules, without, gap, time_limit_s, progress)

    slower = at_percentile(fleet, percentile)
    made = plan_under(constraints, workload, slower, plan) if constraints else plan(workload, slower, Rules())
    if percentile is None:
        return made
    return replace(made, percentile=percentile, notes=(*made.notes, *told(fleet, percentile)))


def _plan(
    workload: Workload, fleet: Fleet, rules: Rules, without: frozenset[str], gap: float, time_limit_s: float, progress: Progress
) -> Plan:
    """The plan of a workload whose GEMMs carry ``rules``."""
    chains = () if "chains" in without else usable_chains(workload, fleet)
    view = view_of(workload, shared="shared" not in without, chains=[chain for chain in chains if rules.keep(chain, workload)])
    found = Candidates(
        view=view, fleet=fleet, server_allowed="server" not in without, level_joint="level-joint" not in without,
        inner="inner" not in without, rules=rules,
    )  # fmt: skip
    reuse = "reuse" not in without and rules.caps is None
    if reuse:
        prepare(found)
    found.collect(progress)
    base = base_memory(workload, fleet)
    unit_s = total_bound(found.classes, found.bounds) or 1.0
    program = build_program(found.classes, found.choices, fleet, base, unit_s)
    answer = _solved(program, found, base, gap, time_limit_s)
    if reuse:
        kept = solve_with_kept(found, base, answer, unit_s, lambda program: solve(program, gap=gap, time_limit_s=time_limit_s))
        if kept is None:
            return _plan(workload, fleet, rules, without | {"reuse"}, gap, time_limit_s, progress)
        program, answer = kept
        found.bounds = tied_bounds(found, found.classes, found.bounds)
    decisions = decisions_of(found, answer.values)
    assignments = assignments_of(found, decisions)
    predicted = predict(found, decisions, assignments, base)
    _agree(program, answer, predicted.ideal_levels_s)
    return Plan(
        model=Reference(name=workload.name, sha256=workload.sha256),
        fleet=Reference(name=fleet.name, sha256=fleet.sha256),
        dims=dict(workload.dims), shapes=dict(workload.shapes), trips=dict(workload.trips), training=workload.training,
        recompute=workload.recompute,
        settings={"without": ",".join(sorted(without)), "gap": f"{gap:g}", "time_limit_s": f"{time_limit_s:g}"},
        device_names=tuple(device.name for device in fleet.devices),
        server_names=tuple(server.name for server in fleet.servers),
        assignments=assignments, predicted=predicted, solver=_report(program, answer, gap),
        notes=(*notes_of(view, predicted, without), *_clock_notes(answer, time_limit_s)),
    )  # fmt: skip


def _clock_notes(answer: Answer, time_limit_s: float) -> list[str]:
    """That the plan depends on the clock, where it does; every other plan is the same each time."""
    if answer.outcome is not Outcome.TIME_LIMITED:
        return []
    limit = format_value(time_limit_s, Unit.SECONDS)
    return [
        f"the integer program stopped at its time limit of {limit}: another run or a faster machine may give another plan "
        "(--time-limit raises it, --gap lets it stop by proof)"
    ]


def _solved(program: Program, found: Candidates, base: list[float], gap: float, time_limit_s: float) -> Answer:
    """The program's answer; an infeasible one is explained, and a solver's word for it is not taken alone."""
    answer = solve(program, gap=gap, time_limit_s=time_limit_s)
    if answer.values or answer.outcome is Outcome.SOLVED:
        return answer
    _explain_memory(found, base)
    for other in available():
        if other != answer.solver:
            second = solve(program, gap=gap, time_limit_s=time_limit_s, solver=other)
            if second.values:
                return second
    if answer.outcome is Outcome.TIME_LIMITED:
        raise CleaveError(
            f"{answer.solver} found no plan in {time_limit_s:g} s", remedy="raise --time-limit or use fewer servers"
        )
    raise InfeasibleError(
        f"{answer.solver} finds no placement of the weights that fits the servers' memory",
        where=f"fleet {found.fleet.name}",
        facts={"unit": "byte", "required": sum(base), "available": _capacities(found.fleet)},
        remedy="give a server more memory or add one",
    )


def _explain_memory(found: Candidates, base: list[float]) -> None:
    """Raise InfeasibleError with required and available bytes when the servers together are too small."""
    weights = {(choice.level, choice.part): choice.weight_bytes for choice in found.choices}
    needed = sum(base) + sum(size * found.classes[level].count for (level, _), size in weights.items())
    capacity = _capacities(found.fleet)
    if needed <= sum(capacity.values()) and base[0] <= found.fleet.servers[0].memory_bytes:
        return
    available = ", ".join(f"{name} {format_value(size, Unit.BYTES)}" for name, size in capacity.items())
    raise InfeasibleError(
        f"the servers cannot hold the model: required {format_value(needed, Unit.BYTES)} (of that "
        f"{format_value(base[0], Unit.BYTES)} on the first: live activations, parameters outside GEMMs), available {available}",
        where=f"fleet {found.fleet.name}",
        remedy="give the servers more memory, add a server, or use a smaller batch",
        facts={
            "unit": "byte", "required": needed, "required_on_first": base[0], "available": capacity,
            "available_on_devices": {device.name: device.memory_bytes for device in found.fleet.devices},
        },
    )  # fmt: skip


def _capacities(fleet: Fleet) -> Mapping[str, float]:
    return {server.name: server.memory_bytes for server in fleet.servers}


def _agree(program: Program, answer: Answer, ideal_levels_s: float) -> None:
    """The objective and the plan priced from its tiles must be the same number."""
    objective = answer.objective * program.unit_s
    if not math.isclose(objective, ideal_levels_s, rel_tol=_AGREEMENT, abs_tol=1e-12):
        raise CleaveError(
            f"the program's objective is {objective:.9g} s, its tiles take {ideal_levels_s:.9g} s",
            remedy="report this plan with the model and the fleet",
        )


def _report(program: Program, answer: Answer, gap: float) -> SolverReport:
    bound = max(answer.bound, 0.0)
    left = 1 - bound / answer.objective if answer.objective > 0 else 0.0
    if answer.outcome is Outcome.TIME_LIMITED or left > max(gap, 1e-9) + 1e-9:
        status = SolverStatus.TIME_LIMITED
    else:
        status = SolverStatus.OPTIMAL if left <= 1e-6 else SolverStatus.WITHIN_GAP
    return SolverReport(
        name=answer.solver, status=status, objective=answer.objective * program.unit_s, bound=bound * program.unit_s,
        gap=max(left, 0.0), build_s=answer.build_s, solve_s=answer.solve_s,
        variables=len(program.integers) + len(program.continuous), rows=len(program.rows),
    )  # fmt: skip


__all__ = ["SWITCHES", "Decision", "make_plan"]
