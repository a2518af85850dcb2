"""Profiles as a JSON file: what ``profile export`` writes, ``profile import`` reads, and a person can write by hand.

    {"schema_version": 1,
     "profiles": [{"name": "home", "kind": "link", "title": "DSL at home", "figures": {
         "downlink": {"value": 12500000.0, "quality": "measured", "source": "speed test", "date": "2025-11-02",
                      "spread": {"lower": 12300000.0, "upper": 12600000.0, "samples": 7}}, ...}}]}

Figures are in SI: bytes, bytes/s, FLOP/s, seconds, watts; ``spread`` (quartiles) may be missing. Unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import msgspec

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.device import Provenance, Quality, Spread
from cleave_plan.fleet.figures import Figure
from cleave_plan.fleet.textfile import read_text, write_text
from cleave_plan.profiles.records import GemmMeasurement, Profile, ProfileKind

SCHEMA_VERSION = 1
_EXPECTED = "a JSON file of profiles, as `cleave-plan profile export` writes it"


class _SpreadRow(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    lower: float
    upper: float
    samples: int


class _FigureRow(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    value: float
    quality: Quality
    source: str
    date: str = ""
    spread: _SpreadRow | None = None


class _GemmRow(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    dtype: str
    m: int
    k: int
    n: int
    threads: int
    median_s: float
    lower_quartile_s: float
    upper_quartile_s: float
    repeats: int
    numpy: str
    blas: str
    date: str


class _ProfileRow(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: ProfileKind
    title: str
    figures: dict[str, _FigureRow] = {}
    gemms: tuple[_GemmRow, ...] = ()


class _File(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    profiles: tuple[_ProfileRow, ...]


def write_profiles(profiles: Iterable[Profile], path: str | Path) -> None:
    """Write ``profiles`` as JSON, beside and renamed; raises ExecutionError when the file cannot be written."""
    rows = tuple(
        _ProfileRow(
            name=profile.name, kind=profile.kind, title=profile.title,
            figures={name: _figure_row(figure) for name, figure in profile.figures.items()},
            gemms=tuple(_GemmRow(**asdict(gemm)) for gemm in profile.gemms),
        )
        for profile in profiles
    )  # fmt: skip
    encoded = msgspec.json.encode(_File(schema_version=SCHEMA_VERSION, profiles=rows))
    write_text(path, msgspec.json.format(encoded, indent=1).decode() + "\n")


def _figure_row(figure: Figure) -> _FigureRow:
    mark = figure.provenance
    if mark is None:
        raise ValueError("a profile's figure always has provenance")
    spread = None if figure.spread is None else _SpreadRow(**asdict(figure.spread))
    return _FigureRow(value=float(figure.value), quality=mark.quality, source=mark.source, date=mark.date, spread=spread)


def read_profiles(path: str | Path) -> tuple[Profile, ...]:
    """The profiles of a JSON file; raises InputFileError naming the place in the file or the profile."""
    text = read_text(path, _EXPECTED)
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise InputFileError(f"schema_version {version}", where=f"{path}: $.schema_version", expected=str(SCHEMA_VERSION))
        rows = msgspec.json.decode(text, type=_File).profiles
    except msgspec.DecodeError as error:  # ValidationError, its child, names the place as $.profiles[0].kind
        raise InputFileError(str(error), where=str(path), expected=_EXPECTED) from error
    except RecursionError as error:
        raise InputFileError("nested too deeply", where=str(path), expected=_EXPECTED) from error
    try:
        profiles = tuple(_profile(row) for row in rows)
    except InputFileError as error:
        raise InputFileError(error.what, where=f"{path}: {error.where}", expected=error.expected, remedy=error.remedy) from error
    names = [profile.name for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise InputFileError(f"two profiles are named {name!r}", where=str(path), expected="each name once")
    return profiles


class _Version(msgspec.Struct):
    schema_version: int


def _profile(row: _ProfileRow) -> Profile:
    return Profile(
        name=row.name,
        kind=row.kind,
        title=row.title,
        figures={name: _figure(each) for name, each in row.figures.items()},
        gemms=tuple(GemmMeasurement(**msgspec.structs.asdict(gemm)) for gemm in row.gemms),
    )


def _figure(row: _FigureRow) -> Figure:
    return Figure(
        value=row.value,
        provenance=Provenance(quality=row.quality, source=row.source, date=row.date),
        spread=None if row.spread is None else Spread(**msgspec.structs.asdict(row.spread)),
    )
