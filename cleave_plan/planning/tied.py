"""Lower bounds of all level classes when devices may keep operands: from candidates to the values of
:mod:`cleave_plan.planning.coupled` and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cleave_plan.planning.candidates import Candidates, level_classes
from cleave_plan.planning.coupled import TiedLevel, coupled_bound
from cleave_plan.planning.formulation import LevelClass
from cleave_plan.planning.heldwork import Apart, Holdable
from cleave_plan.planning.option import Part
from cleave_plan.planning.passing import Passing
from cleave_plan.planning.readers import usable_readings
from cleave_plan.planning.roots import NEVER
from cleave_plan.planning.terms import terms_of
from cleave_plan.workload.reuse import SIDES, Reading, Side, frozen


def lower_bound(found: Candidates, *, reuse: bool) -> float:
    """Seconds that all levels take at least, by ideal cost; ``reuse``: devices may keep operands."""
    classes = level_classes(found.workload)
    bounds = [found.level_bound(level) for level in classes]
    if reuse:
        bounds = tied_bounds(found, classes, bounds)
    return sum(level.count * bound for level, bound in zip(classes, bounds, strict=True))


def tied_bounds(found: Candidates, classes: Sequence[LevelClass], bounds: Sequence[float]) -> list[float]:
    """Each class's part of the bound of all levels; ``bounds`` are those without reuse.

    Where nothing may be kept, the bound stays as it is.
    """
    again = usable_readings(found)
    levels = {
        number: _tied(found, level, bounds[number], again) for number, level in enumerate(classes) if 0 < bounds[number] < NEVER
    }
    tied = {number: level for number, level in levels.items() if level is not None}
    if not tied:
        return list(bounds)
    parts = dict(zip(tied, coupled_bound(list(tied.values())), strict=True))
    return [parts.get(number, bound) for number, bound in enumerate(bounds)]


def _tied(
    found: Candidates, level: LevelClass, bound_s: float, again: Mapping[tuple[str, Side], Reading]
) -> TiedLevel | None:  # fmt: skip
    """The level as one that may find operands held; None where there are none."""
    copies = sum(part.copies for part in level.parts)
    free = [part for part in level.parts if part.gemm.macs > 0 and not part.gemm.pinned]
    paces = found.paces(free, copies)
    parts = [_holdable(found, part, pace, again) for part, pace in zip(free, paces, strict=True)]
    passing = any(reading.same_level for part in free for reading in _readings_of(part, again))
    if not passing and not any(part.sides for part in parts):
        return None
    kind = Passing if passing else Apart
    return TiedLevel(
        work=kind(parts=parts, inner=found.inner, bound_s=bound_s), links=found.links(level.parts[0].gemm), count=level.count,
        floor_s=found.pinned_bound(level),
    )  # fmt: skip


def _readings_of(part: Part, again: Mapping[tuple[str, Side], Reading]) -> list[Reading]:
    return [again[part.gemm.name, side] for side in SIDES if (part.gemm.name, side) in again]


def _holdable(found: Candidates, part: Part, pace: float, again: Mapping[tuple[str, Side], Reading]) -> Holdable:
    lasting = {reading.reader_side for reading in _readings_of(part, again) if not reading.same_level}
    sides = tuple(side for side in SIDES if frozen(found.workload, part.gemm, side) or side in lasting)
    sizes = {"a": part.gemm.a_bytes, "b": part.gemm.b_bytes}
    return Holdable(
        terms=terms_of(part.gemm, part.copies), columns=found.able(part), rate=pace, sides=sides,
        operand_bytes=float(part.copies * sum(sizes[side] for side in sides)),
    )  # fmt: skip
