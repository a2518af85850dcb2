"""The page of a run beside its plan, from its JSON document: every level and every device, as predicted and as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cleave_plan.report.page.charts import points
from cleave_plan.report.page.document import Chart, Data, Page, Section
from cleave_plan.report.tables import Fact, percent
from cleave_plan.units import Unit, format_value, plural


def run_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``run --record`` wrote of a run that was compared with its plan."""
    comparison = document["comparison"]
    how = f"emulated, 1 s of the fleet in {comparison['scale']:.4g} s" if comparison["emulated"] else "on the devices themselves"
    facts = (
        Fact("predicted", _s(comparison["predicted_s"]), "all levels that devices work in"),
        Fact("measured", _s(comparison["measured_s"]), how),
        Fact("error of a level", percent(comparison["median_error"]), "the median, without sign"),
    )
    levels: Sequence[Mapping[str, Any]] = comparison["levels"]
    sections = (Section(heading="What it took", facts=facts, charts=(_chart(levels),)), _levels(levels), _devices(levels))
    return Page(title="A run beside its plan", subtitle=f"{plural(len(levels), 'level')}, {how}", sections=sections)


def _chart(levels: Sequence[Mapping[str, Any]]) -> Chart:
    rows = [(level, name, own) for level in levels for name, own in level["devices"].items()]
    data = Data(columns={
        "level": [level["level"] for level, _, _ in rows], "device": [name for _, name, _ in rows],
        "predicted": [own["predicted_s"] for _, _, own in rows], "measured": [own["measured_s"] for _, _, own in rows],
    })  # fmt: skip
    spec = points("predicted", "measured", tooltip=tuple(data.columns), axes=("predicted (s)", "measured (s)"))
    caption = "Seconds of each device in each level until its last result was there."
    return Chart(title="Devices in levels", caption=caption, spec=spec, data=(data,))


def _levels(levels: Sequence[Mapping[str, Any]]) -> Section:
    table = [
        [str(level["level"]), ", ".join(level["gemms"]), *_pair(level["predicted_s"], level["measured_s"])] for level in levels
    ]
    return Section(heading="Levels", table=(["level", "GEMMs", "predicted", "measured", "error"], table))


def _devices(levels: Sequence[Mapping[str, Any]]) -> Section:
    names = sorted({name for level in levels for name in level["devices"]})
    table = []
    for name in names:
        own = [level["devices"][name] for level in levels if name in level["devices"]]
        sums = [sum(each[key] for each in own) for key in ("predicted_s", "measured_s")]
        table.append([name, str(len(own)), *_pair(*sums)])
    return Section(
        heading="Devices", sentences=("Sums over the levels in which a device has tiles.",),
        table=(["device", "levels", "predicted", "measured", "error"], table),
    )  # fmt: skip


def _pair(predicted_s: float, measured_s: float) -> list[str]:
    error = "" if not predicted_s else percent(measured_s / predicted_s - 1)
    return [_s(predicted_s), _s(measured_s), error]


def _s(value: float) -> str:
    return format_value(float(value), Unit.SECONDS)
