"""What ``profile calibrate`` found, on the terminal and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cleave_plan.profiles.calibrate import FEWEST, Calibration, Change
from cleave_plan.report.profile import figure_text
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, percent
from cleave_plan.units import count


def calibration_document(found: Calibration, *, stored: bool) -> dict[str, Any]:
    """The JSON document: figures in SI, and those that too few levels spoke of."""
    return {
        "stored": stored,
        "observations": found.observations,
        "error_before": found.error_before,
        "error_after": found.error_after,
        "changes": [asdict(change) for change in found.changes],
        "silent": [{"profile": profile, "figure": figure} for profile, figure in found.silent],
    }


def calibration_text(found: Calibration, screen: Screen, *, stored: bool) -> str:
    """The terminal report."""
    sheet = Sheet(screen)
    sheet.heading("Calibration" if stored else "Calibration (nothing was stored)")
    sheet.facts([
        Fact("observations", count(found.observations), "levels of devices that could be compared"),
        Fact("error before", percent(found.error_before), "median over them of how far the prediction was off"),
        Fact("error after", percent(found.error_after), "with the figures below"),
    ])  # fmt: skip
    numbers = ("before", "after", "from", "to", "levels")
    columns = [Column("profile", numeric=False), Column("figure", numeric=False), *map(Column, numbers)]
    if found.changes:
        sheet.heading("Figures")
        sheet.table(columns, [_row(change) for change in found.changes])
    if found.silent:
        names = ", ".join(f"{figure} of {profile}" for profile, figure in found.silent)
        sheet.notes([f"fewer than {FEWEST} levels speak of {names}: unchanged"])
    return sheet.text()


def _row(change: Change) -> list[str]:
    values = (change.before, change.after, change.lower, change.upper)
    return [change.profile, change.figure, *(figure_text(change.figure, value) for value in values), count(change.levels)]
