"""Solvers are believed only as far as their answers can be checked: two of them agree, and neither is taken at its word."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pulp
import pytest
from planning_cases import device, fleet_of, gemm_of, server, workload_of

from cleave_plan.errors import CleaveError, InfeasibleError
from cleave_plan.plan.plan import SolverStatus
from cleave_plan.planning import planner, solver
from cleave_plan.planning.formulation import Program, Row
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.solver import Answer, Outcome, solve

BOTH = ("HiGHS", "CBC")


def random_program(seed: int) -> Program:
    """Choices like the planner's: 3 parts of 4 options with 2 copies, a time that two devices set, one memory."""
    rng = np.random.default_rng(seed)
    program = Program(continuous=["T"], goal={"T": 1.0})
    device_s, weights = rng.uniform(0.05, 1, (12, 2)), rng.uniform(0.05, 0.3, 12)
    for part in range(3):
        names = [f"z{4 * part + option}" for option in range(4)]
        program.integers |= dict.fromkeys(names, 2)
        program.rows.append(Row(name=f"choose/{part}", coefficients=dict.fromkeys(names, 1.0), relation="==", limit=2.0))
    for place in range(2):
        coefficients = {f"z{column}": float(device_s[column, place]) for column in range(12)} | {"T": -1.0}
        program.rows.append(Row(name=f"device/{place}", coefficients=coefficients, relation="<=", limit=0.0))
    memory = {f"z{column}": float(weights[column]) for column in range(12)}
    program.rows.append(Row(name="memory", coefficients=memory, relation="<=", limit=1.1))
    return program


def enumerated(program: Program) -> float:
    """The least objective of :func:`random_program`, by trying all 10 x 10 x 10 ways to choose."""
    shares = [counts for counts in product(range(3), repeat=4) if sum(counts) == 2]
    best = math.inf
    for counts in product(shares, repeat=3):
        values = {f"z{place}": count for place, count in enumerate(sum(counts, ()))}
        if sum(program.rows[-1].coefficients[key] * value for key, value in values.items()) <= 1.1:
            seconds = [sum(row.coefficients[key] * value for key, value in values.items()) for row in program.rows[3:5]]
            best = min(best, *[max(seconds)])
    return best


@pytest.mark.parametrize("seed", range(6))
def test_highs_cbc_and_trying_everything_agree(seed: int) -> None:
    """The same objective from both solvers, and it is the least there is."""
    program = random_program(seed)
    best = enumerated(program)
    for name in BOTH:
        answer = solve(program, gap=0.0, time_limit_s=20, solver=name)
        if math.isinf(best):
            assert answer.outcome is Outcome.INFEASIBLE
            assert answer.values == {}
        else:
            assert answer.outcome is Outcome.SOLVED
            assert answer.solver == name
            assert answer.objective == pytest.approx(best, rel=1e-6)


def test_highs_proves_its_answer() -> None:
    """The dual bound is the objective; CBC gives none, which is 0 and not a claim."""
    program = random_program(1)
    highs = solve(program, gap=0.0, time_limit_s=20, solver="HiGHS")
    assert highs.bound == pytest.approx(highs.objective, rel=1e-6)
    assert solve(program, gap=0.0, time_limit_s=20, solver="CBC").bound == 0.0


def test_the_five_variables_that_cbc_called_infeasible() -> None:
    """Large coefficients next to 0 and 1 (9000, 7200, 10800 to reach 16200): both find the cheapest pair."""
    sizes = {"a": 9000.0, "b": 7200.0, "c": 10800.0}
    program = Program(integers={"a": 1, "b": 1, "c": 1, "x": 1, "y": 1}, goal={"a": 9.0, "b": 7.5, "c": 10.0, "x": 1.0, "y": 2.0})
    program.rows.append(
        Row(name="reach", coefficients={key: -value for key, value in sizes.items()}, relation="<=", limit=-16200.0)
    )
    program.rows.append(Row(name="one", coefficients={"x": 1.0, "y": 1.0}, relation="==", limit=1.0))
    for name in BOTH:
        answer = solve(program, gap=0.0, time_limit_s=20, solver=name)
        assert answer.outcome is Outcome.SOLVED
        assert answer.objective == pytest.approx(9.0 + 7.5 + 1.0)
        assert [round(answer.values[key]) for key in "abcxy"] == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("name", BOTH)
