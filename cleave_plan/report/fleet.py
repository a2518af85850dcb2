"""A fleet on the terminal and as a JSON document: figures, their spread, and where each comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from cleave_plan.fleet.device import ANY_DTYPE, Device, Fleet, Provenance, Server
from cleave_plan.report.tables import Column, Fact, Screen, Sheet
from cleave_plan.units import Unit, count, format_value, plural

SHOWN_AT_MOST = 32
"""Devices that the terminal table lists unless all are asked for."""


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """The JSON document of ``fleet show``: SI units throughout; a link without limit is the word "unlimited"."""
    return {
        "name": fleet.name,
        "sha256": fleet.sha256,
        "servers": [_member_document(server) for server in fleet.servers],
        "devices": [_member_document(device) for device in fleet.devices],
    }


def _member_document(member: Device | Server) -> dict[str, Any]:
    document = asdict(member)
    for key, value in document.items():
        if isinstance(value, float) and math.isinf(value):
            document[key] = "unlimited"
    document["flop_per_s"] = dict(member.flop_per_s)
    return document


def fleet_text(fleet: Fleet, screen: Screen, *, every: bool = False) -> str:
    """The terminal report of ``fleet show``; large fleets show their first devices unless ``every`` is set."""
    sheet = Sheet(screen)
    sheet.heading(f"Fleet {fleet.name}")
    sheet.facts(_summary(fleet))
    sheet.heading("Servers")
    sheet.table(*_server_table(fleet.servers))
    shown = fleet.devices if every else fleet.devices[:SHOWN_AT_MOST]
    sheet.heading("Devices")
    sheet.table(*_device_table(shown))
    if len(shown) < len(fleet.devices):
        sheet.notes([f"{plural(len(fleet.devices) - len(shown), 'more device')} not listed; --all lists each"])
    sheet.heading("Where the figures come from")
    sheet.table(*_provenance_table(fleet))
    return sheet.text()


def _summary(fleet: Fleet) -> list[Fact]:
    devices = fleet.devices
    return [
        Fact("devices", count(len(devices))),
        Fact("servers", count(len(fleet.servers))),
        Fact("FLOP/s", *_spread([_main_rate(device) for device in devices], Unit.FLOP_PER_S)),
        Fact("downlink", *_spread([device.downlink_bytes_per_s for device in devices], Unit.BYTES_PER_S)),
        Fact("uplink", *_spread([device.uplink_bytes_per_s for device in devices], Unit.BYTES_PER_S)),
        Fact("latency", *_spread([device.latency_s for device in devices], Unit.SECONDS, total=False)),
        Fact("memory", *_spread([device.memory_bytes for device in devices], Unit.BYTES)),
    ]


def _spread(values: Sequence[float], unit: Unit, *, total: bool = True) -> tuple[str, str]:
    low, middle, high, together = (
        format_value(value, unit, bits=True) for value in (min(values), median(values), max(values), sum(values))
    )
    if not total:
        return middle, f"median; from {low} to {high}"
    return together, f"together; each from {low} to {high}, median {middle}"


def _main_rate(member: Device | Server) -> float:
    """The figure that stands for a member in a table: of any type, else of float32, else the first given."""
    table = member.flop_per_s
    return table.get(ANY_DTYPE, table.get("float32", next(iter(table.values()))))


def _rates(member: Device | Server) -> str:
    parts = [
        format_value(value, Unit.FLOP_PER_S) + ("" if dtype == ANY_DTYPE else f" {dtype}")
        for dtype, value in member.flop_per_s.items()
    ]
    return ", ".join(parts)


def _qualities(member: Device | Server) -> str:
    kinds = Counter(provenance.quality.value for provenance in member.provenance.values())
    return ", ".join(kind if len(kinds) == 1 else f"{times} {kind}" for kind, times in sorted(kinds.items())) or "not stated"


def _device_table(devices: Sequence[Device]) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("device", numeric=False), *map(Column, ("FLOP/s", "downlink", "uplink", "latency", "memory"))]
    cells: list[Callable[[Device], str]] = [
        lambda d: d.name,
        _rates,
        lambda d: _link(d.downlink_bytes_per_s),
        lambda d: _link(d.uplink_bytes_per_s),
        lambda d: format_value(d.latency_s, Unit.SECONDS),
        lambda d: format_value(d.memory_bytes, Unit.BYTES),
    ]
    if any(device.power_watt is not None for device in devices):
        columns.append(Column("power"))
        cells.append(lambda d: "" if d.power_watt is None else format_value(d.power_watt, Unit.WATT))
    if any(device.dollars_per_hour is not None for device in devices):
        columns.append(Column("price"))
        cells.append(_price)
    if any(device.efficiency for device in devices):
        columns.append(Column("curve", numeric=False))
        cells.append(lambda d: f"{len(d.efficiency)} points" if d.efficiency else "flat")
    if any(device.spread for device in devices):
        columns.append(Column("spread of", numeric=False))
        cells.append(lambda d: ", ".join(sorted(d.spread)))
    columns.append(Column("known as", numeric=False))
    cells.append(_qualities)
    return columns, [[cell(device) for cell in cells] for device in devices]


def _server_table(servers: Sequence[Server]) -> tuple[list[Column], list[list[str]]]:
    figures = [Column(header) for header in ("FLOP/s", "memory", "bandwidth", "egress", "ingress")]
    priced = any(server.dollars_per_hour is not None for server in servers)
    columns = [Column("server", numeric=False), *figures, *([Column("price")] if priced else [])]
    columns.append(Column("known as", numeric=False))
    rows = [
        [
            server.name, _rates(server), format_value(server.memory_bytes, Unit.BYTES),
            format_value(server.memory_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
            _link(server.egress_bytes_per_s), _link(server.ingress_bytes_per_s), *([_price(server)] if priced else []),
            _qualities(server),
        ]
        for server in servers
    ]  # fmt: skip
    return columns, rows


def _price(member: Device | Server) -> str:
    return "" if member.dollars_per_hour is None else format_value(member.dollars_per_hour, Unit.DOLLARS_PER_HOUR)


def _link(value: float) -> str:
    """Links are known by their bits: a 100 Mbit/s link is called that, not 12.5 MB/s."""
    return format_value(value, Unit.BYTES_PER_S, bits=True)


def _provenance_table(fleet: Fleet) -> tuple[list[Column], list[list[str]]]:
    """Each source with the figures that it stands behind, and how many members have any of them from it."""
    figures: dict[tuple[str, Provenance], dict[str, None]] = {}
    members: Counter[tuple[str, Provenance]] = Counter()
    for kind, owners in (("device", fleet.devices), ("server", fleet.servers)):
        for owner in owners:
            for figure, provenance in owner.provenance.items():
                figures.setdefault((kind, provenance), {})[figure] = None
            members.update((kind, provenance) for provenance in set(owner.provenance.values()))
    columns = [Column(header, numeric=False) for header in ("of", "figures", "known as", "source", "date")] + [Column("members")]
    rows = [
        [kind, ", ".join(names), source.quality.value, source.source, source.date, count(members[kind, source])]
        for (kind, source), names in figures.items()
    ]
    return columns, rows or [["all", "all", "not stated", "the fleet file names no sources", "", count(len(fleet.devices))]]
