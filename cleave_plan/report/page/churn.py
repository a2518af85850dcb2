"""The page of batches among devices that come and go, from its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleave_plan.report.page.document import Page, Section
from cleave_plan.report.page.simulation import batches_section
from cleave_plan.report.tables import Fact, as_time, percent
from cleave_plan.units import count, plural


def churn_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``simulate --churn --json`` printed."""
    settings, batches = document["settings"], len(document["batch_s"])
    happened = ", ".join(plural(number, name) for name, number in document["events"].items())
    facts = (
        Fact("efficiency", percent(document["efficiency"]), "of the pace without churn"),
        Fact("batches", count(batches), f"in {as_time(document['seconds'])} of virtual time"),
        Fact("without churn", as_time(document["planned_batch_s"]), "a batch, by executed cost"),
        Fact("churn", "", f"{settings['churn']}; seed {settings['seed']}"),
        Fact("events", "", happened),
        Fact("computed again", percent(document["redone"]), f"{plural(document['tiles'], 'tile')} were lost or late"),
        Fact("excluded", count(document["excluded"]), "devices that were late in level after level"),
        Fact("moves", count(document["moves"]), "times a device took another's part, between levels"),
        Fact("unfinished", count(document["unfinished"]), "levels that ended with a tile missing"),
    )  # fmt: skip
    plan = document["plan"]
    return Page(
        title=f"{plan['model']} while devices come and go", subtitle=f"over {plan['fleet']}, in virtual time",
        sections=(Section(heading="What was kept of the pace", facts=facts), batches_section(document)),
    )  # fmt: skip
