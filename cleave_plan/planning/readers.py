"""From candidates and the program's first answer to the backward levels that may read again, and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.candidates import Candidates
from cleave_plan.planning.formulation import LevelClass, variable
from cleave_plan.planning.option import Option, Part
from cleave_plan.planning.reading import Reader, ReadingLevel, Source
from cleave_plan.workload.gemm import ClassKey, Gemm
from cleave_plan.workload.reuse import Reading, Side, operand_of, readings, sides_of

Floats = NDArray[np.float64]

SHARING_FLEET = 64
"""Up to this many devices dY may pass from dX to dW on a device: in larger fleets that is worth nothing (see
:mod:`cleave_plan.planning.reading`), and the bound is tighter without."""

_BRIEF = 0.15
"""Share of the memory for what is kept that is set aside for pieces found in the level in which they came."""


def usable_readings(found: Candidates) -> dict[tuple[str, Side], Reading]:
    """What each GEMM of the planned view may read again, by its name and operand."""
    many = len(found.fleet.devices) > SHARING_FLEET
    return {(r.reader, r.reader_side): r for r in readings(found.workload) if not (r.same_level and many)}


def offer_readings(found: Candidates, values: Mapping[str, float], room: Floats) -> None:
    """Add options that find pieces to the choices; ``values``: the answer without; ``room``: bytes that each device may keep."""
    by_operand = usable_readings(found)
    only = _only_options(found, values)
    levels = {number: _readers(found, level, by_operand, only) for number, level in enumerate(found.classes)}
    weight = {number: _readable_bytes(readers) for number, readers in levels.items() if readers}
    total = sum(found.classes[number].count * size for number, size in weight.items())
    for number, size in weight.items():
        if size == 0:
            continue
        kinds = {kind for part in found.classes[number].parts for kind in found.server_kinds(part.gemm)}
        homes = next(iter(kinds)) if len(kinds) == 1 else ()
        first = levels[number][0].part.gemm
        level = ReadingLevel(
            readers=levels[number], links=found.links(first), server=found.fleet.servers[homes[0]] if homes else None,
            homes=homes, inner=found.inner, room=(1 - _BRIEF) * room * (size / total), brief_room=_BRIEF * room,
        )  # fmt: skip
        plain = [only[reader.part.gemm.class_key] for reader in levels[number]]
        for options in level.options(plain):
            for reader, option in zip(levels[number], options, strict=True):
                if option.mode in found.rules.modes(reader.part.gemm) and np.isfinite(option.device_s.max()):
                    found.offer(number, reader.place, [option])


def _only_options(found: Candidates, values: Mapping[str, float]) -> dict[ClassKey, Option]:
    """The option of each class of GEMMs that all its levels have, where there is one."""
    chosen: dict[ClassKey, list[Option]] = {}
    for place, choice in enumerate(found.choices):
        if values.get(variable(place), 0.0) > 0.5:
            key = found.classes[choice.level].parts[choice.part].gemm.class_key
            known = chosen.setdefault(key, [])
            if not any(option is choice.option for option in known):
                known.append(choice.option)
    return {key: options[0] for key, options in chosen.items() if len(options) == 1}


def _readers(
    found: Candidates, level: LevelClass, by_operand: Mapping[tuple[str, Side], Reading], only: Mapping[ClassKey, Option]
) -> list[Reader]:
    """The parts of a level with their sources; empty where some part has several copies, no single option, or none reads."""
    made = []
    for place, part in enumerate(level.parts):
        if part.copies > 1 or part.gemm.class_key not in only or not len(only[part.gemm.class_key].tiles[0]):
            return []
        sources = {side: _source(found, level, part, side, by_operand, only) for side in ("a", "b")}
        kept: dict[Side, Source] = {"a" if side == "a" else "b": own for side, own in sources.items() if own is not None}
        made.append(Reader(place=place, part=part, columns=found.columns_of(part.gemm), sources=kept))
    made.sort(key=lambda reader: any(source.option is None for source in reader.sources.values()))
    return made if any(reader.sources for reader in made) else []


def _source(
    found: Candidates, level: LevelClass, part: Part, side: str, by_operand: Mapping[tuple[str, Side], Reading],
    only: Mapping[ClassKey, Option],
) -> Source | None:  # fmt: skip
    """Where a part finds an operand, if it is the same in all copies of the level."""
    own: Side = "a" if side == "a" else "b"
    gemms = {gemm.name: gemm for gemm in found.workload.gemms}
    members = [_member(found, index, part.gemm.class_key) for index in level.levels]
    each = [by_operand.get((gemm.name, own)) for gemm in members]
    first = by_operand.get((part.gemm.name, own))
    if first is None or any(reading is None for reading in each):
        return None
    keys = {gemms[reading.keeper].class_key for reading in each if reading is not None}
    if len(keys) > 1:
        return None
    if first.same_level:
        return Source(reading=first, option=None)
    option = only.get(keys.pop())
    return None if option is None or not len(option.tiles[0]) else Source(reading=first, option=option)


def _member(found: Candidates, index: int, key: ClassKey) -> Gemm:
    """The GEMM of a class in one level."""
    gemms = (found.workload.gemms[place] for place in found.workload.levels[index].gemms)
    return next(gemm for gemm in gemms if gemm.class_key == key)


def _readable_bytes(readers: Sequence[Reader]) -> float:
    """Bytes of the operands of one copy of a level that last from the forward pass."""
    total = 0.0
    for reader in readers:
        for side, source in reader.sources.items():
            if source.option is not None:
                rows, columns = sides_of(reader.part.gemm, side)
                total += rows * columns * operand_of(reader.part.gemm, side).bits / 8
    return total
