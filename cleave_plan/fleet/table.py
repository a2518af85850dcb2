"""Large fleets as a table: one line of comma-separated values per device inside the YAML file.

    table:
      columns: [name, flops.any in FLOP/s, downlink in B/s, uplink in B/s, latency in s, memory in B, provenance]
      rows: |
        device-1,6.773956048555964e12,75720500.0,9120000.0,0,1480000000.0,figures-1

The unit stands in the head of its column, so cells are plain numbers. An empty cell is an absent figure. Names of
provenance sets and curves refer to the shared sections. A YAML parser sees one long text, which is why 100,000 devices
load in about a second.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.device import Device
from cleave_plan.fleet.figures import DEVICE_SPECS, FLOPS, FLOPS_SPEC, FigureSpec, check_dtype, figures_of
from cleave_plan.fleet.reading import expect_list, expect_mapping, expect_name, expect_text, unknown
from cleave_plan.fleet.sections import EFFICIENCY, Shared
from cleave_plan.units import is_number, scale_of

PROVENANCE = "provenance"
_TEXT_COLUMNS = ("name", EFFICIENCY, PROVENANCE)
_REQUIRED = ("name", *(name for name, spec in DEVICE_SPECS.items() if not spec.optional))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column: the figure, how it is written, and what one of its unit is in SI."""

    name: str
    spec: FigureSpec | None
    scale: Fraction


def read_table(value: object, shared: Shared, place: str, largest: int) -> list[Device]:
    """The devices of a ``table:`` section, at most ``largest``; raises InputFileError naming ``table.rows[i].figure``."""
    section = expect_mapping(value, place, keys=("columns", "rows"), required=("columns", "rows"))
    heads = expect_list(section["columns"], f"{place}.columns", "column heads such as `downlink in B/s`")
    columns = [_read_column(head, f"{place}.columns[{index}]") for index, head in enumerate(heads)]
    _check_columns([column.name for column in columns], f"{place}.columns")
    text = section["rows"]
    if not isinstance(text, str):
        raise InputFileError("found no text", where=f"{place}.rows", expected="lines of comma-separated values after `rows: |`")
    devices = []
    for index, cells in enumerate(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)):
        if index >= largest:
            raise InputFileError("too many devices", where=f"{place}.rows", expected=f"at most {largest}")
        devices.append(_read_row(cells, columns, shared, f"{place}.rows[{index}]"))
    return devices


def _read_column(value: object, place: str) -> _Column:
    name, _, unit = expect_text(value, place, "a column head").partition(" in ")
    if name in _TEXT_COLUMNS:
        return _Column(name=name, spec=None, scale=Fraction(1))
    if name.startswith(f"{FLOPS}."):
        check_dtype(name.partition(".")[2], place)
    elif name not in DEVICE_SPECS:
        raise unknown(f"column {name!r}", name, (*_TEXT_COLUMNS, *DEVICE_SPECS, f"{FLOPS}.float32"), place)
    spec = DEVICE_SPECS.get(name, FLOPS_SPEC)
    return _Column(name=name, spec=spec, scale=scale_of(unit.strip(), spec.unit, place))


def _check_columns(names: Sequence[str], place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputFileError(f"two columns are {name!r}", where=place, expected="each column once")
    missing = [name for name in _REQUIRED if name not in names]
    if not any(name.startswith(f"{FLOPS}.") for name in names):
        missing.append(f"{FLOPS}.any")
    if missing:
        raise InputFileError(f"no column for {', '.join(missing)}", where=place, expected="every figure that a device needs")


def _read_row(cells: list[str], columns: Sequence[_Column], shared: Shared, place: str) -> Device:
    if len(cells) != len(columns):
        raise InputFileError(f"found {len(cells)} values", where=place, expected=f"{len(columns)}, one for each column")
    text: dict[str, str] = {}
    flops: dict[str, float] = {}
    fields: dict[str, float] = {}
    for cell, column in zip(cells, columns, strict=True):
        if column.spec is None:
            text[column.name] = cell
        elif cell:
            number = _read_cell(cell, column, column.spec, place)
            if column.spec is FLOPS_SPEC:
                flops[column.name.partition(".")[2]] = number
            else:
                fields[column.spec.field] = number
        elif column.name in _REQUIRED:
            raise InputFileError("found nothing", where=f"{place}.{column.name}", expected="a figure for every device")
    if not flops:
        raise InputFileError("no FLOP/s figure", where=f"{place}.{FLOPS}", expected="a figure for at least one element type")
    return Device(
        name=expect_name(text["name"], f"{place}.name"),
        flop_per_s=flops,
        efficiency=shared.curve(text[EFFICIENCY], f"{place}.{EFFICIENCY}") if text.get(EFFICIENCY) else (),
        provenance=shared.marks(text[PROVENANCE], f"{place}.{PROVENANCE}") if text.get(PROVENANCE) else {},
        **fields,  # type: ignore[arg-type]
    )


def _read_cell(cell: str, column: _Column, spec: FigureSpec, place: str) -> float:
    number = math.nan
    if is_number(cell):
        # Fractions are exact but slow; most columns are in SI already.
        number = float(cell) if column.scale == 1 else _scaled(cell, column.scale)
    if not (0 < number < math.inf or (number == 0 and spec.zero)):
        limit = "0 or more" if spec.zero else "above 0"
        raise InputFileError(f"found {cell!r}", where=f"{place}.{column.name}", expected=f"a plain finite number {limit}")
    return number


def _scaled(cell: str, scale: Fraction) -> float:
    # float() first: it bounds the exponent before it is expanded exactly
    return float(Fraction(cell) * scale) if 1e-300 < abs(float(cell)) < 1e300 else float(cell) * float(scale)


def write_table(devices: Iterable[Device], provenance: Callable[[Device], str], curve: Callable[[Device], str]) -> list[str]:
    """The lines of a ``table:`` section; ``provenance`` and ``curve`` name the shared entries of a device ("" for none)."""
    devices = list(devices)
    figures: Mapping[str, FigureSpec] = {
        f"{FLOPS}.{dtype}": FLOPS_SPEC for dtype in sorted({dtype for device in devices for dtype in device.flop_per_s})
    } | {name: spec for name, spec in DEVICE_SPECS.items() if any(getattr(d, spec.field) is not None for d in devices)}
    extra = {PROVENANCE: provenance, EFFICIENCY: curve}
    extra = {name: of for name, of in extra.items() if any(map(of, devices))}
    heads = ["name", *(f"{name} in {_SI[name.partition('.')[0]]}" for name in figures), *extra]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for device in devices:
        known = figures_of(device)
        cells = [repr(float(known[name])).removesuffix(".0") if name in known else "" for name in figures]
        writer.writerow([device.name, *cells, *(of(device) for of in extra.values())])
    return ["table:", f"  columns: [{', '.join(heads)}]", "  rows: |", *("    " + line for line in out.getvalue().splitlines())]


_SI = {FLOPS: "FLOP/s", "downlink": "B/s", "uplink": "B/s", "latency": "s", "memory": "B", "power": "W",
       "price": "$/h"}  # fmt: skip
