"""Why a plan is as it is, on the terminal and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cleave_plan.planning.story import Alternative, Change, DeviceStory, Explanation, GemmStory
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_time, percent
from cleave_plan.report.workload import common_name
from cleave_plan.units import Unit, count, format_value, plural

HELD_SHOWN = 12
"""Pieces that a device's story lists."""


def explanation_document(told: Explanation) -> dict[str, Any]:
    """The JSON document of ``explain``; an alternative that does not exist has null for its seconds."""
    return asdict(told)


def explanation_text(told: Explanation, screen: Screen, *, model: str, fleet: str) -> str:
    """The terminal report."""
    sheet = Sheet(screen)
    sheet.heading(f"Why the plan of {model} over {fleet} is as it is")
    for story in told.gemms:
        _tell_gemm(sheet, story)
    sheet.notes(
        [
            "times of a GEMM are its own alone, by ideal cost; where devices do it instead, the server takes no tile; in a level "
            "of several GEMMs the choice weighs the others too"
        ]
    )
    for device in told.devices:
        _tell_device(sheet, device, told)
    if told.devices:
        sheet.notes([
            "a change's effect is the difference of the lower bound of all levels (what the best plan could gain at the most, as "
            "far as the bound is tight), and of this plan with its tiles as they are"
        ])  # fmt: skip
    return sheet.text()


def _tell_gemm(sheet: Sheet, story: GemmStory) -> None:
    sheet.heading(f"{common_name(list(story.gemms))} ({plural(len(story.gemms), 'GEMM')}): {_choice(story)}")
    facts = [
        Fact("takes", as_time(story.ideal_s), f"{as_time(story.executed_s)} by executed cost; bound {as_time(story.bound_s)}"),
        Fact("binds", story.binds),
    ]
    if story.constraints:
        facts.append(Fact("constraints", ", ".join(story.constraints), "set aside in what follows"))
    sheet.facts(facts)
    columns = [Column("instead", numeric=False), Column("devices"), Column("takes"), Column("against the plan's")]
    sheet.table(columns, [_row(other, story.ideal_s) for other in story.alternatives])


def _choice(story: GemmStory) -> str:
    joined = f", {story.joined} as one" if story.joined > 1 else ""
    where = f" over {plural(story.devices, 'device')}" if story.devices else ""
    return f"{story.mode.value}{where}{joined}"


def _row(other: Alternative, chosen_s: float) -> list[str]:
    if other.ideal_s is None:
        return [other.name, "", "impossible", ""]
    ratio = f"× {other.ideal_s / chosen_s:.3g}" if chosen_s > 0 else ""
    return [other.name, str(other.devices), as_time(other.ideal_s), ratio]


def _tell_device(sheet: Sheet, story: DeviceStory, told: Explanation) -> None:
    sheet.heading(f"Device {story.device}: {story.binds} binds" if story.holds_up_s or any(story.seconds.values()) else
                  f"Device {story.device}: it is not used")  # fmt: skip
    busy = ", ".join(f"{kind} {as_time(value)}" for kind, value in story.seconds.items())
    sheet.facts([
        Fact("busy", busy, "in one batch"),
        Fact("holds up", as_time(story.holds_up_s), "executed time of the levels that wait for it"),
    ])  # fmt: skip
    if story.held:
        _tell_held(sheet, story)
    columns = [
        Column("change", numeric=False),
        Column("bound shorter by"),
        Column("of the bound"),
        Column("this plan shorter by"),
    ]
    sheet.table(columns, [_change(change, told.bound_s) for change in story.changes])


def _tell_held(sheet: Sheet, story: DeviceStory) -> None:
    """What a device holds, a row for each piece of a decision, the largest in all first."""
    columns = [
        Column("holds of", numeric=False), Column("×"), Column("operand", numeric=False), Column("rows"), Column("columns"),
        Column("depth"), Column("each"), Column("in all"),
    ]  # fmt: skip
    pieces = sorted(story.held, key=lambda piece: -piece.bytes * len(piece.products))
    rows = [
        [
            common_name(list(piece.products)), count(len(piece.products)), piece.operand.upper(), _range(piece.m),
            _range(piece.n), _range(piece.k), format_value(piece.bytes, Unit.BYTES),
            format_value(piece.bytes * len(piece.products), Unit.BYTES),
        ]
        for piece in pieces[:HELD_SHOWN]
    ]  # fmt: skip
    sheet.table(columns, rows)
    if len(pieces) > HELD_SHOWN:
        sheet.notes([f"{len(pieces) - HELD_SHOWN} smaller pieces are left out; --json lists them"])


def _range(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]}-{bounds[1] - 1}"


def _change(change: Change, bound_s: float) -> list[str]:
    share = "" if change.bound_s is None or bound_s <= 0 else percent(change.bound_s / bound_s)
    return [change.name, _gain(change.bound_s), share, _gain(change.plan_s)]


def _gain(value: float | None) -> str:
    """A difference of seconds; less than a nanosecond is rounding."""
    if value is None:
        return "unknown"
    if abs(value) < 1e-9:
        return "0 s"
    return f"{'-' if value < 0 else ''}{as_time(abs(value))}"
