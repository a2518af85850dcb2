"""Writing fleets as YAML that a person can read and that reads back as exactly the same fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.device import Device, Fleet, Provenance, Server, Spread
from cleave_plan.fleet.figures import DEVICE_SPECS, FLOPS, FLOPS_SPEC, SERVER_SPECS, figures_of
from cleave_plan.fleet.reading import LONGEST_NAME, is_clean
from cleave_plan.fleet.sections import EFFICIENCY, SPREAD, Curve, check_marked
from cleave_plan.fleet.table import PROVENANCE, write_table
from cleave_plan.units import Unit, format_exact

SCHEMA = "1"
TABLE_FROM = 1000
"""Fleets of this many devices are written as a table, smaller ones as a list."""

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./()+*% -]*[A-Za-z0-9_./()+*%]")
_OTHER_MEANINGS = {"true", "false", "yes", "no", "on", "off", "null", "none", "nan", "inf"}
_HEADER = """\
# Fleet of {devices} and {servers}.
# Each figure's unit stands with it; `provenance` says by figure where it comes from (measured, specified, assumed),
# by a name under `sources`. A figure without provenance counts as specified by this file.
"""


@dataclass(slots=True)
class _Pool:
    """Values that members share, each written once under a name: sources, sets of provenance, curves."""

    sources: dict[Provenance, str] = field(default_factory=dict)
    sets: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)  # by identity: generated fleets share one mapping per kind of device
    curves: dict[Curve, str] = field(default_factory=dict)

    def source(self, record: Provenance) -> str:
        """The name of a source, given to it at first sight."""
        if record not in self.sources:
            place = sum(known.quality is record.quality for known in self.sources) + 1
            self.sources[record] = f"{record.quality.value}-{place}"
        return self.sources[record]

    def marks(self, member: Device | Server) -> str:
        """The name of a member's provenance set ("" for none)."""
        if not member.provenance:
            return ""
        if id(member.provenance) not in self.seen:
            for figure in member.provenance:
                check_marked(figure, f"{member.name}.{PROVENANCE}")
            key = tuple(sorted((figure, self.source(record)) for figure, record in member.provenance.items()))
            self.seen[id(member.provenance)] = self.sets.setdefault(key, f"figures-{len(self.sets) + 1}")
        return self.seen[id(member.provenance)]

    def curve(self, device: Device) -> str:
        """The name of a device's efficiency curve ("" for none)."""
        return self.curves.setdefault(device.efficiency, f"curve-{len(self.curves) + 1}") if device.efficiency else ""

    def lines(self) -> list[str]:
        """The shared sections."""
        lines = ["sources:"] if self.sources else []
        for record, name in self.sources.items():
            fields = {"quality": record.quality.value, "source": record.source} | ({"date": record.date} if record.date else {})
            lines.append(f"  {name}: {_flow({key: _scalar(text) for key, text in fields.items()})}")
        lines += ["provenance:"] if self.sets else []
        lines += [f"  {name}: {_flow(dict(key))}" for key, name in self.sets.items()]
        lines += ["curves:"] if self.curves else []
        for points, name in self.curves.items():
            pairs = (f"[{format_exact(point.flop, Unit.FLOP)}, {point.fraction!r}]" for point in points)
            lines.append(f"  {name}: [{', '.join(pairs)}]")
        return lines


def dump_fleet(fleet: Fleet, *, table_from: int = TABLE_FROM) -> str:
    """``fleet`` as YAML: ``parse_fleet(dump_fleet(fleet), ...)`` equals it, its fingerprint included.

    Fleets of ``table_from`` devices or more are written as a table. Raises InputFileError for names that no file can
    hold (control characters, blanks at the ends) and for provenance of figures that do not exist.
    """
    for name in (fleet.name, *(server.name for server in fleet.servers), *(device.name for device in fleet.devices)):
        _check_name(name)
    pool = _Pool()
    servers = ["servers:", *(f"  - {_member(server, pool)}" for server in fleet.servers)]
    if len(fleet.devices) >= table_from and not any(device.spread for device in fleet.devices):  # a table has no quartiles
        devices = write_table(fleet.devices, pool.marks, pool.curve)
    else:
        devices = ["devices:", *(f"  - {_member(device, pool)}" for device in fleet.devices)]
    counts = {"devices": _counted(len(fleet.devices), "device"), "servers": _counted(len(fleet.servers), "server")}
    head = [f"schema: {SCHEMA}", f"name: {_scalar(fleet.name)}"]
    return _HEADER.format(**counts) + "\n".join([*head, *pool.lines(), *servers, *devices]) + "\n"


def _member(member: Device | Server, pool: _Pool) -> str:
    """One device or server on one line."""
    specs = DEVICE_SPECS if isinstance(member, Device) else SERVER_SPECS
    flops = {dtype: format_exact(value, FLOPS_SPEC.unit) for dtype, value in sorted(member.flop_per_s.items())}
    line = {"name": _scalar(member.name), FLOPS: flops["any"] if list(flops) == ["any"] else _flow(flops)}
    for name, value in figures_of(member).items():
        if name in specs:
            line[name] = format_exact(value, specs[name].unit, bits=specs[name].bits)
    if isinstance(member, Device) and member.efficiency:
        line[EFFICIENCY] = pool.curve(member)
    if member.provenance:
        line[PROVENANCE] = pool.marks(member)
    if isinstance(member, Device) and member.spread:
        line[SPREAD] = _flow({name: _quartiles(name, spread) for name, spread in sorted(member.spread.items())})
    return _flow(line)


def _quartiles(name: str, spread: Spread) -> str:
    spec = DEVICE_SPECS.get(name, FLOPS_SPEC)
    lower, upper = (format_exact(value, spec.unit, bits=spec.bits) for value in (spread.lower, spread.upper))
    return f"[{lower}, {upper}, {spread.samples}]"


def _flow(entries: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {text}" for key, text in entries.items()) + "}"


def _scalar(text: str) -> str:
    """``text`` plain where every YAML reader sees the same text, otherwise in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_MEANINGS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _check_name(name: str) -> None:
    if not is_clean(name) or len(name) > LONGEST_NAME:
        raise InputFileError(
            f"the name {name!r} cannot be written to a file",
            expected=f"1 to {LONGEST_NAME} printable characters, no blanks around them",
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
