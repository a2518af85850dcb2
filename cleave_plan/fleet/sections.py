"""The sections of a fleet file that its members share: sources, sets of provenance, efficiency curves.

    sources:    {ookla: {quality: measured, source: Ookla Q3 2023, date: 2023-09}}
    provenance: {phone: {downlink: ookla, uplink: ookla}}
    curves:     {small-cpu: [[1 MFLOP, 0.1], [1 GFLOP, 0.9]]}

A member then says ``provenance: phone`` and ``efficiency: small-cpu``, or holds the same things inline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.catalogue import read_share
from cleave_plan.fleet.device import EfficiencyPoint, Provenance, Spread
from cleave_plan.fleet.figures import (
    DEVICE_SPECS,
    FLOPS,
    FLOPS_SPEC,
    LINK_SPECS,
    SERVER_SPECS,
    Figure,
    FigureSpec,
    check_dtype,
    read_figure,
)
from cleave_plan.fleet.provenance import read_reference, read_sources
from cleave_plan.fleet.reading import expect_count, expect_list, expect_mapping, expect_text, unknown
from cleave_plan.units import Unit

Marks = dict[str, Provenance]
Curve = tuple[EfficiencyPoint, ...]

EFFICIENCY, SPREAD = "efficiency", "spread"
MARKED = tuple(dict.fromkeys((FLOPS, EFFICIENCY, *DEVICE_SPECS, *SERVER_SPECS)))
_POINT_SPEC = FigureSpec(unit=Unit.FLOP, field="flop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What was read from the shared sections, each entry by its name."""

    sources: Mapping[str, Provenance]
    provenance: Mapping[str, Marks]
    curves: Mapping[str, Curve]

    def marks(self, value: object, place: str) -> Marks:
        """A member's ``provenance:``: the name of a set, or a mapping from figure to source."""
        if isinstance(value, dict):
            return read_marks(value, self.sources, place)
        name = expect_text(value, place, "the name of a provenance set, or a mapping from figure to source")
        if name not in self.provenance:
            raise unknown(f"provenance set {name!r}", name, self.provenance, place, remedy="add it under provenance:")
        return self.provenance[name]

    def curve(self, value: object, place: str) -> Curve:
        """A device's ``efficiency:``: the name of a curve, or its points."""
        if isinstance(value, list):
            return read_curve(value, place)
        name = expect_text(value, place, "the name of a curve, or a list of [FLOP, share]")
        if name not in self.curves:
            raise unknown(f"curve {name!r}", name, self.curves, place, remedy="add it under curves:")
        return self.curves[name]


def read_shared(root: Mapping[str, object], where: str) -> Shared:
    """The shared sections of a fleet file; all of them may be missing."""
    sources = read_sources(root.get("sources"), f"{where}: sources")
    sets = expect_mapping(root.get("provenance") or {}, f"{where}: provenance")
    curves = expect_mapping(root.get("curves") or {}, f"{where}: curves")
    return Shared(
        sources=sources,
        provenance={name: read_marks(value, sources, f"{where}: provenance.{name}") for name, value in sets.items()},
        curves={name: read_curve(value, f"{where}: curves.{name}") for name, value in curves.items()},
    )


def read_marks(value: object, sources: Mapping[str, Provenance], place: str) -> Marks:
    """A mapping from figure ("downlink", "flops", "flops.float32") to where it comes from."""
    entries = expect_mapping(value, place)
    for figure in entries:
        check_marked(figure, place)
    return {figure: read_reference(source, sources, f"{place}.{figure}") for figure, source in entries.items()}


def check_marked(figure: str, place: str) -> None:
    """Raise InputFileError unless ``figure`` is one that provenance can speak of."""
    if figure.startswith(f"{FLOPS}."):
        check_dtype(figure.partition(".")[2], place)
    elif figure not in MARKED:
        raise unknown(f"figure {figure!r}", figure, MARKED, place)


def read_curve(value: object, place: str) -> Curve:
    """Points ``[FLOP of a tile, share of the FLOP/s figure]``, the FLOP rising."""
    points: list[EfficiencyPoint] = []
    for index, item in enumerate(expect_list(value, place, "points [FLOP, share], such as [1 GFLOP, 0.8]")):
        here = f"{place}[{index}]"
        pair = expect_list(item, here, "two: FLOP and share")
        if len(pair) != 2:
            raise InputFileError(f"found {len(pair)} items", where=here, expected="two: FLOP and share, such as [1 GFLOP, 0.8]")
        point = EfficiencyPoint(flop=read_figure(pair[0], _POINT_SPEC, f"{here}[0]"), fraction=read_share(pair[1], f"{here}[1]"))
        if points and point.flop <= points[-1].flop:
            raise InputFileError(f"found {pair[0]!r}", where=f"{here}[0]", expected="more FLOP than the point before")
        points.append(point)
    return tuple(points)


def read_spreads(value: object, figures: Mapping[str, Figure], place: str) -> dict[str, Spread]:
    """A device's ``spread:``: quartiles and number of samples of some of its figures (``flops``: of all element types).

    Raises InputFileError for a figure that the device does not have, or that no sample varies.
    """
    found: dict[str, Spread] = {}
    for key, item in expect_mapping(value, place).items():
        here = f"{place}.{key}"
        named = [name for name in figures if name == key or (key == FLOPS and name.startswith(f"{FLOPS}."))]
        spec = FLOPS_SPEC if key.partition(".")[0] == FLOPS else LINK_SPECS.get(key)
        if spec is None or not named:
            known = [name for name in figures if name in LINK_SPECS or name.startswith(f"{FLOPS}.")]
            raise unknown(f"figure {key!r}", key, known, place)
        parts = expect_list(item, here, "three: lower quartile, upper quartile, samples, such as [70 Mbit/s, 99 Mbit/s, 9]")
        if len(parts) != 3:
            raise InputFileError(
                f"found {len(parts)} items", where=here, expected="three: lower quartile, upper quartile, samples"
            )
        lower, upper = (read_figure(part, spec, f"{here}[{index}]") for index, part in enumerate(parts[:2]))
        for name in named:
            if not lower <= figures[name].value <= upper:
                raise InputFileError(
                    f"quartiles {parts[0]} and {parts[1]} around another figure", where=here,
                    expected=f"a lower quartile, the device's {name} (the median) and an upper quartile, rising",
                )  # fmt: skip
        found |= dict.fromkeys(named, Spread(lower=lower, upper=upper, samples=expect_count(parts[2], f"{here}[2]", 2**31)))
    return found
