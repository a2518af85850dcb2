"""Which page a JSON document has: told by what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleave_plan.errors import InputFileError
from cleave_plan.report.page.churn import churn_page
from cleave_plan.report.page.comparison import comparison_page
from cleave_plan.report.page.document import Page
from cleave_plan.report.page.run import run_page
from cleave_plan.report.page.simulation import simulation_page


def page_of(document: Any, where: str) -> Page:
    """The page of a document that ``simulate --json``, ``compare --json`` or ``run --json`` printed.

    Raises InputFileError for anything else, and where a document lacks what its kind has.
    """
    try:
        if isinstance(document, Mapping) and document.get("kind") == "churn":
            return churn_page(document)
        if isinstance(document, Mapping) and "planned_batch_s" in document:
            return simulation_page(document)
        if isinstance(document, Mapping) and document.get("kind") == "comparison":
            return comparison_page(document)
        if isinstance(document, Mapping) and "device_s" in document:
            return run_page(document)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise InputFileError(f"the document is damaged ({error!r})", where=where, remedy="make it again") from error
    raise InputFileError(
        "no page is known for this document", where=where,
        expected="a plan, what `simulate --json` or `compare --json` printed, or the record of a run",
    )  # fmt: skip
