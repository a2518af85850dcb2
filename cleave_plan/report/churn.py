"""Batches among devices that come and go: as a JSON document, the facts of one, and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cleave_plan.plan.plan import Plan
from cleave_plan.report.tables import Fact, Screen, Sheet, as_time, percent
from cleave_plan.simulation.churnrun import ChurnRun
from cleave_plan.units import count, plural


def churn_document(done: ChurnRun, plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of ``simulate --churn``; seconds of virtual time."""
    return {
        "kind": "churn", "plan": {"model": plan.model.name, "fleet": plan.fleet.name, "batch_s": plan.predicted.batch_s},
        "settings": dict(settings), "seconds": done.seconds, "efficiency": done.efficiency, **asdict(done),
    }  # fmt: skip


def churn_facts(document: Mapping[str, Any]) -> list[Fact]:
    """What a document of :func:`churn_document` says, for the terminal and for its page."""
    settings, batches, seconds = document["settings"], len(document["batch_s"]), document["seconds"]
    happened = ", ".join(plural(number, name) for name, number in document["events"].items())
    lost = f"{plural(document['tiles'], 'tile')} lost or late, given to others in {plural(document['pieces'], 'piece')}"
    return [
        Fact("churn", "", f"{settings['churn']}; seed {settings['seed']}"),
        Fact("batches", count(batches), f"in {as_time(seconds)} of virtual time; a mean one takes {as_time(seconds / batches)}"),
        Fact("without churn", as_time(document["planned_batch_s"]), "a batch, by executed cost, devices keeping nothing"),
        Fact("efficiency", percent(document["efficiency"]), "of the pace without churn"),
        Fact("events", "", happened),
        Fact("excluded", count(document["excluded"]), "devices that were late in level after level"),
        Fact("computed again", percent(document["redone"]), f"of the multiply-adds: {lost}"),
        Fact("waited", as_time(document["waited_s"]), "for a device to join, with nobody there who could go on"),
        Fact("settled", count(document["settled"]), "times between levels"),
        Fact("moves", count(document["moves"]), "times a device took another's part, between levels"),
        Fact("unfilled", f"{document['empty']:.3g}", "devices' parts that were shared by the others, mean over levels"),
        Fact("unfinished", count(document["unfinished"]), "levels that ended with a tile missing"),
    ]


def churn_text(done: ChurnRun, plan: Plan, settings: Mapping[str, Any], screen: Screen) -> str:
    """The terminal report of ``simulate --churn``."""
    sheet = Sheet(screen)
    sheet.heading(f"{plan.model.name} over {plan.fleet.name} while devices come and go")
    sheet.facts(churn_facts(churn_document(done, plan, settings)))
    whole = done.unfinished == 0
    sheet.verdict("No tile was lost." if whole else f"{plural(done.unfinished, 'level')} ended with tiles missing.", good=whole)
    return sheet.text()
