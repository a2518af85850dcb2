"""What is said of a plan whose model or fleet is not at hand, and that it claims no more than it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import example, rows_of, with_tiles

from cleave_plan.plan.consistency import consistency, not_checked
from cleave_plan.plan.finding import Code

PLAN, WORKLOAD, FLEET = example()
TILES = rows_of(PLAN.assignments[0])


def test_a_right_plan_holds_with_whatever_is_at_hand() -> None:
    """No findings and no figures; what is missing is listed, and nothing is when both are there."""
    for workload in (None, WORKLOAD):
        for fleet in (None, FLEET):
            verdict = consistency(PLAN, workload, fleet)
            assert verdict.findings == ()
            assert verdict.figures is None
            assert bool(not_checked(workload, fleet)) == (workload is None or fleet is None)


def test_the_model_and_the_fleet_are_judged_where_they_are_given() -> None:
    """A plan for another model and fleet: each is noticed only beside the one that is given."""
    other = replace(PLAN, model=replace(PLAN.model, sha256="c" * 64), fleet=replace(PLAN.fleet, sha256="d" * 64))
    assert consistency(other).ok
    assert [finding.code for finding in consistency(other, WORKLOAD).findings] == [Code.MODEL]
    assert [finding.code for finding in consistency(other, None, FLEET).findings] == [Code.FLEET]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([*TILES[:2], (2, 0, 8, 4, 6, 0, 4, 0, 1)], Code.GAP),
        ([*TILES, TILES[0]], Code.OVERLAP),
        ([], Code.GAP),
    ],
)
def test_holes_show_without_the_model(rows: list[tuple[int, ...]], code: Code) -> None:
    """A hole or an overlap inside the box around the tiles needs no model to be seen."""
    assert code in {finding.code for finding in consistency(with_tiles(PLAN, 0, rows)).findings}


def test_a_missing_edge_needs_the_model() -> None:
    """The last columns left out: the rest is a perfect smaller box, and only the model knows better."""
    cut = with_tiles(PLAN, 0, [*TILES[:2], (2, 0, 8, 3, 5, 0, 4, 0, 1)])
    assert consistency(cut).ok
    assert [finding.code for finding in consistency(cut, WORKLOAD).findings] == [Code.GAP]


@pytest.mark.parametrize(
    "changes",
    [{"levels_s": 1.0}, {"ideal_levels_s": 1.0}, {"batch_s": 1.0}, {"gap": 0.1}, {"devices_used": 1}, {"devices_total": 9}],
)
def test_totals_are_the_sums_of_the_plans_own_parts(changes: dict[str, float]) -> None:
    """An edited total disagrees with the levels and tiles beside it."""
    edited = replace(PLAN, predicted=replace(PLAN.predicted, **changes))
    assert f"$.predicted.{next(iter(changes))}" in {finding.where for finding in consistency(edited).findings}
