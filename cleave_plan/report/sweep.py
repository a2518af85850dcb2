"""A sweep on the terminal and as a JSON document: the curve and its knee."""

from __future__ import annotations

from typing import Any

from cleave_plan.planning.sweep import NEAR, Sweep, SweepPoint
from cleave_plan.report.tables import Column, Screen, Sheet, percent
from cleave_plan.units import Unit, count, format_value

BAR = 24
"""Characters of the longest bar."""


def sweep_document(found: Sweep) -> dict[str, Any]:
    """The JSON document of ``plan --sweep``."""
    return {
        "over": found.over, "knee": found.knee, "knee_share": NEAR,
        "measure": "value / batch_s" if found.throughput else "batch_s",
        "points": [_point(point) for point in found.points],
    }  # fmt: skip


def sweep_text(found: Sweep, screen: Screen, *, model: str, fleet: str) -> str:
    """The curve as a table with bars, and the sentence that names the knee."""
    sheet = Sheet(screen)
    sheet.heading(f"Plans of {model} over {fleet}, by {found.over}")
    columns = [
        Column(found.over), Column("batch time"), Column("bound"), Column("gap"), Column("devices used"),
        Column("binds", numeric=False), Column("", numeric=False),
    ]  # fmt: skip
    if found.throughput:
        columns.insert(2, Column("per second"))
    longest = max((point.plan.predicted.batch_s for point in found.points if point.plan), default=0.0)
    sheet.table(columns, [_row(point, found.throughput, longest) for point in found.points])
    for point in found.points:
        if point.plan is None:
            sheet.notes([f"{found.over} = {point.value}: no plan; {point.reason}"])
    sheet.verdict(_verdict(found), good=found.knee is not None)
    return sheet.text()


def _verdict(found: Sweep) -> str:
    if found.knee is None:
        return "No point has a plan."
    what = "throughput" if found.throughput else "time"
    return f"Knee: {found.over} = {count(found.knee)}, the least whose {what} is within {percent(NEAR)} of the best here."


def _point(point: SweepPoint) -> dict[str, Any]:
    if point.plan is None:
        return {"value": point.value, "feasible": False, "reason": point.reason}
    p = point.plan.predicted
    return {
        "value": point.value, "feasible": True, "batch_s": p.batch_s, "levels_s": p.levels_s, "bound_s": p.bound_s,
        "gap": p.gap, "devices_used": p.devices_used, "devices_total": p.devices_total, "binds": point.binds,
        "solver_status": point.plan.solver.status.value,
    }  # fmt: skip


def _row(point: SweepPoint, throughput: bool, longest: float) -> list[str]:
    if point.plan is None:
        return [count(point.value), "none", *([""] if throughput else []), "", "", "", "no plan", ""]
    p = point.plan.predicted
    row = [
        count(point.value), format_value(p.batch_s, Unit.SECONDS), format_value(p.bound_s, Unit.SECONDS), percent(p.gap),
        f"{count(p.devices_used)} of {count(p.devices_total)}", point.binds,
        "#" * max(1, round(BAR * p.batch_s / longest)) if longest > 0 else "",
    ]  # fmt: skip
    if throughput:
        row.insert(2, f"{point.value / p.batch_s:.4g}" if p.batch_s > 0 else "")
    return row
