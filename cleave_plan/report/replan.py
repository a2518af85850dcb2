"""A re-planned plan on the terminal and as a JSON document: what moved, and what it costs."""

from __future__ import annotations

from typing import Any

from cleave_plan.plan.plan import Plan
from cleave_plan.planning.replan import Replanned
from cleave_plan.report.tables import Fact, Screen, Sheet, percent
from cleave_plan.units import Unit, format_value, plural

NAMED = 8
"""Devices that are listed by name."""


def replan_document(found: Replanned, before: Plan) -> dict[str, Any]:
    """The JSON document of ``replan``; ``before``: the plan that it started from."""
    p = found.plan.predicted
    return {
        "lost": list(found.lost), "joined": list(found.joined), "tiles": found.tiles, "pieces": found.pieces,
        "takers": found.takers, "anew": found.anew, "gain": found.gain, "batch_before_s": before.predicted.batch_s,
        "batch_s": p.batch_s, "bound_s": p.bound_s, "gap": p.gap,
    }  # fmt: skip


def replan_text(found: Replanned, before: Plan, screen: Screen, *, output: str) -> str:
    """The terminal report of ``replan``."""
    sheet = Sheet(screen)
    old, new = before.predicted.batch_s, found.plan.predicted.batch_s
    sheet.heading(f"Plan of {found.plan.model.name} over {found.plan.fleet.name}, re-planned")
    facts = [Fact("lost", "", _named(found.lost)), Fact("joined", "", _named(found.joined))]
    if found.anew:
        facts.append(Fact("moved", "", f"all: a plan made anew makes the batch {percent(found.gain)} shorter"))
    else:
        moved = f"{plural(found.tiles, 'tile')} to {plural(found.takers, 'device')} in {plural(found.pieces, 'piece')}"
        facts.append(Fact("moved", "", f"{moved}; every other tile is where it was"))
    facts.append(Fact("batch time", format_value(new, Unit.SECONDS), f"before {format_value(old, Unit.SECONDS)}"))
    facts.append(Fact("gap", percent(found.plan.predicted.gap), "to the bound of the devices that are there"))
    sheet.facts(facts)
    sheet.notes([f"written to {output}"])
    return sheet.text()


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "") or "none"