def test_a_row_without_variables_counts(name: str) -> None:
    """A server whose memory is exceeded before anything is placed on it: nothing is feasible."""
    program = Program(integers={"z": 1}, goal={"z": 1.0})
    program.rows.append(Row(name="choose", coefficients={"z": 1.0}, relation="==", limit=1.0))
    program.rows.append(Row(name="memory", coefficients={}, relation="<=", limit=0.5))
    assert solve(program, gap=0.0, time_limit_s=20, solver=name).outcome is Outcome.SOLVED
    program.rows[-1].limit = -0.5
    try:
        outcome = solve(program, gap=0.0, time_limit_s=20, solver=name).outcome
    except CleaveError as error:  # a solver that drops an empty row is caught by our own check
        outcome = Outcome.INFEASIBLE if "memory" in str(error) else None
    assert outcome is Outcome.INFEASIBLE


class Tampering:
    """Stands in for ``pulp.LpProblem.solve``: solves, then changes what it found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, changes: dict[str, float], status: int | None = None) -> None:
        real = pulp.LpProblem.solve

        def tampered(problem: pulp.LpProblem, engine: pulp.LpSolver) -> int:
            code = int(real(problem, engine))
            for item in problem.variables():
                item.varValue = changes.get(item.name, item.varValue)
            problem.sol_status = problem.sol_status if status is None else status
            return code

        monkeypatch.setattr(pulp.LpProblem, "solve", tampered)


def small_program() -> Program:
    """Cheap z0 does not fit; z1 does."""
    program = Program(integers={"z0": 1, "z1": 1}, continuous=["T"], goal={"T": 1.0})
    program.rows.append(Row(name="choose", coefficients={"z0": 1.0, "z1": 1.0}, relation="==", limit=1.0))
    program.rows.append(Row(name="device", coefficients={"z0": 1.0, "z1": 2.0, "T": -1.0}, relation="<=", limit=0.0))
    program.rows.append(Row(name="memory/s0", coefficients={"z0": 1.5, "z1": 0.5}, relation="<=", limit=1.0))
    return program


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"z0": 1.0, "z1": 0.0}, "memory/s0"),
        ({"z0": 0.0, "z1": 0.0}, "choose"),
        ({"z1": 2.0}, "z1"),
        ({"z1": -1.0, "z0": 2.0}, "z0"),
    ],
)
def test_an_answer_that_breaks_a_row_is_refused(monkeypatch: pytest.MonkeyPatch, changes: dict[str, float], named: str) -> None:
    """What comes back is checked against every row and bound, and the broken one is named."""
    Tampering(monkeypatch, changes)
    with pytest.raises(CleaveError, match=named):
        solve(small_program(), gap=0.0, time_limit_s=20)


def test_times_follow_from_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T that the solver left too low or too high is what its rows make it, and the objective with it."""
    for wrong in (1.0, 1.999999, 50.0):
        Tampering(monkeypatch, {"T": wrong})
        answer = solve(small_program(), gap=0.0, time_limit_s=20)
        assert answer.values["T"] == pytest.approx(2.0, rel=1e-12)
        assert answer.objective == pytest.approx(2.0, rel=1e-12)


def test_an_incumbent_at_the_time_limit_is_not_called_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """PuLP may call a time-limited incumbent optimal; the clock knows better. An incumbent by status is none either."""
    Tampering(monkeypatch, {}, status=pulp.LpSolutionIntegerFeasible)
    assert solve(small_program(), gap=0.0, time_limit_s=20).outcome is Outcome.TIME_LIMITED
    Tampering(monkeypatch, {}, status=pulp.LpSolutionOptimal)
    assert solve(small_program(), gap=0.0, time_limit_s=20).outcome is Outcome.SOLVED
    clock = iter([0.0, 1.0, 21.5])
    monkeypatch.setattr(solver.time, "perf_counter", lambda: next(clock))
    answer = solve(small_program(), gap=0.0, time_limit_s=20)
    assert answer.outcome is Outcome.TIME_LIMITED
    assert (answer.build_s, answer.solve_s) == (1.0, 20.5)


def tiny_case() -> tuple[object, object]:
    gemms = [gemm_of("a", (1, 12, 8, 12), 0), gemm_of("b", (1, 9, 12, 10), 0), gemm_of("c", (1, 12, 8, 12), 1)]
    return workload_of(gemms), fleet_of(
        [device("d0"), device("d1", downlink_bytes_per_s=300.0)], [server(flop_per_s={"any": 100.0})]
    )


