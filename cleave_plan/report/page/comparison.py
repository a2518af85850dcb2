"""The page of a comparison, from its JSON document: curves over the number of devices, and every figure in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cleave_plan.report.page.charts import SHAPES, colour, lines
from cleave_plan.report.page.document import Chart, Data, Page, Section
from cleave_plan.report.tables import percent
from cleave_plan.units import Unit, count, format_value, plural

CURVES = (
    ("batch_s", "Batch time", "seconds", "Seconds of a batch, by ideal cost."),
    ("device_down_bytes", "Traffic to a device", "bytes", "Most bytes that any device receives in a batch."),
    ("device_up_bytes", "Traffic from a device", "bytes", "Most bytes that any device sends in a batch."),
    ("device_memory_bytes", "Memory of a device", "bytes", "Most bytes that any device holds."),
    ("recovery_s", "Recovery", "seconds", "Seconds until work goes on after one device failed."),
    ("energy_wh", "Energy", "Wh", "Watt-hours of a batch, where the watts of every device are known; servers not counted."),
    ("cost_dollars", "Cost", "US$", "US dollars for a batch: energy of devices, servers not counted; of clouds the GPUs' time."),
    (
        "rent_dollars",
        "Rent",
        "US$",
        "US dollars for a batch: devices and servers at their prices an hour, where all are stated.",
    ),
)


def comparison_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``compare --json`` printed."""
    work = "a training step" if document["training"] else "a forward pass"
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    names = list(dict.fromkeys(row["system"] for row in rows))
    charts = [chart for curve in CURVES if (chart := _curve(rows, names, *curve)) is not None]
    return Page(
        title=f"Strategies for {document['model']}",
        subtitle=f"over {document['fleet']}: {work} of {plural(document['batch'], 'sample')}",
        sections=(
            Section(heading="Curves", sentences=tuple(_sentence(note) for note in document["notes"]), charts=tuple(charts)),
            _usable(document), _figures(rows),
        ),
    )  # fmt: skip


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _curve(rows: Sequence[Mapping[str, Any]], names: list[str], key: str, title: str, unit: str, caption: str) -> Chart | None:
    sets = []
    for memory, label in ((True, "within the devices' memory"), (False, "memory lifted")):
        mine = [row for row in rows if row.get(key) and (row["memory_limited"] == memory or _alone(rows, row["system"]))]
        if mine:
            sets.append(Data(label=label, columns={
                "devices": [row["devices"] for row in mine], unit: [row[key] for row in mine],
                "system": [row["system"] for row in mine],
                "degrees": [", ".join(f"{name} {value}" for name, value in row["degrees"].items()) for row in mine],
            }))  # fmt: skip
    if not sets:
        return None
    by = colour("system", names, "system")
    spec = lines("devices", unit, by, tooltip=("system", "devices", unit, "degrees"))
    shapes = {"domain": names, "range": [SHAPES[place % len(SHAPES)] for place in range(len(names))]}
    spec["encoding"]["shape"] = {"field": "system", "type": "nominal", "scale": shapes, "title": "system"}
    return Chart(title=title, caption=caption, spec=spec, data=tuple(sets), choice="Rivals" if len(sets) > 1 else "")


def _alone(rows: Sequence[Mapping[str, Any]], system: str) -> bool:
    """Whether a system has rows of one kind only, and so belongs to both sets."""
    return len({row["memory_limited"] for row in rows if row["system"] == system}) == 1


def _usable(document: Mapping[str, Any]) -> Section:
    found: dict[str, dict[bool, int]] = {}
    for entry in document["usable"]:
        found.setdefault(entry["system"], {})[entry["memory_limited"]] = entry["devices"]
    table = [
        [name, *(count(kinds[memory]) if memory in kinds else "" for memory in (True, False))] for name, kinds in found.items()
    ]
    sentence = f"The largest number of devices whose doubling still saves {percent(document['usable_saves'])} of the batch time."
    return Section(
        heading="How many devices each can use", sentences=(f"{sentence} Judged along the numbers compared.",),
        table=(["system", "within memory", "memory lifted"], table),
    )  # fmt: skip


def _figures(rows: Sequence[Mapping[str, Any]]) -> Section:
    table = [
        [
            str(row["devices"]), row["system"], "within" if row["memory_limited"] else "lifted",
            "does not fit" if row["batch_s"] is None else format_value(row["batch_s"], Unit.SECONDS), str(row["devices_used"]),
            row["reason"] or ", ".join(f"{name} {value}" for name, value in row["degrees"].items()),
        ]
        for row in rows
    ]  # fmt: skip
    return Section(heading="Every row", table=(["devices", "system", "memory", "batch time", "used", "degrees or reason"], table))
