"""The figures that a plan states beside those that its tiles give, and its levels beside the model's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cleave_plan.fleet.device import Device
from cleave_plan.plan.finding import Code, Finding
from cleave_plan.plan.objective import Figures, LevelTimes
from cleave_plan.plan.plan import LevelReport, Predicted
from cleave_plan.workload.gemm import ClassKey
from cleave_plan.workload.graph import Level, Workload
from cleave_plan.workload.joined import View

TOLERANCE = 1e-9
"""Relative difference that the order of additions may cause; anything larger is another number."""

_TOTALS = (
    "levels_s", "ideal_levels_s", "server_operators_s", "batch_s", "first_batch_s", "downlink_bytes", "uplink_bytes",
    "spared_bytes",
)  # fmt: skip


def same(first: float, second: float, *, scale: float = 0.0) -> bool:
    """Equal to 1e-9 of the larger of the two and ``scale``."""
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale)


def compare(predicted: Predicted, view: View, devices: Sequence[Device], figures: Figures) -> Iterator[Finding]:
    """Every figure of ``predicted`` that is not the recomputed one (``figures``), each with its JSON path.

    ``view``: the model's GEMMs in levels, as the plan joins them.
    """
    for name in _TOTALS:
        yield from _figure(f"$.predicted.{name}", getattr(predicted, name), getattr(figures, name))
    used = len(figures.device_memory_bytes)
    yield from _figure("$.predicted.devices_used", predicted.devices_used, used)
    yield from _figure("$.predicted.devices_total", predicted.devices_total, len(devices))
    if predicted.tokens != view.original.tokens:
        sentence = f"the plan says {predicted.tokens}, the model adds {view.original.tokens}"
        yield Finding(code=Code.FIGURE, where="$.predicted.tokens", sentence=sentence)
    for name in ("device_memory_bytes", "device_kept_bytes", "server_memory_bytes"):
        yield from _mapping(f"$.predicted.{name}", getattr(predicted, name), getattr(figures, name))
    yield from _certificate(predicted, figures)
    level_findings = list(_levels(predicted.levels, view, figures.levels))
    yield from level_findings
    if not level_findings:
        yield from _level_figures(predicted.levels, devices, figures.levels, tied=bool(figures.device_kept_bytes))


def _figure(where: str, stated: float, found: float, *, scale: float = 0.0) -> Iterator[Finding]:
    if not same(stated, found, scale=scale):
        yield Finding(code=Code.FIGURE, where=where, sentence=f"the plan says {stated!r}, its tiles give {found!r}")


def _mapping(where: str, stated: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Finding]:
    """A name that is missing on one side counts as 0; the first difference stands for all."""
    names = [name for name in {**found, **stated} if not same(stated.get(name, 0.0), found.get(name, 0.0))]
    if names:
        more = f" (and {len(names) - 1} more entries differ)" if len(names) > 1 else ""
        sentence = f"the plan says {stated.get(names[0], 0.0)!r}, its tiles give {found.get(names[0], 0.0)!r}{more}"
        yield Finding(code=Code.FIGURE, where=f"{where}.{names[0]}", sentence=sentence)


def _certificate(predicted: Predicted, figures: Figures) -> Iterator[Finding]:
    """The bound is the sum of the levels' and does not exceed the plan's ideal time; the gap is theirs."""
    bound, ideal = predicted.bound_s, figures.ideal_levels_s
    summed = math.fsum(report.count * report.bound_s for report in predicted.levels)
    if not same(bound, summed):
        sentence = f"the plan says {bound!r}, the bounds of its levels sum to {summed!r}"
        yield Finding(code=Code.FIGURE, where="$.predicted.bound_s", sentence=sentence)
    yield from _bound("$.predicted.bound_s", bound, ideal)
    yield from _figure("$.predicted.gap", predicted.gap, 1 - bound / ideal if ideal > 0 else 0.0, scale=1.0)


def _bound(where: str, bound: float, ideal: float) -> Iterator[Finding]:
    if not bound <= ideal * (1 + TOLERANCE):  # so that NaN is a finding too
        sentence = f"a lower bound of {bound!r} s is not below the ideal time of the tiles themselves, {ideal!r} s"
        yield Finding(code=Code.FIGURE, where=where, sentence=sentence)


def _levels(reports: Sequence[LevelReport], view: View, levels: Sequence[LevelTimes]) -> Iterator[Finding]:
    """Each report names a level and its GEMMs, and every level has a report that stands for it."""

    def finding(place: int, field: str, sentence: str) -> Finding:
        return Finding(code=Code.LEVELS, where=f"$.predicted.levels[{place}].{field}", sentence=sentence)

    total = sum(report.count for report in reports)
    if total != len(levels):
        sentence = f"the counts sum to {total}, the model has {len(levels)} levels"
        yield Finding(code=Code.LEVELS, where="$.predicted.levels", sentence=sentence)
        return
    seen: set[int] = set()
    for place, report in enumerate(reports):
        if not 0 <= report.index < len(levels) or report.index in seen:
            yield finding(place, "index", f"level {report.index} does not exist or stands there twice")
            return
        seen.add(report.index)
        names = sorted(view.names(report.index))
        if sorted(report.gemms) != names:
            yield finding(place, "gemms", f"level {report.index} of the plan holds {_shortened(names)}")
            return
    yield from _copies(reports, view.workload, levels)


def _copies(reports: Sequence[LevelReport], workload: Workload, levels: Sequence[LevelTimes]) -> Iterator[Finding]:
    """Give each level that is no report's first one to a report of the same classes and times that has copies left."""
    left = [report.count - 1 for report in reports]
    first = {report.index for report in reports}
    kinds = {place: _classes(workload, workload.levels[report.index]) for place, report in enumerate(reports)}
    for index, (level, times) in enumerate(zip(workload.levels, levels, strict=True)):
        if index in first:
            continue
        classes = _classes(workload, level)
        for place, report in enumerate(reports):
            copied = levels[report.index]
            alike = same(times.ideal_s, copied.ideal_s) and same(times.executed_s, copied.executed_s)
            if left[place] > 0 and alike and kinds[place] == classes:
                left[place] -= 1
                break
        else:
            sentence = f"no entry stands for level {index}: none with copies left has its GEMMs and its time"
            yield Finding(code=Code.LEVELS, where="$.predicted.levels", sentence=sentence)
            return


