"""Figures by name: which a device, link or server has, in which unit, and how a device is put together from them.

Names are the keys of fleet files: ``flops.float32`` (sustained FLOP/s for one element type, ``flops.any`` for all),
``downlink``, ``uplink``, ``latency``, ``memory``, ``power``, ``price``; servers have ``memory_bandwidth``, ``egress``,
``ingress`` and ``price`` (what an hour of it costs).
The catalogue and the profile database also know ``peak.float32`` (a data sheet's peak), ``sustained`` (the share of its
peak that a device holds under load) and ``overhead`` (seconds per message, which a device pays with its latency).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError, MissingFigureError
from cleave_plan.fleet.device import ANY_DTYPE, Device, EfficiencyPoint, Provenance, Server, Spread
from cleave_plan.fleet.provenance import weakest
from cleave_plan.fleet.reading import kind_of, unknown
from cleave_plan.units import Unit, parse

FLOPS, PEAK, SUSTAINED, OVERHEAD = "flops", "peak", "sustained", "overhead"
DTYPE_NAMES = (ANY_DTYPE, *(dtype.value for dtype in DType if dtype is not DType.STRING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure in SI with where it came from (None: specified by the file that it stands in), and its spread if measured so."""

    value: float
    provenance: Provenance | None = None
    spread: Spread | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """How a figure is written: its unit, the field it fills, whether 0 or "unlimited" is allowed, bits or bytes."""

    unit: Unit
    field: str
    zero: bool = False
    unlimited: bool = False
    bits: bool = False
    optional: bool = False


FLOPS_SPEC = FigureSpec(unit=Unit.FLOP_PER_S, field="flop_per_s")
LINK_SPECS = {
    "downlink": FigureSpec(unit=Unit.BYTES_PER_S, field="downlink_bytes_per_s", bits=True),
    "uplink": FigureSpec(unit=Unit.BYTES_PER_S, field="uplink_bytes_per_s", bits=True),
    "latency": FigureSpec(unit=Unit.SECONDS, field="latency_s", zero=True),
}
PRICE_SPEC = FigureSpec(unit=Unit.DOLLARS_PER_HOUR, field="dollars_per_hour", zero=True, optional=True)
DEVICE_SPECS = LINK_SPECS | {
    "memory": FigureSpec(unit=Unit.BYTES, field="memory_bytes"),
    "power": FigureSpec(unit=Unit.WATT, field="power_watt", zero=True, optional=True),
    "price": PRICE_SPEC,
}
SERVER_SPECS = {
    "memory": FigureSpec(unit=Unit.BYTES, field="memory_bytes", unlimited=True),
    "memory_bandwidth": FigureSpec(unit=Unit.BYTES_PER_S, field="memory_bandwidth_bytes_per_s"),
    "egress": FigureSpec(unit=Unit.BYTES_PER_S, field="egress_bytes_per_s", unlimited=True, bits=True),
    "ingress": FigureSpec(unit=Unit.BYTES_PER_S, field="ingress_bytes_per_s", unlimited=True, bits=True),
    "price": PRICE_SPEC,
}
OVERHEAD_SPEC = FigureSpec(unit=Unit.SECONDS, field="", zero=True)


def read_figure(value: object, spec: FigureSpec, place: str) -> float:
    """A figure's text in SI; raises InputFileError when it is no such quantity, or 0 where that is not allowed."""
    if not isinstance(value, str):
        raise InputFileError(f"found {kind_of(value)}", where=place, expected=f"{spec.unit.value} with its unit")
    number = parse(value, spec.unit, place, unlimited=spec.unlimited)
    if number == 0 and not spec.zero:
        raise InputFileError(f"found {value!r}", where=place, expected=f"{spec.unit.value} above 0")
    return number