def test_a_plan_of_a_time_limited_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's status and gap are those of the incumbent and the dual bound, and a note says that it depends on the clock."""
    workload, fleet = tiny_case()
    proven = make_plan(workload, fleet, gap=0.0)
    assert proven.solver.status is SolverStatus.OPTIMAL
    assert not any("time limit" in note for note in proven.notes)
    real = solver.solve

    def limited(program: Program, **options: object) -> Answer:
        answer = real(program, **options)
        return Answer(
            outcome=Outcome.TIME_LIMITED, solver="HiGHS", values=answer.values, objective=answer.objective,
            bound=answer.objective * 0.9, build_s=0.0, solve_s=1.0,
        )  # fmt: skip

    monkeypatch.setattr(planner, "solve", limited)
    plan = make_plan(workload, fleet, time_limit_s=7.0)
    assert plan.solver.status is SolverStatus.TIME_LIMITED
    assert plan.solver.gap == pytest.approx(0.1)
    assert any("time limit of 7 s" in note for note in plan.notes)


def test_cbc_takes_over_where_highs_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan, by name of the other solver."""
    workload, fleet = tiny_case()
    with_highs = make_plan(workload, fleet, gap=0.0)
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    assert solver.available() == ["CBC"]
    with_cbc = make_plan(workload, fleet, gap=0.0)
    assert (with_highs.solver.name, with_cbc.solver.name) == ("HiGHS", "CBC")
    assert with_cbc.predicted.ideal_levels_s == pytest.approx(with_highs.predicted.ideal_levels_s, rel=1e-9)


def test_no_solver_at_all_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither HiGHS nor CBC: a sentence, and how to get one."""
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "available", lambda self: False)
    with pytest.raises(CleaveError, match="pip install highspy"):
        solve(small_program(), gap=0.0, time_limit_s=20)
    with pytest.raises(CleaveError, match="no solver SCIP"):
        solve(small_program(), gap=0.0, time_limit_s=20, solver="SCIP")


def test_a_second_solver_is_asked_before_a_program_is_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first solver finds nothing, the other one, by name, has the last word."""
    asked: list[str | None] = []
    real = solver.solve

    def first_finds_nothing(program: Program, **options: object) -> Answer:
        asked.append(options.get("solver"))
        if len(asked) == 1:
            return Answer(
                outcome=Outcome.INFEASIBLE, solver="HiGHS", values={}, objective=math.inf, bound=0.0, build_s=0.0, solve_s=0.0
            )
        return real(program, **options)

    monkeypatch.setattr(planner, "solve", first_finds_nothing)
    assert make_plan(*tiny_case(), without=frozenset({"reuse"})).solver.name == "CBC"
    assert asked == [None, "CBC"]


def test_weights_that_fit_no_server_give_required_and_available() -> None:
    """Exit 3 with the bytes that the model needs and those of every server."""
    workload, fleet = workload_of([gemm_of("a", (1, 4, 100, 100))]), fleet_of([device("d0")], [server(memory_bytes=30_000.0)])
    with pytest.raises(InfeasibleError) as caught:
        make_plan(workload, fleet)
    assert caught.value.exit_code == 3
    assert caught.value.facts["required"] == 40_000
    assert caught.value.facts["available"] == {"s0": 30_000.0}
    assert "40 kB" in str(caught.value)


def test_a_gemm_that_fits_nowhere_gives_required_and_available() -> None:
    """No device's stream buffers hold a row and a column of K = 1000, and the server may not compute."""
    workload = workload_of([gemm_of("deep", (1, 4, 1000, 4))])
    fleet = fleet_of([device("d0", memory_bytes=70_000.0), device("d1", memory_bytes=79_999.0)])
    with pytest.raises(InfeasibleError) as caught:
        make_plan(workload, fleet, without=frozenset({"server"}))
    assert caught.value.exit_code == 3
    assert caught.value.facts["required"] == 8000
    assert caught.value.facts["available"] == pytest.approx({"d0": 7000.0, "d1": 7999.9})
    assert "deep" in str(caught.value)
    assert make_plan(workload, fleet).predicted.devices_used == 0
    enough = fleet_of([device("d0", memory_bytes=70_000.0), device("d1", memory_bytes=80_000.0)])
    assert make_plan(workload, enough, without=frozenset({"server"})).predicted.devices_used == 1