def _classes(workload: Workload, level: Level) -> Counter[ClassKey]:
    return Counter(workload.gemms[index].class_key for index in level.gemms)


def _level_figures(
    reports: Sequence[LevelReport], devices: Sequence[Device], levels: Sequence[LevelTimes], *, tied: bool
) -> Iterator[Finding]:
    """``tied``: levels share memory for what is kept; the bound of one is then its part of the bound of all."""
    place_of = {device.name: place for place, device in enumerate(devices)}
    for place, report in enumerate(reports):
        where, times = f"$.predicted.levels[{place}]", levels[report.index]
        yield from _figure(f"{where}.ideal_s", report.ideal_s, times.ideal_s)
        yield from _figure(f"{where}.executed_s", report.executed_s, times.executed_s)
        if not tied:
            yield from _bound(f"{where}.bound_s", report.bound_s, times.ideal_s)
        if not _binds(report.binds, times, place_of):
            sentence = f"{report.binds!r} does not take the level's time by either cost"
            yield Finding(code=Code.FIGURE, where=f"{where}.binds", sentence=sentence)


def _binds(resource: str, times: LevelTimes, place_of: Mapping[str, int]) -> bool:
    """Does the resource take as long as the level, by ideal or by executed cost?"""
    kind, _, name = resource.partition(" ")
    if kind != "device":
        seconds = times.server_s.get(resource, -1.0)
        return same(seconds, times.ideal_s) or same(seconds, times.executed_s)
    if name not in place_of:
        return False
    ideal, executed = float(times.device_ideal_s[place_of[name]]), float(times.device_executed_s[place_of[name]])
    return same(ideal, times.ideal_s) or same(executed, times.executed_s)


def _shortened(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
