"""Profiles and the shipped catalogue on the terminal and as JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cleave_plan.fleet.catalogue import DEVICE_FIGURES, LINK_FIGURES, Catalogue, CatalogueEntry, spec_of
from cleave_plan.fleet.figures import SUSTAINED, Figure
from cleave_plan.profiles.database import ProfileSummary
from cleave_plan.profiles.records import GemmMeasurement, Profile
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, as_time, percent
from cleave_plan.units import Unit, count, format_value


def summaries_document(summaries: Sequence[ProfileSummary]) -> dict[str, Any]:
    """The JSON document of ``profile list``."""
    return {"profiles": [asdict(summary) for summary in summaries]}


def profile_document(profile: Profile) -> dict[str, Any]:
    """The JSON document of ``profile show``: figures in SI with their origin, and every GEMM timing."""
    return {
        "name": profile.name,
        "kind": profile.kind.value,
        "title": profile.title,
        "figures": _figures_document(profile.figures),
        "gemms": [asdict(gemm) | {"flop": gemm.flop, "flop_per_s": gemm.flop_per_s} for gemm in profile.gemms],
    }


def catalogue_document(catalogue: Catalogue) -> dict[str, Any]:
    """The JSON document of ``profile catalogue``."""
    return {
        kind: {name: {"title": entry.title, "figures": _figures_document(entry.figures)} for name, entry in entries.items()}
        for kind, entries in (("devices", catalogue.devices), ("links", catalogue.links))
    }


def _figures_document(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {
        name: {
            "value": figure.value,
            "spread": None if figure.spread is None else asdict(figure.spread),
            "provenance": None if figure.provenance is None else asdict(figure.provenance),
        }
        for name, figure in figures.items()
    }


def summaries_text(summaries: Sequence[ProfileSummary], screen: Screen, *, database: str) -> str:
    """The terminal report of ``profile list``."""
    sheet = Sheet(screen)
    sheet.heading(f"Profiles in {database}")
    columns = [
        Column("profile", numeric=False), Column("kind", numeric=False), Column("what it is", numeric=False), Column("figures"),
        Column("timings"), Column("of", numeric=False), Column("newest", numeric=False),
    ]  # fmt: skip
    rows = [[s.name, s.kind.value, s.title, count(s.figures), count(s.gemms), ", ".join(s.dtypes), s.date] for s in summaries]
    if rows:
        sheet.table(columns, rows)
    else:
        sheet.notes(["none yet: `cleave-plan profile measure` times this machine"])
    return sheet.text()


def profile_text(profile: Profile, screen: Screen) -> str:
    """The terminal report of ``profile show``."""
    sheet = Sheet(screen)
    sheet.heading(f"Profile {profile.name}")
    sheet.facts([Fact("kind", profile.kind.value), Fact("what it is", "", profile.title)])
    if profile.figures:
        sheet.heading("Figures")
        sheet.table(*_figure_table({"": profile.figures}, named=False))
    if profile.gemms:
        first = profile.gemms[0]
        sheet.heading(f"GEMM timings on {first.threads} thread{'s' if first.threads > 1 else ''}")
        sheet.table(*_timing_table(profile.gemms))
    return sheet.text()


def catalogue_text(catalogue: Catalogue, screen: Screen, *, every: bool = False) -> str:
    """The terminal report of ``profile catalogue``: a line for each entry, or with ``every`` each figure with its source."""
    sheet = Sheet(screen)
    for heading, entries, shown in (
        ("Devices", catalogue.devices, ("flops.float32", "flops.float16", "memory", "power")),
        ("Links", catalogue.links, ("downlink", "uplink", "latency")),
    ):
        sheet.heading(f"{heading} of the catalogue")
        if every:
            sheet.table(*_figure_table({_label(entry): entry.figures for entry in entries.values()}, named=True))
        else:
            sheet.table(*_entry_table(list(entries.values()), shown))
    if not every:
        sheet.notes(["FLOP/s are what a device sustains; --all shows peaks, shares, and the source and date of each figure"])
    return sheet.text()


def _entry_table(entries: Sequence[CatalogueEntry], shown: Sequence[str]) -> tuple[list[Column], list[list[str]]]:
    """One line for each entry: the figures that a fleet takes from it, and how they are known."""
    columns = [
        Column("name", numeric=False),
        Column("what it is", numeric=False),
        *map(Column, shown),
        Column("known as", numeric=False),
    ]
    rows = []
    for entry in entries:
        known = entry.known
        cells = [figure_text(name, known[name].value) if name in known else "" for name in shown]
        qualities = sorted({figure.provenance.quality.value for figure in known.values() if figure.provenance is not None})
        rows.append([entry.name, entry.title, *cells, ", ".join(qualities)])
    return columns, rows


def _label(entry: CatalogueEntry) -> str:
    return f"{entry.name} ({entry.title})"


def _figure_table(figures: Mapping[str, Mapping[str, Figure]], *, named: bool) -> tuple[list[Column], list[list[str]]]:
    """Figures with their origin, grouped by owner; the owner stands in the first of its rows."""
    spread = any(figure.spread for owned in figures.values() for figure in owned.values())
    headers = ("figure", "value", *(["quartiles", "samples"] if spread else []), "known as", "source", "date")
    columns = [Column(header, numeric=header in ("value", "samples")) for header in headers]
    rows = []
    for owner, owned in figures.items():
        for place, (name, figure) in enumerate(owned.items()):
            origin = figure.provenance
            words = ["not stated", "", ""] if origin is None else [origin.quality.value, origin.source, origin.date]
            quartiles = _spread_cells(name, figure) if spread else []
            first = [owner if place == 0 else ""] if named else []
            rows.append([*first, name, figure_text(name, figure.value), *quartiles, *words])
    return ([Column("name", numeric=False), *columns] if named else columns), rows


def _spread_cells(name: str, figure: Figure) -> list[str]:
    spread = figure.spread
    if spread is None:
        return ["", ""]
    return [f"{figure_text(name, spread.lower)} to {figure_text(name, spread.upper)}", count(spread.samples)]


def figure_text(name: str, value: float) -> str:
    """One figure for people: links in bits, a sustained share as a percentage."""
    if name == SUSTAINED:
        return percent(value)
    spec = spec_of(name, LINK_FIGURES if name in LINK_FIGURES else DEVICE_FIGURES, name)
    return format_value(value, spec.unit, bits=spec.bits)


def _timing_table(gemms: Sequence[GemmMeasurement]) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("dtype", numeric=False), *map(Column, ("M", "K", "N", "median", "quartiles", "repeats", "FLOP/s"))]
    rows = [
        [
            gemm.dtype, count(gemm.m), count(gemm.k), count(gemm.n), as_time(gemm.median_s),
            f"{as_time(gemm.lower_quartile_s)} to {as_time(gemm.upper_quartile_s)}", count(gemm.repeats),
            format_value(gemm.flop_per_s, Unit.FLOP_PER_S),
        ]
        for gemm in gemms
    ]  # fmt: skip
    return columns, rows
