"""What changed between two plans, on the terminal and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cleave_plan.plan.difference import Difference, GemmChange, Side
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, percent
from cleave_plan.report.workload import common_name
from cleave_plan.units import Unit, count, format_value, plural

CHANGES_SHOWN = 20


def difference_document(change: Difference) -> dict[str, Any]:
    """The JSON document of ``diff``."""
    return {"same": change.none} | asdict(change)


def difference_text(change: Difference, screen: Screen, *, before: str, after: str) -> str:
    """The terminal report; ``before`` and ``after`` are what the plans are called."""
    sheet = Sheet(screen)
    sheet.heading(f"From {before} to {after}")
    if change.none:
        sheet.verdict("The plans are the same.", good=True)
        return sheet.text()
    sheet.facts([Fact(name, f"{old or 'nothing'} -> {new or 'nothing'}") for name, (old, new) in change.made_for.items()])
    for names, word in ((change.devices_gone, "gone"), (change.devices_new, "new")):
        if names:
            sheet.notes([f"{plural(len(names), 'device')} {word}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"])
    if change.figures:
        sheet.heading("What is predicted")
        rows = [[name, _figure(name, old), _figure(name, new), _ratio(old, new)] for name, (old, new) in change.figures.items()]
        sheet.table([Column("figure", numeric=False), Column("before"), Column("after"), Column("change")], rows)
    sheet.heading(f"GEMMs: {count(sum(len(one.gemms) for one in change.gemms))} changed, {count(change.gemms_same)} are the same")
    if change.gemms:
        columns = [
            Column("GEMMs", numeric=False), Column("×"), Column("before", numeric=False), Column("after", numeric=False),
            Column("work that moves"),
        ]  # fmt: skip
        shown = sorted(change.gemms, key=lambda one: (-one.moved, one.gemms))
        sheet.table(columns, [_row(one) for one in shown[:CHANGES_SHOWN]])
        if len(shown) > CHANGES_SHOWN:
            sheet.notes([f"{len(shown) - CHANGES_SHOWN} more changes not listed; --json lists all"])
    return sheet.text()


def _row(change: GemmChange) -> list[str]:
    name = common_name(list(change.gemms))
    return [name, count(len(change.gemms)), _side(change.before), _side(change.after), percent(change.moved)]


def _side(side: Side | None) -> str:
    if side is None:
        return "not in the plan"
    where = f"at {', '.join(side.servers)}"
    if not side.work:
        return f"{side.mode} {where}"
    joined = f", {side.joined} as one" if side.joined > 1 else ""
    return f"{side.mode} over {side.devices}{joined} {where}"


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if name.endswith("_s"):
        return format_value(value, Unit.SECONDS)
    if name.endswith("_bytes"):
        return format_value(value, Unit.BYTES)
    return percent(value) if name == "gap" else count(int(value))


def _ratio(before: float | None, after: float | None) -> str:
    return f"× {after / before:.4g}" if before and after is not None else ""
