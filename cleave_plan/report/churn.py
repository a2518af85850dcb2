"""Batches among devices that come and go, on the terminal and as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cleave_plan.plan.plan import Plan
from cleave_plan.report.tables import Fact, Screen, Sheet, as_time, percent
from cleave_plan.simulation.churn import ChurnRun
from cleave_plan.units import count, plural


def churn_document(done: ChurnRun, plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of ``simulate --churn``; seconds of virtual time."""
    return {
        "kind": "churn", "plan": {"model": plan.model.name, "fleet": plan.fleet.name, "batch_s": plan.predicted.batch_s},
        "settings": dict(settings), "seconds": done.seconds, "efficiency": done.efficiency, **asdict(done),
    }  # fmt: skip


def churn_text(done: ChurnRun, plan: Plan, settings: Mapping[str, Any], screen: Screen) -> str:
    """The terminal report of ``simulate --churn``."""
    sheet = Sheet(screen)
    sheet.heading(f"{plan.model.name} over {plan.fleet.name} while devices come and go")
    happened = ", ".join(f"{plural(number, name)}" for name, number in done.events.items())
    mean = as_time(done.seconds / len(done.batch_s))
    lost = f"{plural(done.tiles, 'tile')} lost or late, given to others in {plural(done.pieces, 'piece')}"
    sheet.facts([
        Fact("churn", "", f"{settings['churn']}; seed {settings['seed']}"),
        Fact("batches", count(len(done.batch_s)), f"in {as_time(done.seconds)} of virtual time; a mean one takes {mean}"),
        Fact("without churn", as_time(done.planned_batch_s), "a batch, by executed cost, devices keeping nothing"),
        Fact("efficiency", percent(done.efficiency), "of the pace without churn"),
        Fact("events", "", happened),
        Fact("excluded", count(done.excluded), "devices that were late in level after level"),
        Fact("computed again", percent(done.redone), f"of the multiply-adds: {lost}"),
        Fact("settled", count(done.settled), f"times between levels; {count(done.moves)} times a device took another's part"),
        Fact("unfilled", f"{done.empty:.3g}", "devices' parts that were shared by the others, mean over levels"),
    ])  # fmt: skip
    whole = done.unfinished == 0
    sheet.verdict("No tile was lost." if whole else f"{plural(done.unfinished, 'level')} ended with tiles missing.", good=whole)
    return sheet.text()
