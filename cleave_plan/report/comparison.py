"""A comparison of strategies on the terminal and as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.fleet.provenance import provenance_of
from cleave_plan.report.tables import Column, Fact, Screen, Sheet
from cleave_plan.simulation.baselines.server_centred import ACCELERATORS, TWO_DIMENSIONAL
from cleave_plan.simulation.compare import DEVICE_RIVALS, HEARTBEAT_S, OURS, WORTH, Comparison, Row
from cleave_plan.simulation.expense import DOLLARS_PER_KWH
from cleave_plan.units import Unit, count, format_value, plural

NOTES = (
    "batch times compare by ideal cost on the same devices and links; rivals recompute activations and run the operators between "
    "products at no cost",
    "2-D per GEMM is the lower bound of the paper's formulation without its memory limit; cloud GPUs are at the makers' peak "
    "times an assumed utilisation, links between them not counted",
    f"energy of a batch: of {OURS} each device's watts for as long as it is busy (idle ones at none), of rivals the fleet's mean "
    "watts for every device that they use and the whole batch; unknown where the watts of one device are",
    f"cost of a batch: that energy at ${DOLLARS_PER_KWH} a kWh (US homes 2023, EIA), servers not counted; of clouds the "
    f"GPUs' time at {', '.join(f'${a.dollars_per_hour:g} an hour for an {a.name}' for a in ACCELERATORS)} (assumed)",
    f"recovery of {OURS}: {HEARTBEAT_S:g} s until it is noticed (assumed), then the lost tiles planned over the others and "
    "computed; of rivals: their papers' ways",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is compared: the model's name, the fleet, samples of a batch, and whether it is a training step."""

    model: str
    fleet: Fleet
    batch: int
    training: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any figure must know."""
        members: dict[str, Sequence[Device] | Sequence[Server]] = {"devices": self.fleet.devices, "servers": self.fleet.servers}
        told = "; ".join(f"{name} {_prices(owners)}" for name, owners in members.items())
        missing = any(owner.dollars_per_hour is None for owners in members.values() for owner in owners)
        remedy = ". What needs one that is missing has no rent: state it as `price: 0.05 $/h`, or 0 $/h of what is there anyway"
        return (
            *NOTES,
            "rent of a batch: the devices used (of rivals, at the fleet's mean price) and the servers of what needs them, each "
            f"at its price an hour for the batch time; of clouds as their cost. Prices of this fleet: {told}{remedy * missing}",
        )


def _prices(members: Sequence[Device] | Sequence[Server]) -> str:
    """How many of them have a price, and who says so."""
    priced = [member for member in members if member.dollars_per_hour is not None]
    if not priced:
        return "not stated"
    sources = dict.fromkeys(provenance_of(member, "price") for member in priced)
    dates = {one: f", {one.date}" if one.date else "" for one in sources}
    told = " and ".join(f"{one.quality.value} ({one.source}{dates[one]})" for one in sources)
    return told if len(priced) == len(members) else f"{told}, of {count(len(priced))} in {count(len(members))}"


def comparison_document(found: Comparison, subject: Subject) -> dict[str, Any]:
    """The JSON document of ``compare``; a strategy that cannot run has null times and its reason."""
    return {
        "kind": "comparison", "model": subject.model, "fleet": subject.fleet.name, "batch": subject.batch,
        "training": subject.training, "notes": list(subject.notes),
        "rows": [row_document(row) for row in found.rows],
        "usable": [
            {"system": name, "memory_limited": memory, "devices": devices} for (name, memory), devices in found.usable.items()
        ],
        "usable_saves": WORTH,
    }  # fmt: skip


def row_document(row: Row) -> dict[str, Any]:
    """One row of ``compare --json``."""
    o = row.outcome
    return {
        "devices": row.devices, "system": o.name, "memory_limited": row.memory, "batch_s": _finite(o.batch_s),
        "executed_s": row.executed_s, "bound_s": row.bound_s, "degrees": dict(o.degrees), "devices_used": o.devices_used,
        "device_down_bytes": o.down_bytes, "device_up_bytes": o.up_bytes, "device_memory_bytes": o.memory_bytes,
        "recovery_s": _finite(o.recovery_s), "recovery": o.recovery, **asdict(row.expense), "reason": o.reason,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def comparison_text(found: Comparison, subject: Subject, screen: Screen) -> str:
    """A table for each number of devices, and how many devices each strategy can use."""
    sheet = Sheet(screen)
    work = "a training step" if subject.training else "a forward pass"
    sheet.heading(f"Strategies for {subject.model} over {subject.fleet.name}")
    sheet.facts([Fact("work", f"{work} of {plural(subject.batch, 'sample')}")])
    sheet.notes(subject.notes)
    for devices in sorted({row.devices for row in found.rows}):
        sheet.heading(plural(devices, "device"))
        sheet.table(*_table([row for row in found.rows if row.devices == devices]))
        sheet.verdict(_verdict(found, devices), good=_ahead(found, devices))
    if len({row.devices for row in found.rows}) < 2:
        return sheet.text()
    sheet.heading(f"Devices of use: the largest number whose doubling saves {WORTH:.0%} of the batch time, of those compared")
    usable = [Column("system", numeric=False), Column("within memory"), Column("memory lifted")]
    names = [OURS, *DEVICE_RIVALS, TWO_DIMENSIONAL]
    sheet.table(usable, [[name, _usable(found, name, True), _usable(found, name, False)] for name in names])
    return sheet.text()


def _usable(found: Comparison, name: str, memory: bool) -> str:
    devices = found.usable.get((name, memory))
    return "" if devices is None else count(devices)


def _ahead(found: Comparison, devices: int) -> bool:
    best, mine = found.best_rival(devices), _mine(found, devices)
    return best is None or mine.outcome.batch_s <= best.outcome.batch_s


def _mine(found: Comparison, devices: int) -> Row:
    return next(row for row in found.rows if row.devices == devices and row.outcome.name == OURS)


def _verdict(found: Comparison, devices: int) -> str:
    best, mine = found.best_rival(devices), _mine(found, devices).outcome.batch_s
    if best is None:
        return "No other strategy over these devices fits their memory."
    other, seconds = best.outcome.name, best.outcome.batch_s
    if mine <= seconds:
        return f"{OURS} is {seconds / mine:.3g} × faster than the best of the others that fit, {other}."
    return f"{other} is {mine / seconds:.3g} × faster than {OURS}: it fits these devices and sends less."


def _table(rows: list[Row]) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("system", numeric=False), Column("batch time"), Column("memory lifted"), Column("devices"),
        Column("degrees", numeric=False), Column("down a device"), Column("up a device"), Column("memory"), Column("recovery"),
        Column("energy"), Column("cost"), Column("rent"),
    ]  # fmt: skip
    names = dict.fromkeys(row.outcome.name for row in rows)
    return columns, [_line([row for row in rows if row.outcome.name == name]) for name in names]


def _line(rows: list[Row]) -> list[str]:
    limited = next((row for row in rows if row.memory), None)
    lifted = next((row for row in rows if not row.memory), None)
    able = limited if limited is not None and math.isfinite(limited.outcome.batch_s) else lifted or limited
    assert able is not None
    o = able.outcome
    degrees = ", ".join(f"{key} {value}" for key, value in o.degrees.items())
    unknown = "unknown" if math.isfinite(o.batch_s) else ""  # a figure is missing; what does not run takes none
    within, free = ("" if row is None else _time(row.outcome.batch_s) for row in (limited, lifted))
    return [
        o.name, within, free, count(o.devices_used) if o.devices_used else "", degrees, _bytes(o.down_bytes), _bytes(o.up_bytes),
        _bytes(o.memory_bytes), format_value(o.recovery_s, Unit.SECONDS) if math.isfinite(o.recovery_s) else "",
        unknown if able.expense.energy_wh is None else f"{able.expense.energy_wh:.4g} Wh",
        *(unknown if told is None else f"${told:.3g}" for told in (able.expense.cost_dollars, able.expense.rent_dollars)),
    ]  # fmt: skip


def _time(seconds: float) -> str:
    return format_value(seconds, Unit.SECONDS) if math.isfinite(seconds) else "does not fit"


def _bytes(value: float) -> str:
    return format_value(value, Unit.BYTES) if value else ""
