"""The page of a run, from its JSON document: who worked when, what went wrong, and, where it was compared with its plan, every
level and every device as predicted and as measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cleave_plan.ordering import natural
from cleave_plan.report.page.charts import colour, gantt, points
from cleave_plan.report.page.document import Chart, Data, Page, Section
from cleave_plan.report.tables import Fact, as_size, as_time, percent
from cleave_plan.units import count, plural

SERVER = "server"
ROWS_SHOWN = 5000
"""Devices in levels that a chart shows: those of the longest levels."""

Row = TypeVar("Row")


def run_page(document: Mapping[str, Any]) -> Page:
    """The page of what ``run --record`` wrote."""
    comparison = document["comparison"]
    down, up = as_size(document["bytes_down"]), as_size(document["bytes_up"])
    facts = (
        Fact("run", as_time(document["seconds"]), f"measured; {plural(document['workers'], 'worker')}, {document['runtime']}"),
        Fact("on devices", plural(document["tiles"], "tile"), f"of {plural(document['gemms_on_devices'], 'GEMM')}"),
        Fact("on the server", plural(document["tiles_on_server"], "tile"), plural(document["gemms_on_server"], "whole GEMM")),
        Fact("sent, received", f"{down}, {up}", "by the server, all devices"),
        Fact("incidents", count(len(document["incidents"])), "devices that were lost, late, wrong or joined"),
    )  # fmt: skip
    sections = [Section(heading="What was run", facts=facts, sentences=tuple(document["notes"])), _timeline(document["levels"])]
    if document["incidents"]:
        sections.append(_incidents(document["incidents"]))
    if comparison is None:
        subtitle = f"{plural(len(document['levels']), 'level')}, measured"
        return Page(title="A run", subtitle=subtitle, sections=tuple(sections))
    how = f"emulated, 1 s of the fleet in {comparison['scale']:.4g} s" if comparison["emulated"] else "on the devices themselves"
    levels: Sequence[Mapping[str, Any]] = comparison["levels"]
    taken = (
        Fact("predicted", as_time(comparison["predicted_s"]), "all levels that devices work in"),
        Fact("measured", as_time(comparison["measured_s"]), how),
        Fact("error of a level", percent(comparison["median_error"]), "the median, without sign"),
    )
    beside = Section(heading="Beside its plan", facts=taken, charts=(_chart(levels),))
    return Page(
        title="A run beside its plan", subtitle=f"{plural(len(levels), 'level')}, {how}",
        sections=(beside, _levels(levels), _devices(levels), *sections),
    )  # fmt: skip


def _timeline(levels: Sequence[Mapping[str, Any]]) -> Section:
    """Each device in each level, from the level's start until its last result was there."""
    rows = [(place, level["start_s"], level["device_s"] or {SERVER: level["seconds"]}) for place, level in enumerate(levels)]
    shown, left = _longest(rows, [level["seconds"] for level in levels], lambda row: len(row[2]))
    lanes = sorted({name for _, _, devices in shown for name in devices}, key=lambda name: (name == SERVER, natural(name)))
    lane_of = {name: lane for lane, name in enumerate(lanes)}
    slices = sorted(
        (lane_of[name], place, start, start + seconds) for place, start, devices in shown for name, seconds in devices.items()
    )
    who = ("devices", SERVER)
    data = Data(columns={
        "device": [lanes[lane] for lane, *_ in slices], "level": [place for _, place, *_ in slices],
        "from": [start for _, _, start, _ in slices], "to": [stop for *_, stop in slices],
        "who": [who[lanes[lane] == SERVER] for lane, *_ in slices],
    })  # fmt: skip
    tooltip = ("device", "level", "from", "to")
    axis = "measured seconds since the run began"
    spec = gantt("device", "from", "to", colour("who", who), lanes=len(lanes), tooltip=tooltip, axis=axis)
    caption = (
        "Each device in each level: from the level's start until its last result was there; the server works between levels."
    )
    return Section(heading="Timeline", charts=(Chart(title="Who worked when", caption=caption + left, spec=spec, data=(data,)),))


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> Section:
    table = [
        [
            as_time(one["at_s"]), one["kind"], ", ".join(one["devices"]), str(one["level"]), one["reason"], count(one["tiles"]),
            "" if one["recovery_s"] is None else as_time(one["recovery_s"]),
        ]
        for one in incidents
    ]  # fmt: skip
    heads = ["noticed at", "what", "devices", "level", "seen", "tiles moved", "made good after"]
    return Section(heading="Incidents", table=(heads, table))


def _longest(rows: Sequence[Row], seconds: Sequence[float], size: Callable[[Row], int]) -> tuple[list[Row], str]:
    """The rows of the longest levels, in their order, and a sentence on how many are not among them."""
    kept: set[int] = set()
    room = ROWS_SHOWN
    for place in sorted(range(len(rows)), key=lambda place: -seconds[place]):
        room -= size(rows[place])
        if room < 0:
            break
        kept.add(place)
    left = len(rows) - len(kept)
    return [rows[place] for place in sorted(kept)], f" The {plural(left, 'shortest level')} not shown." if left else ""


def _chart(levels: Sequence[Mapping[str, Any]]) -> Chart:
    shown, left = _longest(levels, [level["measured_s"] for level in levels], lambda level: len(level["devices"]))
    rows = [(level, name, own) for level in shown for name, own in level["devices"].items()]
    data = Data(columns={
        "level": [level["level"] for level, _, _ in rows], "device": [name for _, name, _ in rows],
        "predicted": [own["predicted_s"] for _, _, own in rows], "measured": [own["measured_s"] for _, _, own in rows],
    })  # fmt: skip
    spec = points("predicted", "measured", tooltip=tuple(data.columns), axes=("predicted (s)", "measured (s)"))
    caption = "Seconds of each device in each level until its last result was there." + left
    return Chart(title="Devices in levels", caption=caption, spec=spec, data=(data,))


def _levels(levels: Sequence[Mapping[str, Any]]) -> Section:
    table = [
        [str(level["level"]), ", ".join(level["gemms"]), *_pair(level["predicted_s"], level["measured_s"])] for level in levels
    ]
    return Section(heading="Levels", table=(["level", "GEMMs", "predicted", "measured", "error"], table))


def _devices(levels: Sequence[Mapping[str, Any]]) -> Section:
    names = sorted({name for level in levels for name in level["devices"]}, key=natural)
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
    return [as_time(predicted_s), as_time(measured_s), error]
