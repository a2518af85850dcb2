"""The shipped catalogue: devices and links by public figures, each with source, date and how it is known.

The data is ``catalogue.yaml`` beside this file. Fleet files name entries with ``catalogue: NAME`` and ``link: NAME``,
the profile database with the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.device import Provenance, Spread
from cleave_plan.fleet.figures import (
    DEVICE_SPECS,
    FLOPS,
    FLOPS_SPEC,
    LINK_SPECS,
    OVERHEAD,
    OVERHEAD_SPEC,
    PEAK,
    SERVER_SPECS,
    SUSTAINED,
    Figure,
    FigureSpec,
    check_dtype,
    read_figure,
    sustained_flops,
)
from cleave_plan.fleet.provenance import read_reference, read_sources
from cleave_plan.fleet.reading import expect_mapping, expect_name, expect_text, unknown
from cleave_plan.fleet.textfile import read_text
from cleave_plan.fleet.yamlfile import parse_yaml

SCHEMA = "1"
LINK_FIGURES: Mapping[str, FigureSpec] = LINK_SPECS | {OVERHEAD: OVERHEAD_SPEC}
DEVICE_FIGURES: Mapping[str, FigureSpec] = {
    name: spec for name, spec in DEVICE_SPECS.items() if name not in LINK_SPECS
} | {"memory_bandwidth": SERVER_SPECS["memory_bandwidth"]}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One device or link: a title and its figures in SI by name (see :mod:`cleave_plan.fleet.figures`).

    ``peak.*`` figures are peaks; every other figure is what the device or link holds.
    """

    name: str
    title: str
    figures: Mapping[str, Figure]

    @property
    def known(self) -> dict[str, Figure]:
        """Figures a fleet can use: ``flops.*`` (peaks times the sustained share where nothing better is known),
        memory, power, and for links the latency with the overhead in it."""
        rest = {name: figure for name, figure in self.figures.items() if name in DEVICE_SPECS}
        return sustained_flops(self.figures) | with_overhead(rest, self.figures.get(OVERHEAD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Devices and links by name."""

    devices: Mapping[str, CatalogueEntry]
    links: Mapping[str, CatalogueEntry]

    def device(self, name: str, place: str) -> CatalogueEntry:
        """The device ``name``; raises InputFileError at ``place`` with the nearest name suggested."""
        return _entry(self.devices, "catalogue device", name, place)

    def link(self, name: str, place: str) -> CatalogueEntry:
        """The link ``name``; raises InputFileError at ``place`` with the nearest name suggested."""
        return _entry(self.links, "catalogue link", name, place)


def _entry(entries: Mapping[str, CatalogueEntry], kind: str, name: str, place: str) -> CatalogueEntry:
    if name not in entries:
        raise unknown(f"{kind} {name!r}", name, entries, place)
    return entries[name]


def with_overhead(figures: Mapping[str, Figure], overhead: Figure | None) -> dict[str, Figure]:
    """``figures`` with the per-message overhead added to the latency, which a device pays as one figure per tile.

    Their quartiles add up as if both were slow at the same time, which widens the spread of the sum if anything.
    """
    latency = figures.get("latency")
    if overhead is None or latency is None:
        return dict(figures)
    parts = [(f.spread or Spread(lower=f.value, upper=f.value, samples=0)) for f in (latency, overhead)]
    counts = [part.samples for part in parts if part.samples]
    spread = Spread(lower=sum(p.lower for p in parts), upper=sum(p.upper for p in parts), samples=min(counts)) if counts else None
    return dict(figures) | {"latency": Figure(value=latency.value + overhead.value, provenance=latency.provenance, spread=spread)}


@cache
def catalogue() -> Catalogue:
    """The catalogue that ships with the program, read once."""
    path = Path(__file__).with_name("catalogue.yaml")
    return parse_catalogue(read_text(path, "the catalogue that ships with the program"), path.name)


def parse_catalogue(text: str, where: str) -> Catalogue:
    """A catalogue from YAML text; ``where`` names it in errors. Raises InputFileError with the place of a fault."""
    root = expect_mapping(
        parse_yaml(text, where), where, keys=("schema", "sources", "devices", "links"), required=("schema", "devices", "links")
    )
    if root["schema"] != SCHEMA:
        raise InputFileError(f"found schema {root['schema']!r}", where=f"{where}: schema", expected=SCHEMA)
    sources = read_sources(root.get("sources"), f"{where}: sources")
    sections = {}
    for section, specs in (("devices", DEVICE_FIGURES), ("links", LINK_FIGURES)):
        place = f"{where}: {section}"
        entries = expect_mapping(root[section], place)
        sections[section] = MappingProxyType(
            {name: _read_entry(name, entry, specs, sources, f"{place}.{name}") for name, entry in entries.items()}
        )
    return Catalogue(devices=sections["devices"], links=sections["links"])


def _read_entry(
    name: str, value: object, specs: Mapping[str, FigureSpec], sources: Mapping[str, Provenance], place: str
) -> CatalogueEntry:
    entry = expect_mapping(value, place, required=("title",))
    figures = {
        key: _read_catalogued(key, figure, specs, sources, f"{place}.{key}") for key, figure in entry.items() if key != "title"
    }
    if any(key.startswith(f"{PEAK}.") for key in figures) and SUSTAINED not in figures:
        raise InputFileError(
            "a peak without a sustained share", where=place, expected=f"{SUSTAINED}: the share of the peak that is held"
        )
    title = expect_text(entry["title"], f"{place}.title", "a title")
    return CatalogueEntry(name=expect_name(name, place), title=title, figures=MappingProxyType(figures))


def _read_catalogued(
    key: str, value: object, specs: Mapping[str, FigureSpec], sources: Mapping[str, Provenance], place: str
) -> Figure:
    figure = expect_mapping(value, place, keys=("value", "from"), required=("value", "from"))
    if key == SUSTAINED:
        number = read_share(figure["value"], f"{place}.value")
    else:
        number = read_figure(figure["value"], spec_of(key, specs, place), f"{place}.value")
    return Figure(value=number, provenance=read_reference(figure["from"], sources, f"{place}.from"))


def spec_of(key: str, specs: Mapping[str, FigureSpec], place: str) -> FigureSpec:
    """How the figure ``key`` is written: one of ``specs``, or ``flops.*`` and ``peak.*`` where devices are described."""
    kind, _, dtype = key.partition(".")
    if kind in (FLOPS, PEAK) and "memory" in specs:
        check_dtype(dtype, place)
        return FLOPS_SPEC
    if key not in specs:
        raise unknown(f"figure {key!r}", key, _figure_names(specs), place)
    return specs[key]


def _figure_names(specs: Mapping[str, FigureSpec]) -> Collection[str]:
    return (*specs, f"{FLOPS}.float32", f"{PEAK}.float32", SUSTAINED) if "memory" in specs else tuple(specs)


def read_share(value: object, place: str) -> float:
    """A plain number above 0 and at most 1."""
    try:
        share = float(value) if isinstance(value, str) else -1.0
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise InputFileError(f"found {value!r}", where=place, expected="a share above 0 and at most 1, such as 0.68")
    return share
