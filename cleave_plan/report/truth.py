"""Predicted beside measured times of a run, on the terminal and as a JSON document."""

from __future__ import annotations

from typing import Any

from cleave_plan.execution.truth import ComparedLevel, Comparison
from cleave_plan.report.tables import Column, Sheet, as_time, percent
from cleave_plan.units import count, plural

MOST_ROWS = 40


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The part of a run's JSON document that holds the comparison; ``profile calibrate`` reads it.

    Seconds are the fleet's. ``work``: a device's phases in the level, each as seconds of latency, bytes down, seconds of
    arithmetic, bytes up. ``figures``: of each device, in SI, those that the prediction is made of.
    """
    return {
        "emulated": comparison.emulated,
        "scale": comparison.scale,
        "predicted_s": comparison.predicted_s,
        "measured_s": comparison.measured_s,
        "median_error": comparison.median_error,
        "levels": [
            {
                "level": level.index,
                "gemms": list(level.gemms),
                "predicted_s": level.predicted_s,
                "measured_s": level.measured_s,
                "crowded": level.crowded,
                "dtypes": list(level.dtypes),
                "devices": {
                    name: {
                        "predicted_s": own.predicted_s,
                        "measured_s": own.measured_s,
                        "work": [list(each) for each in own.work],
                    }
                    for name, own in level.devices.items()
                },
            }
            for level in comparison.levels
        ],
        "figures": {name: dict(figures) for name, figures in comparison.figures.items()},
    }


def add_comparison(sheet: Sheet, comparison: Comparison) -> None:
    """Put the tables of levels and devices on a run's sheet."""
    whose = f"emulated: 1 s of the fleet is {comparison.scale:.4g} s here" if comparison.emulated else "real devices"
    sheet.heading(f"Predicted and measured ({whose})")
    shown = sorted(sorted(comparison.levels, key=lambda level: -level.predicted_s)[:MOST_ROWS], key=lambda level: level.index)
    columns = [
        Column("level"), Column("GEMMs", numeric=False), Column("predicted"), Column("measured"), Column("error"),
        Column("last to answer", numeric=False),
    ]  # fmt: skip
    rows = [
        [
            count(level.index), _names(level), as_time(level.predicted_s), as_time(level.measured_s), _signed(level.error),
            max(level.devices, key=lambda name: level.devices[name].measured_s),
        ]
        for level in shown
    ]  # fmt: skip
    total = ["", "all levels", as_time(comparison.predicted_s), as_time(comparison.measured_s)]
    sheet.table(columns, rows, total=[*total, _signed(_error(comparison.predicted_s, comparison.measured_s)), ""])
    sheet.heading("Devices")
    sheet.table(*_device_table(comparison))
    notes = [f"half of the levels are within {percent(comparison.median_error)} of what was predicted"]
    crowded = sum(level.crowded for level in comparison.levels)
    if crowded:
        notes.append(
            f"in {plural(crowded, 'level')} devices together can fill a server's link: they wait for one another, which the "
            "prediction counts by totals only"
        )
    if len(shown) < len(comparison.levels):
        notes.append(f"the {count(len(shown))} longest of {count(len(comparison.levels))} levels are shown; --json has all")
    sheet.notes(notes)


def _device_table(comparison: Comparison) -> tuple[list[Column], list[list[str]]]:
    """Sums over the levels in which each device has tiles."""
    sums: dict[str, list[float]] = {}
    for level in comparison.levels:
        for name, own in level.devices.items():
            entry = sums.setdefault(name, [0.0, 0.0, 0.0])
            entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + own.predicted_s, entry[2] + own.measured_s
    columns = [Column("device", numeric=False), *map(Column, ("levels", "predicted", "measured", "error"))]
    rows = [
        [name, count(int(levels)), as_time(predicted), as_time(measured), _signed(_error(predicted, measured))]
        for name, (levels, predicted, measured) in sorted(sums.items(), key=lambda item: -item[1][2])
    ]
    return columns, rows


def _names(level: ComparedLevel) -> str:
    return level.gemms[0] if len(level.gemms) == 1 else f"{level.gemms[0]} and {len(level.gemms) - 1} more"


def _error(predicted_s: float, measured_s: float) -> float:
    return measured_s / predicted_s - 1 if predicted_s else 0.0


def _signed(share: float) -> str:
    return ("+" if share > 0 else "") + percent(share)
