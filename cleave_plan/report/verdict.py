"""The second opinion on the terminal and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cleave_plan.plan.finding import Code, Finding, Verdict
from cleave_plan.plan.plan import Plan
from cleave_plan.report.tables import Column, Fact, Screen, Sheet
from cleave_plan.units import Unit, format_value, plural

SHOWN_OF_A_KIND = 4

PROVED = (
    "every output element is computed exactly once, every tile fits its device, hashes agree, "
    "and the recomputed times are the plan's"
)


def verdict_document(verdict: Verdict, unchecked: Sequence[str]) -> dict[str, Any]:
    """The JSON document of ``check``: whether it holds, each finding, what was recomputed and what was not checked."""
    figures = verdict.figures
    return {
        "ok": verdict.ok,
        "findings": [{"code": f.code.value, "where": f.where, "sentence": f.sentence} for f in verdict.findings],
        "checked": {"gemms": verdict.gemms, "tiles": verdict.tiles},
        "not_checked": list(unchecked),
        "recomputed": None if figures is None else {
            "batch_s": figures.batch_s, "levels_s": figures.levels_s, "ideal_levels_s": figures.ideal_levels_s,
            "server_operators_s": figures.server_operators_s,
        },
    }  # fmt: skip


def verdict_text(plan: Plan, verdict: Verdict, unchecked: Sequence[str], screen: Screen) -> str:
    """The terminal report of ``check``."""
    sheet = Sheet(screen)
    sheet.heading(f"Check of the plan of {plan.model.name} over {plan.fleet.name}")
    facts = [Fact("looked at", plural(verdict.gemms, "GEMM"), f"{plural(verdict.tiles, 'tile')} (those of identical GEMMs once)")]
    if verdict.figures is not None:
        stated = format_value(plan.predicted.batch_s, Unit.SECONDS)
        recomputed = format_value(verdict.figures.batch_s, Unit.SECONDS)
        facts.append(Fact("batch time", recomputed, f"recomputed from the tiles, by executed cost; the plan says {stated}"))
    sheet.facts(facts)
    if verdict.findings:
        columns = [Column("kind", numeric=False), Column("place in the plan", numeric=False), Column("finding", numeric=False)]
        sheet.heading("Findings")
        sheet.table(columns, _finding_rows(verdict.findings))
    sheet.notes(unchecked, label="not checked")
    if not verdict.ok:
        sheet.verdict(f"The plan does not hold: {plural(len(verdict.findings), 'finding')}.", good=False)
    elif unchecked:
        sheet.verdict("What could be checked holds; give --model and --fleet to check the rest.", good=True)
    else:
        sheet.verdict(f"The plan holds: {PROVED}.", good=True)
    return sheet.text()


def _finding_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """The first findings of each kind, and how many more there are (a plan for another model has hundreds)."""
    kinds: dict[Code, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.code, []).append(finding)
    rows = []
    for code, members in kinds.items():
        rows += [[code.value, finding.where, finding.sentence] for finding in members[:SHOWN_OF_A_KIND]]
        if len(members) > SHOWN_OF_A_KIND:
            rows.append([code.value, "", f"and {len(members) - SHOWN_OF_A_KIND} more; --json lists all"])
    return rows
