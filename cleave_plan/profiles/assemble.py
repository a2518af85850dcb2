"""Devices and fleets from profiles: a machine, the link it is on, and what the user adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cleave_plan.errors import UsageError
from cleave_plan.fleet.catalogue import CatalogueEntry, with_overhead
from cleave_plan.fleet.device import Device, EfficiencyPoint, Fleet, Provenance, Quality, Server
from cleave_plan.fleet.figures import DEVICE_SPECS, FLOPS, OVERHEAD, Figure, build_device, sustained_flops
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.sections import EFFICIENCY
from cleave_plan.profiles.curve import FittedCurve, fit_curves
from cleave_plan.profiles.records import Profile, ProfileKind

_REMEDY = "name a link that has it, give the figure, or import a profile with it"


def assemble_device(
    machine: Profile | CatalogueEntry,
    link: Profile | CatalogueEntry | None,
    *,
    name: str,
    given: Mapping[str, Figure],
    curve_dtype: str | None = None,
) -> Device:
    """A device called ``name``; see :meth:`cleave_plan.profiles.database.ProfileDatabase.device`."""
    if isinstance(machine, Profile) and machine.kind is not ProfileKind.MACHINE:
        raise UsageError(f"profile {machine.name!r} is a {machine.kind}", expected="a machine's profile")
    if isinstance(link, Profile) and link.kind is not ProfileKind.LINK:
        raise UsageError(f"profile {link.name!r} is a {link.kind}", expected="a link's profile")
    curves = fit_curves(machine.gemms) if isinstance(machine, Profile) else {}
    figures = _usable(_timed(machine, curves) | dict(machine.figures)) | (_usable(link.figures) if link else {})
    if any(key.startswith(f"{FLOPS}.") for key in given):  # an own figure must not leave others beside it that win
        figures = {key: figure for key, figure in figures.items() if not key.startswith(f"{FLOPS}.")}
    figures |= given
    points, source = _curve(machine, curves, curve_dtype)
    known = {key: figure.provenance for key, figure in figures.items() if figure.provenance is not None}
    return build_device(
        name, figures, efficiency=points, provenance=known | source, place=f"profile {machine.name}", remedy=_REMEDY
    )


def _usable(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures that a device has, overhead in the latency and peaks made sustained."""
    plain = {key: figure for key, figure in figures.items() if key in DEVICE_SPECS}
    return sustained_flops(figures) | with_overhead(plain, figures.get(OVERHEAD))


def _timed(machine: Profile | CatalogueEntry, curves: Mapping[str, FittedCurve]) -> dict[str, Figure]:
    """FLOP/s by element type from timings."""
    return {
        f"{FLOPS}.{dtype}": Figure(value=curve.flop_per_s, provenance=_timing_source(machine, dtype), spread=curve.spread)
        for dtype, curve in curves.items()
    }


def _timing_source(machine: Profile | CatalogueEntry, dtype: str) -> Provenance:
    gemms = [gemm for gemm in machine.gemms if gemm.dtype == dtype] if isinstance(machine, Profile) else []
    newest = max(gemms, key=lambda gemm: gemm.date)
    threads = f"{newest.threads} thread{'s' if newest.threads > 1 else ''}"
    return Provenance(
        quality=Quality.MEASURED,
        source=f"{len(gemms)} {dtype} GEMM timings of {machine.title}, {threads}, NumPy {newest.numpy}, {newest.blas}",
        date=newest.date,
    )


def _curve(
    machine: Profile | CatalogueEntry, curves: Mapping[str, FittedCurve], dtype: str | None
) -> tuple[tuple[EfficiencyPoint, ...], dict[str, Provenance]]:
    """The efficiency curve and its provenance; without timings neither."""
    if dtype is not None and dtype not in curves:
        raise UsageError(
            f"no {dtype} timings in profile {machine.name!r}", expected=f"one of {', '.join(curves) or 'none'}",
            remedy=f"measure them with `cleave-plan profile measure --dtype {dtype}`",
        )  # fmt: skip
    if not curves:
        return (), {}
    chosen = dtype or ("float32" if "float32" in curves else next(iter(curves)))
    return curves[chosen].points, {EFFICIENCY: _timing_source(machine, chosen)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a fleet takes from the database: ``count`` devices of a machine on a link.

    They are called ``name`` (default: the machine's), numbered from 1 where there are several. ``given`` are figures
    that replace those of machine and link.
    """

    machine: Profile | CatalogueEntry
    link: Profile | CatalogueEntry | None = None
    count: int = 1
    name: str | None = None
    given: Mapping[str, Figure] = field(default_factory=dict)


def fleet_from_profiles(name: str, members: Sequence[Member], servers: Sequence[Server]) -> Fleet:
    """A fleet called ``name`` of devices from profiles around ``servers``.

    Raises MissingFigureError, with what to do, for a figure that nobody has; UsageError for a count below 1;
    InputFileError for two devices of one name or no members.
    """
    devices: list[Device] = []
    for member in members:
        if member.count < 1:
            raise UsageError(f"{member.count} devices of {member.machine.name!r}", expected="1 or more")
        base = member.name or member.machine.name
        device = assemble_device(member.machine, member.link, name=base, given=member.given)
        numbered = [f"{base}-{index + 1}" for index in range(member.count)] if member.count > 1 else [base]
        devices += (replace(device, name=each) for each in numbered)
    return make_fleet(name, servers, devices)
