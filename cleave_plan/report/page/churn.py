"""The page of batches among devices that come and go, from its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleave_plan.report.churn import churn_facts
from cleave_plan.report.page.document import Page, Section
from cleave_plan.report.page.simulation import batches_section


def churn_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``simulate --churn --json`` printed."""
    plan, facts = document["plan"], tuple(churn_facts(document))
    return Page(
        title=f"{plan['model']} while devices come and go", subtitle=f"over {plan['fleet']}, in virtual time",
        sections=(Section(heading="What was kept of the pace", facts=facts), batches_section(document)),
    )  # fmt: skip