def read_flops(value: object, place: str, *, prefix: str = FLOPS) -> dict[str, float]:
    """``flops:`` as one figure for all element types, or a mapping from element type to figure, keyed by figure name."""
    if not isinstance(value, dict):
        return {f"{prefix}.{ANY_DTYPE}": read_figure(value, FLOPS_SPEC, place)}
    if not value:
        raise InputFileError("found an empty mapping", where=place, expected="element types and their FLOP/s")
    for dtype in value:
        check_dtype(dtype, place)
    return {f"{prefix}.{dtype}": read_figure(text, FLOPS_SPEC, f"{place}.{dtype}") for dtype, text in value.items()}


def check_dtype(dtype: str, place: str) -> None:
    """Raise InputFileError unless ``dtype`` names an element type or is "any"."""
    if dtype not in DTYPE_NAMES:
        raise unknown(f"element type {dtype!r}", dtype, DTYPE_NAMES, place)


def sustained_flops(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The ``flops.*`` figures, and for element types without one the peak times the sustained share.

    A peak is never taken for what a device sustains: without a share it is left out.
    """
    found = {name: figure for name, figure in figures.items() if name.startswith(f"{FLOPS}.")}
    share = figures.get(SUSTAINED)
    for name, peak in figures.items():
        kind, _, dtype = name.partition(".")
        if kind == PEAK and share is not None and f"{FLOPS}.{dtype}" not in found:
            found[f"{FLOPS}.{dtype}"] = Figure(value=peak.value * share.value, provenance=_product(peak, share))
    return found


def _product(peak: Figure, share: Figure) -> Provenance | None:
    if peak.provenance is None or share.provenance is None:
        return peak.provenance or share.provenance
    return Provenance(
        quality=weakest(peak.provenance.quality, share.provenance.quality),
        source=f"{peak.provenance.source}; times {share.value:g}: {share.provenance.source}",
        date=max(peak.provenance.date, share.provenance.date),
    )


def build_device(
    name: str,
    figures: Mapping[str, Figure],
    *,
    efficiency: tuple[EfficiencyPoint, ...],
    provenance: Mapping[str, Provenance],
    place: str,
    remedy: str,
) -> Device:
    """A device from its figures; figures that devices do not have (a peak, a bandwidth) are left aside.

    ``provenance`` is the device's, whatever the figures say. ``remedy`` is what a user can do about a missing figure.
    Raises MissingFigureError, naming ``place`` and the figure.
    """
    flops = {key: figure for key, figure in figures.items() if key.startswith(f"{FLOPS}.")}
    if not flops:
        raise _missing(FLOPS, place, remedy)
    fields: dict[str, float | None] = {}
    for key, spec in DEVICE_SPECS.items():
        figure = figures.get(key)
        if figure is None and not spec.optional:
            raise _missing(key, place, remedy)
        fields[spec.field] = figure.value if figure is not None else None
    return Device(
        name=name,
        flop_per_s={key.partition(".")[2]: figure.value for key, figure in flops.items()},
        efficiency=efficiency,
        provenance=provenance,
        spread={
            key: figure.spread
            for key, figure in figures.items()
            if figure.spread is not None and (key in LINK_SPECS or key in flops)
        },
        **fields,  # type: ignore[arg-type]
    )


def _missing(figure: str, place: str, remedy: str) -> MissingFigureError:
    spec = DEVICE_SPECS.get(figure, FLOPS_SPEC)
    expected = f"{spec.unit.value} with its unit"
    return MissingFigureError(f"no {figure} figure", where=f"{place}.{figure}", expected=expected, remedy=remedy)


def figures_of(member: Device | Server) -> dict[str, float]:
    """Every figure of a device or server by name, absent ones left out, in the order that files list them."""
    specs = DEVICE_SPECS if isinstance(member, Device) else SERVER_SPECS
    found = {f"{FLOPS}.{dtype}": value for dtype, value in sorted(member.flop_per_s.items())}
    for name, spec in specs.items():
        value = getattr(member, spec.field)
        if value is not None:
            found[name] = value
    return found
