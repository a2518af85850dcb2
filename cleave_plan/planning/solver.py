"""The only room that knows PuLP: a :class:`Program` goes in, a checked :class:`Answer` comes out.

HiGHS solves when it is installed, CBC otherwise. PuLP calls a time-limited incumbent "Optimal" and CBC can leave an
infeasible point in the variables, so what comes back is rounded and checked against every row here; the dual bound is
HiGHS's own (CBC gives none), and an answer is called optimal only when its gap to a bound is within the tolerance asked for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pulp

from cleave_plan.errors import CleaveError
from cleave_plan.planning.formulation import Program

_ROW_TOLERANCE = 1e-6


class Outcome(Enum):
    """How a solve ended; there is no other way."""

    SOLVED = "solved"
    TIME_LIMITED = "time-limited"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``values`` of all variables (empty when infeasible or nothing was found), objective and dual bound in the
    program's units (bound 0 when unknown), seconds to build and to solve."""

    outcome: Outcome
    solver: str
    values: dict[str, float]
    objective: float
    bound: float
    build_s: float
    solve_s: float


def solve(program: Program, *, gap: float, time_limit_s: float, solver: str | None = None) -> Answer:
    """Minimise ``program`` to a relative ``gap``; ``solver`` "HiGHS" or "CBC" (default: the first that is installed).

    Raises CleaveError when the solver's answer violates a row, or when that solver is not installed.
    """
    name, engine = _engine(solver, gap, time_limit_s)
    if not program.integers:
        return _nothing_to_choose(program, name)
    started = time.perf_counter()
    model, variables = _translate(program)
    built = time.perf_counter()
    with quiet_stdout():
        model.solve(engine)
    solved = time.perf_counter()
    times = {"build_s": built - started, "solve_s": solved - built}
    if model.sol_status in (pulp.LpSolutionInfeasible, pulp.LpSolutionUnbounded, pulp.LpSolutionNoSolutionFound):
        limited = solved - built >= time_limit_s
        outcome = Outcome.TIME_LIMITED if limited else Outcome.INFEASIBLE
        return Answer(outcome=outcome, solver=name, values={}, objective=math.inf, bound=0.0, **times)
    values = {key: float(item.varValue or 0.0) for key, item in variables.items()}
    values.update({key: float(round(values[key])) for key in program.integers})
    _tighten(program, values)
    _check(program, values, name)
    objective = sum(value * values[key] for key, value in program.goal.items())
    proven = model.sol_status == pulp.LpSolutionOptimal and solved - built < time_limit_s
    return Answer(
        outcome=Outcome.SOLVED if proven else Outcome.TIME_LIMITED, solver=name, values=values, objective=objective,
        bound=_dual_bound(model, name, objective), **times,
    )  # fmt: skip


def _nothing_to_choose(program: Program, name: str) -> Answer:
    """The answer for a model without GEMMs; solvers do not agree on what to call a program without variables."""
    holds = all(row.limit >= 0 for row in program.rows)
    return Answer(
        outcome=Outcome.SOLVED if holds else Outcome.INFEASIBLE, solver=name, values={}, objective=0.0 if holds else math.inf,
        bound=0.0, build_s=0.0, solve_s=0.0,
    )  # fmt: skip


def available() -> list[str]:
    """Names of the solvers that are installed, the preferred one first."""
    engines = {"HiGHS": pulp.HiGHS(msg=False), "CBC": pulp.PULP_CBC_CMD(msg=False)}
    return [name for name, engine in engines.items() if engine.available()]


def _engine(solver: str | None, gap: float, time_limit_s: float) -> tuple[str, pulp.LpSolver]:
    names = available()
    name = solver or (names[0] if names else "")
    if name not in names:
        raise CleaveError(
            f"no solver {name or 'at all'} is installed", expected="HiGHS (highspy) or CBC", remedy="run `pip install highspy`"
        )
    if name == "HiGHS":
        return name, pulp.HiGHS(msg=False, gapRel=gap, timeLimit=time_limit_s, threads=1)
    return name, pulp.PULP_CBC_CMD(msg=False, gapRel=gap, timeLimit=time_limit_s, threads=1)


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Nothing that a solver prints reaches stdout, which belongs to our caller (``--json``).

    Some versions of HiGHS print a banner when they are constructed, before they can be told not to, and below Python.
    """
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _translate(program: Program) -> tuple[pulp.LpProblem, dict[str, pulp.LpVariable]]:
    """The PuLP model of ``program``."""
    model = pulp.LpProblem("plan", pulp.LpMinimize)
    variables = {key: pulp.LpVariable(key, 0, most, cat=pulp.LpInteger) for key, most in program.integers.items()}
    variables |= {key: pulp.LpVariable(key, 0) for key in program.continuous}
    model += pulp.LpAffineExpression([(variables[key], value) for key, value in program.goal.items()])
    senses = {"<=": pulp.LpConstraintLE, "==": pulp.LpConstraintEQ}
    for place, row in enumerate(program.rows):
        expression = pulp.LpAffineExpression([(variables[key], value) for key, value in row.coefficients.items()])
        model += pulp.LpConstraint(expression, senses[row.relation], f"r{place}", row.limit)
    return model, variables


def _tighten(program: Program, values: dict[str, float]) -> None:
    """Set each continuous variable (one a row, with a negative coefficient) to the least that its rows allow.

    Solvers leave it short by their feasibility tolerance, relative to large coefficients; integers need no such care.
    """
    least = dict.fromkeys(program.continuous, 0.0)
    for row in program.rows:
        for name in row.coefficients.keys() & least.keys():
            rest = sum(value * values[key] for key, value in row.coefficients.items() if key != name)
            least[name] = max(least[name], (rest - row.limit) / -row.coefficients[name])
    values.update(least)


def _check(program: Program, values: dict[str, float], solver: str) -> None:
    """Every bound and row, from the rounded values alone."""
    for key, most in program.integers.items():
        if not 0 <= values[key] <= most:
            raise CleaveError(f"{solver} returned {key} = {values[key]}", expected=f"0 to {most}", remedy="report this plan")
    for row in program.rows:
        total = sum(value * values[key] for key, value in row.coefficients.items())
        slack = _ROW_TOLERANCE * max(1.0, abs(row.limit), *(abs(value) for value in row.coefficients.values()))
        if total > row.limit + slack or (row.relation == "==" and total < row.limit - slack):
            raise CleaveError(
                f"{solver} returned an answer that violates {row.name}: {total:.9g} {row.relation} {row.limit:.9g} does not hold",
                remedy="report this plan with the model and the fleet",
            )


def _dual_bound(model: pulp.LpProblem, solver: str, objective: float) -> float:
    if solver != "HiGHS":
        return 0.0
    info = model.solverModel.getInfo()
    bound = float(info.mip_dual_bound)
    return bound if math.isfinite(bound) and bound <= objective * (1 + 1e-6) else 0.0
