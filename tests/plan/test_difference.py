"""What `diff` finds between two plans, change by change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import assigned, example, rows_of, with_tiles

from cleave_plan.plan.difference import difference
from cleave_plan.plan.plan import Mode, Plan, Reference


def test_a_plan_is_itself() -> None:
    """Nothing differs; how long the solver took does not count."""
    plan = example()[0]
    found = difference(plan, replace(plan, solver=replace(plan.solver, solve_s=9.0)))
    assert found.none
    assert found.gemms_same == 3


def test_what_it_was_made_for() -> None:
    """Model, fleet, bindings, phase, settings and servers, each with both values."""
    plan = example()[0]
    other = replace(
        plan, model=Reference(name="toy", sha256="c" * 64), dims={"batch": 4, "seq": 8}, settings={"gap": "0.01"}, training=True,
        server_names=("s0",),
    )  # fmt: skip
    assert difference(plan, other).made_for == {
        "model": (f"toy ({'a' * 12})", f"toy ({'c' * 12})"), "training": ("false", "true"), "servers": ("s0, s1", "s0"),
        "dims.batch": ("2", "4"), "dims.seq": ("", "8"), "settings.gap": ("0.001", "0.01"),
    }  # fmt: skip


def test_figures() -> None:
    """Only those that changed, the ones that are absent as None."""
    plan = example()[0]
    other = replace(plan, predicted=replace(plan.predicted, batch_s=1.5, one_device_s=2.0))
    assert difference(plan, other).figures == {"batch_s": (plan.predicted.batch_s, 1.5), "one_device_s": (None, 2.0)}


def test_work_that_moves() -> None:
    """8 x 6 outputs: rows 0-4 and 5-7 of columns 0-2 on d0 and d1, columns 3-5 on d2. When d0 and d1 swap, the 15 of d0 and
    the 9 of d1 become 9 and 15: 6 of 48 change hands. Equal GEMMs are one change, the third is the same."""
    plan = example()[0]
    rows = rows_of(plan.assignments[0])
    swapped = [({0: 1, 1: 0}.get(row[0], row[0]), *row[1:]) for row in rows]
    found = difference(plan, with_tiles(plan, 0, swapped))
    (change,) = found.gemms
    assert change.gemms == ("l0.fc", "l1.fc")
    assert change.moved == pytest.approx(6 / 48)
    assert change.before is not None
    assert dict(change.before.work) == pytest.approx({"d0": 15 / 48, "d1": 9 / 48, "d2": 24 / 48})
    assert found.gemms_same == 1
    assert difference(with_tiles(plan, 0, swapped), plan).gemms[0].moved == pytest.approx(6 / 48)


def test_modes_servers_and_missing_gemms() -> None:
    """To the server, to another server, and away: everything moves in the first and last, nothing in the second."""
    plan = example()[0]
    whole = assigned(["l0.fc", "l1.fc"], [], mode=Mode.SERVER)
    changes = {name: change for change in difference(plan, _with(plan, 0, whole)).gemms for name in change.gemms}
    assert changes["l0.fc"].moved == pytest.approx(1)
    assert (changes["l0.fc"].before.mode, changes["l0.fc"].after.mode) == ("two-dimensional", "server")  # type: ignore[union-attr]
    placed = replace(plan.assignments[0], servers=("s0",), shares=(1.0,))
    assert [change.moved for change in difference(plan, _with(plan, 0, placed)).gemms] == [0.0]
    gone = difference(plan, replace(plan, assignments=plan.assignments[:1])).gemms
    assert [(change.gemms, change.after, change.moved) for change in gone] == [(("head",), None, 1.0)]


def test_devices_come_and_go() -> None:
    """By name."""
    plan = example()[0]
    found = difference(plan, replace(plan, device_names=("d0", "d9", "d2")))
    assert (found.devices_gone, found.devices_new) == (("d1",), ("d9",))


def _with(plan: Plan, place: int, assignment: object) -> Plan:
    assignments = list(plan.assignments)
    assignments[place] = assignment  # type: ignore[call-overload]
    return replace(plan, assignments=tuple(assignments))
