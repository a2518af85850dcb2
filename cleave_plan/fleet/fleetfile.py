"""Fleet files: YAML that people write and ``fleet generate`` writes, with units on every figure.

    schema: 1
    name: kitchen
    servers:
      - {name: server-1, flops: 1 TFLOP/s, memory: 64 GB, memory_bandwidth: 50 GB/s, egress: 1 Gbit/s, ingress: 1 Gbit/s}
    devices:
      - {name: laptop, catalogue: apple-m4, link: us-fixed-2023, memory: 4 GB}
      - {name: phone, count: 3, flops: {float32: 1.1 TFLOP/s, float16: 2.2 TFLOP/s}, downlink: 97 Mbit/s, uplink: 9 Mbit/s,
         latency: 31 ms, memory: 1.5 GB, power: 5 W, price: 0.02 $/h, efficiency: [[1 MFLOP, 0.1], [1 GFLOP, 0.9]],
         provenance: {downlink: {quality: measured, source: speed test at home, date: 2025-11-02}}}

``flops`` is one figure for every element type or a mapping. ``catalogue`` and ``link`` name entries of the shipped
catalogue whose figures fill what the file leaves out (an own ``flops`` replaces the entry's, for all element types).
``count`` makes NAME-1 .. NAME-N. ``spread: {downlink: [70 Mbit/s, 99 Mbit/s, 9]}`` gives quartiles and number of samples of
a figure that is their median (flops, downlink, uplink, latency), for plans at a percentile
(:mod:`cleave_plan.fleet.percentile`). Links and memory of servers may be ``unlimited``. What members share may stand apart
(:mod:`cleave_plan.fleet.sections`), and a large fleet may be a ``table:`` (:mod:`cleave_plan.fleet.table`) instead of
``devices:``. Unknown keys, duplicate keys and bare numbers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.catalogue import catalogue
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.fleet.figures import DEVICE_SPECS, FLOPS, SERVER_SPECS, Figure, build_device, read_figure, read_flops
from cleave_plan.fleet.fleetdump import SCHEMA, dump_fleet
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.reading import expect_count, expect_list, expect_mapping, expect_name, expect_text
from cleave_plan.fleet.sections import EFFICIENCY, SPREAD, Marks, Shared, read_shared, read_spreads
from cleave_plan.fleet.table import PROVENANCE, read_table
from cleave_plan.fleet.textfile import read_text, write_text
from cleave_plan.fleet.yamlfile import parse_yaml

__all__ = ["dump_fleet", "load_fleet", "parse_fleet", "save_fleet"]

LARGEST_FLEET = 1_000_000
_ROOT_KEYS = ("schema", "name", "sources", "provenance", "curves", "servers", "devices", "table")
_SERVER_KEYS = ("name", "count", FLOPS, *SERVER_SPECS, PROVENANCE)
_SERVER_NEEDS = ("name", FLOPS, *(name for name, spec in SERVER_SPECS.items() if not spec.optional))
_DEVICE_KEYS = ("name", "count", "catalogue", "link", FLOPS, *DEVICE_SPECS, EFFICIENCY, PROVENANCE, SPREAD)
_PASTE_SERVERS = (
    "paste and adapt: servers: [{name: server-1, flops: 1 TFLOP/s, memory: 4 TB, memory_bandwidth: 200 GB/s, "
    "egress: 100 Gbit/s, ingress: 100 Gbit/s}]"
)
_PASTE_DEVICES = (
    "paste and adapt: devices: [{name: phone-1, flops: 1.1 TFLOP/s, downlink: 97 Mbit/s, uplink: 9 Mbit/s, "
    "latency: 31 ms, memory: 1.5 GB}]"
)


def load_fleet(path: str | Path) -> Fleet:
    """The fleet in a YAML file; raises InputFileError or MissingFigureError (exit 4) naming the place in the file."""
    path = Path(path)
    return parse_fleet(read_text(path, "a fleet file (YAML)"), str(path), name=path.stem)


def save_fleet(fleet: Fleet, path: str | Path) -> None:
    """Write :func:`dump_fleet` to ``path``, beside and renamed; raises ExecutionError when it cannot be written."""
    write_text(path, dump_fleet(fleet))


def parse_fleet(text: str, where: str, *, name: str = "fleet") -> Fleet:
    """The fleet in YAML ``text``; ``where`` names the file in errors, ``name`` the fleet when the text does not."""
    value = parse_yaml(text, where)
    if value is None:
        raise InputFileError("the file is empty", where=where, expected="a fleet file", remedy=_PASTE_DEVICES)
    root = expect_mapping(value, where, keys=_ROOT_KEYS)
    if root.get("schema") != SCHEMA:
        found = f"found schema {root['schema']!r}" if "schema" in root else "no schema key"
        raise InputFileError(found, where=f"{where}: schema", expected=f"schema: {SCHEMA}", remedy="this program reads version 1")
    shared = read_shared(root, where)
    servers = _read_servers(root.get("servers"), shared, f"{where}: servers")
    devices = _read_devices(root, shared, where)
    return make_fleet(expect_name(root.get("name", name), f"{where}: name"), servers, devices)


def _read_servers(value: object, shared: Shared, place: str) -> list[Server]:
    if not value:
        raise InputFileError("no servers are given", where=place, expected="at least one server", remedy=_PASTE_SERVERS)
    servers: list[Server] = []
    for index, item in enumerate(expect_list(value, place, "servers", remedy=_PASTE_SERVERS)):
        here = f"{place}[{index}]"
        entry = expect_mapping(item, here, keys=_SERVER_KEYS, required=_SERVER_NEEDS)
        given = {key: spec for key, spec in SERVER_SPECS.items() if key in entry}
        fields = {spec.field: read_figure(entry[key], spec, f"{here}.{key}") for key, spec in given.items()}
        flops = read_flops(entry[FLOPS], f"{here}.{FLOPS}")
        server = Server(
            name=expect_name(entry["name"], f"{here}.name"),
            flop_per_s={key.partition(".")[2]: number for key, number in flops.items()},
            provenance=_marks(entry, shared, here),
            **fields,
        )
        servers += (replace(server, name=name) for name in _names(server.name, entry, here, LARGEST_FLEET - len(servers)))
    _refuse_doubles([server.name for server in servers], place, "server")
    return servers


def _read_devices(root: Mapping[str, Any], shared: Shared, where: str) -> list[Device]:
    if "table" in root:
        if "devices" in root:
            raise InputFileError("both devices and table are given", where=where, expected="one of the two")
        devices = read_table(root["table"], shared, f"{where}: table", LARGEST_FLEET)
        place = f"{where}: table.rows"
    else:
        devices = []
        place = f"{where}: devices"
        for index, item in enumerate(expect_list(root.get("devices") or [], place, "devices", remedy=_PASTE_DEVICES)):
            devices += _read_device(item, shared, f"{place}[{index}]", LARGEST_FLEET - len(devices))
    if not devices:
        raise InputFileError("the fleet has no devices", where=place, expected="at least one device", remedy=_PASTE_DEVICES)
    _refuse_doubles([device.name for device in devices], place, "device")
    return devices


def _read_device(item: object, shared: Shared, place: str, largest: int) -> Iterator[Device]:
    """One entry of ``devices:``, which ``count`` may make into several."""
    entry = expect_mapping(item, place, keys=_DEVICE_KEYS, required=("name",))
    figures = _named_figures(entry, place)
    if FLOPS in entry:
        figures = {key: figure for key, figure in figures.items() if not key.startswith(f"{FLOPS}.")}
        figures |= {key: Figure(value=value) for key, value in read_flops(entry[FLOPS], f"{place}.{FLOPS}").items()}
    for key, spec in DEVICE_SPECS.items():
        if key in entry:
            figures[key] = Figure(value=read_figure(entry[key], spec, f"{place}.{key}"))
    if SPREAD in entry:
        for key, spread in read_spreads(entry[SPREAD], figures, f"{place}.{SPREAD}").items():
            figures[key] = replace(figures[key], spread=spread)
    marks = _marks(entry, shared, place)
    inherited = {key: figure.provenance for key, figure in figures.items() if figure.provenance is not None}
    device = build_device(
        expect_name(entry["name"], f"{place}.name"),
        figures,
        efficiency=shared.curve(entry[EFFICIENCY], f"{place}.{EFFICIENCY}") if EFFICIENCY in entry else (),
        provenance={key: value for key, value in inherited.items() if key.partition(".")[0] not in marks} | marks,
        place=place,
        remedy="write it here, or name a catalogue entry and a link that have it",
    )
    return (replace(device, name=name) for name in _names(device.name, entry, place, largest))


def _named_figures(entry: Mapping[str, Any], place: str) -> dict[str, Figure]:
    """What the catalogue knows of the entries that a device names."""
    figures: dict[str, Figure] = {}
    if "catalogue" in entry:
        name = expect_text(entry["catalogue"], f"{place}.catalogue", "the name of a catalogue device")
        figures |= catalogue().device(name, f"{place}.catalogue").known
    if "link" in entry:
        name = expect_text(entry["link"], f"{place}.link", "the name of a catalogue link")
        figures |= catalogue().link(name, f"{place}.link").known
    return figures


def _marks(entry: Mapping[str, Any], shared: Shared, place: str) -> Marks:
    return shared.marks(entry[PROVENANCE], f"{place}.{PROVENANCE}") if PROVENANCE in entry else {}


def _names(name: str, entry: Mapping[str, Any], place: str, largest: int) -> list[str]:
    if "count" not in entry:
        return [name]
    return [f"{name}-{index + 1}" for index in range(expect_count(entry["count"], f"{place}.count", largest))]


def _refuse_doubles(names: list[str], place: str, kind: str) -> None:
    """Raise for two members of one name, saying which; places count members after ``count`` is expanded."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            raise InputFileError(
                f"two {kind}s are named {name!r} ({kind} {first[name] + 1} and {kind} {index + 1} of the fleet)",
                where=place, expected=f"a different name for each {kind}", remedy="rename one of them",
            )  # fmt: skip
