"""The page of a simulation, from its JSON document: batches beside the prediction, levels, devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cleave_plan.report.page.charts import bars, colour, lines, with_ticks
from cleave_plan.report.page.document import Chart, Data, Page, Section
from cleave_plan.report.page.plan import RESOURCES
from cleave_plan.report.tables import Fact, as_time, percent
from cleave_plan.units import count, plural

LEVELS_SHOWN = 60
"""Levels in the chart: those that lost most."""


def simulation_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``simulate --json`` printed."""
    settings, batches = document["settings"], len(document["batch_s"])
    facts = (
        Fact("batch time", as_time(document["mean_batch_s"]), f"virtual; batches: {count(batches)}"),
        Fact("planned", as_time(document["planned_batch_s"]), "executed cost of the plan"),
        Fact("excess", percent(document["excess"]), f"{settings['pacing']} pacing, {settings['dispatch']} dispatch"),
        Fact("jitter", percent(settings["jitter"]), f"seed {settings['seed']}"),
        Fact("given twice", count(document["redispatched"]), "late tiles that an idle device was given too"),
    )  # fmt: skip
    sections = [Section(heading="What it took", facts=facts)]
    if len(document["batch_s"]) > 1:
        sections.append(batches_section(document))
    sections += [_levels(document), _busy(document)]
    return Page(
        title=f"Simulation of {document['plan']['model']}", subtitle=f"over {document['plan']['fleet']}, in virtual time",
        sections=tuple(sections),
    )  # fmt: skip


def batches_section(document: Mapping[str, Any]) -> Section:
    """Each batch beside what the plan predicts."""
    times = document["batch_s"]
    places = list(range(1, len(times) + 1))
    data = Data(columns={
        "batch": places + places, "seconds": [*times, *[document["planned_batch_s"]] * len(times)],
        "what": ["simulated"] * len(times) + ["planned"] * len(times),
    })  # fmt: skip
    spec = lines("batch", "seconds", colour("what", ("simulated", "planned")), tooltip=("batch", "seconds", "what"), log=False)
    caption = "Seconds of virtual time, beside what the plan predicts."
    return Section(heading="Batches", charts=(Chart(title="Time of each batch", caption=caption, spec=spec, data=(data,)),))


def _levels(document: Mapping[str, Any]) -> Section:
    shown = [level for level in document["levels"] if level["planned_s"] > 0]
    shown.sort(key=lambda level: level["planned_s"] - level["mean_s"])
    shown = shown[:LEVELS_SHOWN]
    data = Data(columns={
        "level": [str(level["index"]) for level in shown], "seconds": [level["mean_s"] for level in shown],
        "planned": [level["planned_s"] for level in shown], "most": [level["most_s"] for level in shown],
        "waits for": [level["binds"] for level in shown],
    })  # fmt: skip
    by = colour("waits for", RESOURCES, "waits for")
    spec = with_ticks(bars("level", "seconds", by=by, rows=len(shown), tooltip=tuple(data.columns)), "planned")
    caption = f"Mean seconds of the {plural(len(shown), 'level')} that lost most, in that order; the tick is the plan."
    return Section(heading="Levels", charts=(Chart(title="Time of each level", caption=caption, spec=spec, data=(data,)),))


def _busy(document: Mapping[str, Any]) -> Section:
    total = sum(document["batch_s"])
    busy = sorted(document["device_busy_s"].items(), key=lambda item: -item[1])
    data = Data(columns={
        "device": [name for name, _ in busy], "busy (%)": [100 * seconds / total if total else 0.0 for _, seconds in busy]
    })  # fmt: skip
    spec = bars("device", "busy (%)", rows=len(busy), tooltip=("device", "busy (%)"))
    if len(busy) > 100:
        spec["encoding"]["y"]["axis"] = None
        spec["height"] = 400
    caption = "Share of the time in which each device has work; the rest it waits for others."
    return Section(heading="Devices", charts=(Chart(title="Busy time", caption=caption, spec=spec, data=(data,)),))
