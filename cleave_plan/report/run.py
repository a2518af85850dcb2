"""A run on the terminal and as a JSON document: what was computed where, how long it took, and whether it agrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cleave_plan.execution.incidents import Incident, Kind
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.truth import Comparison
from cleave_plan.execution.verification import OutputCheck, Verification
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_size, as_time
from cleave_plan.report.truth import add_comparison, comparison_document
from cleave_plan.units import count, plural

MOST_ROWS = 24
"""Outputs that a table of a run shows."""


def run_document(
    result: RunResult,
    verification: Verification | None,
    *,
    inputs: str,
    outputs: str | None,
    comparison: Comparison | None = None,
) -> dict[str, Any]:
    """The JSON document of ``run``; ``inputs`` says where they came from, ``outputs`` where they went (a file or None).

    ``comparison``: the run beside its plan, where devices were emulated or real. Errors that are not finite (another shape, NaN
    in other places) are null.
    """
    return {
        "inputs": inputs,
        "outputs_file": outputs,
        "outputs": [{"name": name, **_kind(value)} for name, value in result.outputs.items()],
        "seconds": result.seconds,
        "level_s": list(result.level_s),
        "levels": [asdict(timing) for timing in result.timings],
        "device_s": dict(result.device_s),
        "tiles": result.tiles_run,
        "tiles_on_server": result.tiles_on_server,
        "gemms_on_devices": result.gemms_on_devices,
        "gemms_on_server": result.gemms_on_server,
        "bytes_down": result.bytes_down,
        "bytes_up": result.bytes_up,
        "workers": result.workers,
        "runtime": result.runtime,
        "notes": list(result.notes),
        "reproducible": result.reproducible,
        "tiles_checked": result.tiles_checked,
        "check_s": result.check_s,
        "incidents": [asdict(incident) for incident in result.incidents],
        "comparison": None if comparison is None else comparison_document(comparison),
        "verified": None if verification is None else _verification_document(verification),
    }


def _kind(value: Any) -> dict[str, Any]:
    """Type and shape of an output, where it is an array."""
    if not hasattr(value, "dtype"):
        return {"dtype": None, "shape": None}
    return {"dtype": value.dtype.name, "shape": list(value.shape)}


def _verification_document(verification: Verification) -> dict[str, Any]:
    return {
        "ok": verification.ok,
        "runtime": verification.runtime,
        "seconds": verification.seconds,
        "notes": list(verification.notes),
        "outputs": [
            {
                "name": row.name, "ok": row.ok, "max_absolute_error": _finite(row.max_absolute_error),
                "max_relative_error": _finite(row.max_relative_error), "tolerance": row.tolerance, "different": row.different,
                "ties": row.ties, "note": row.note,
            }
            for row in verification.rows
        ],
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run_text(
    result: RunResult,
    verification: Verification | None,
    screen: Screen,
    *,
    model: str,
    inputs: str,
    outputs: str | None,
    comparison: Comparison | None = None,
) -> str:
    """The terminal report of ``run``."""
    sheet = Sheet(screen)
    sheet.heading(f"Run of {model}")
    sheet.facts(_facts(result, inputs, outputs))
    sheet.notes([*result.notes, *map(incident_text, result.incidents)])
    if comparison is not None:
        add_comparison(sheet, comparison)
    if verification is None:
        sheet.heading("Outputs")
        columns, rows = _output_table(result.outputs)
        sheet.table(columns, rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            sheet.notes([f"{plural(len(rows) - MOST_ROWS, 'output')} more; --json lists each"])
        return sheet.text()
    sheet.heading(f"Outputs beside the unsplit model on {verification.runtime} ({as_time(verification.seconds)})")
    shown = most_telling(verification.rows)
    sheet.table(*_comparison_table(shown))
    if len(shown) < len(verification.rows):
        rest = f"the rest of {plural(len(verification.rows), 'output')} is no further off than the rows of the table"
        sheet.notes([f"{rest}; --json lists each"])
    sheet.notes(verification.notes)
    sheet.verdict(verdict(verification), good=verification.ok)
    return sheet.text()


def most_telling(rows: tuple[OutputCheck, ...]) -> tuple[OutputCheck, ...]:
    """All rows in their order, or of many (a classifier may return a map for each item) those that are furthest off."""
    if len(rows) <= MOST_ROWS:
        return rows
    worst = sorted(range(len(rows)), key=lambda place: (rows[place].ok, -_off(rows[place])))[:MOST_ROWS]
    return tuple(rows[place] for place in sorted(worst))


def _off(row: OutputCheck) -> float:
    """How far an output is off, in tolerances; where none is allowed, in elements that differ."""
    return float(row.different) if row.tolerance is None else row.max_relative_error / (row.tolerance or 1.0)


def verdict(verification: Verification) -> str:
    """The sentence that says whether the run agrees with the unsplit model, with the largest error and its tolerance."""
    wrong = [row.name for row in verification.rows if not row.ok]
    if wrong:
        more = f" and {len(wrong) - MOST_ROWS:,} more" if len(wrong) > MOST_ROWS else ""
        return f"Not verified: {', '.join(wrong[:MOST_ROWS])}{more} beyond tolerance."
    inexact = [row for row in verification.rows if row.tolerance is not None]
    if not inexact:
        return f"Run verified: {plural(len(verification.rows), 'output')} equal to the unsplit model's."
    worst = max(inexact, key=lambda row: row.max_relative_error / (row.tolerance or 1.0))
    error = f"largest error {worst.max_relative_error:.2g} of the output's root mean square"
    return f"Run verified: {error}, tolerance {worst.tolerance:.2g}."


def _facts(result: RunResult, inputs: str, outputs: str | None) -> list[Fact]:
    processes = "1 process" if result.workers == 1 else f"{result.workers} processes"
    busy = as_time(sum(result.device_s.values()))
    cut = f"cut into {plural(result.tiles_run, 'tile')} of {plural(len(result.device_s), 'device')}, {busy} of arithmetic"
    if result.tiles_on_server:
        cut += f", and {plural(result.tiles_on_server, 'tile')} that the server keeps"
    down, up = as_size(result.bytes_down), as_size(result.bytes_up)
    facts = [
        Fact("inputs", "", inputs),
        Fact("time", as_time(result.seconds), f"of {processes} of this machine that play the devices, not of the fleet"),
        Fact("GEMMs", count(result.gemms_on_devices), cut),
        Fact("", count(result.gemms_on_server), f"whole on the server, as every other operator, by {result.runtime}"),
        Fact("traffic", as_size(result.bytes_down + result.bytes_up), f"{down} down, {up} up, counted as it was sent"),
    ]
    if result.tiles_checked:
        share = f"{as_time(result.check_s)} of the server, {result.check_s / result.seconds:.1%} of the time"
        facts.append(Fact("checked", count(result.tiles_checked), f"tiles that devices returned, in {share}"))
    if outputs is not None:
        facts.append(Fact("outputs", "", outputs))
    return facts


def incident_text(incident: Incident) -> str:
    """What happened to devices, and to their tiles."""
    when = f"{as_time(incident.at_s)} into the batch, in level {incident.level + 1}"
    told = f"{incident.kind.value} {', '.join(incident.devices)}: {incident.where} {incident.reason} ({when})"
    if not incident.tiles:
        return told
    verb = "also given" if incident.kind is Kind.LATE else "moved"
    moved = (
        f"{plural(incident.tiles, 'tile')} {verb} to {plural(incident.takers, 'device')} in {plural(incident.pieces, 'piece')}"
    )
    return told + f"; {moved}" + ("" if incident.recovery_s is None else f", there {as_time(incident.recovery_s)} later")


def _output_table(outputs: Mapping[str, Any]) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("output", numeric=False), Column("type", numeric=False), Column("shape", numeric=False)]
    kinds = {name: _kind(value) for name, value in outputs.items()}
    rows = [[name, kind["dtype"] or "not a tensor", str(kind["shape"] or "")] for name, kind in kinds.items()]
    return columns, rows


def _comparison_table(checks: tuple[OutputCheck, ...]) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("output", numeric=False), Column("type", numeric=False), Column("shape", numeric=False),
        Column("largest error"), Column("relative"), Column("tolerance"), Column("beyond"), Column("", numeric=False),
    ]  # fmt: skip
    rows = [
        [
            row.name, row.dtype, str(list(row.shape)), f"{row.max_absolute_error:.3g}", f"{row.max_relative_error:.3g}",
            "exact" if row.tolerance is None else f"{row.tolerance:.2g}", count(row.different),
            row.note or ("" if row.ok else "differs"),
        ]
        for row in checks
    ]  # fmt: skip
    return columns, rows
