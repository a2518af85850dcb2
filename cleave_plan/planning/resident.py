"""The program with options that keep operands: which are offered, and rows for devices that would keep too much.

A part whose kept tiling is faster than the lower bound of every tiling that sends its operands is not searched any further
(:func:`prepare`): this is what makes decoding, where M is a handful of rows, quick to plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.candidates import Candidates, at_home, level_classes
from cleave_plan.planning.formulation import KEEP_SLACK, Choice, Program, build_program, keep_row, variable
from cleave_plan.planning.keep import KeepContext, keeping_options
from cleave_plan.planning.option import Option, Part, on_server
from cleave_plan.planning.readers import offer_readings
from cleave_plan.planning.solver import Answer
from cleave_plan.workload.reuse import SIDES, Side, frozen

Floats = NDArray[np.float64]

_ROUNDS = 40
"""Times that rows are added at the most."""

_ROWS = 24
"""Rows that are added at a time, for the devices that are furthest over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """A part with frozen operands: where it is, which these are, and its share of the memory for what is kept."""

    number: int
    place: int
    part: Part
    sides: tuple[Side, ...]
    share: float


def prepare(found: Candidates) -> None:
    """Give parts that are alone in their level, and faster kept than they can be otherwise, their options at once: those within
    their share of the memory, so that all of them fit."""
    found.classes = level_classes(found.workload)
    room = _capacity(found) * (1 - 2 * KEEP_SLACK)
    for one in _frozen_parts(found):
        level = found.classes[one.number]
        if len(level.parts) > 1:
            continue
        kept = [
            o
            for o in _options(found, one, room, [])
            if o.kept_bytes is not None and bool((o.kept_bytes <= room * one.share).all())
        ]
        links = found.links(one.part.gemm, one.part.copies)
        if kept and min(option.seconds(links) for option in kept) <= found.level_bound(level):
            devices = len(found.fleet.devices)
            kinds = [kind for kind in found.server_kinds(one.part.gemm) if kind]
            whole = [on_server(one.part, devices, found.fleet.servers[kind[0]]) for kind in kinds[:1]]
            found.prepared[one.number, one.place] = [*whole, *kept]


def solve_with_kept(
    found: Candidates, base: list[float], first: Answer, unit_s: float, solve: Callable[[Program], Answer]
) -> tuple[Program, Answer] | None:
    """The program in which operands may stay on the devices, and its answer; None when no answer fits the memory.

    ``first`` is the answer whose tiles say how much memory is to be left for work; ``solve`` solves a program. Adds to
    ``found.choices``.
    """
    capacity = _capacity(found)
    work = _work(found.choices, first.values, len(capacity))
    room = np.maximum(capacity * (1 - 2 * KEEP_SLACK) - work, 0.0)
    if found.workload.training:
        offer_readings(found, first.values, room)
    else:
        _offer_frozen(found, room)
    program = build_program(found.classes, found.choices, found.fleet, base, unit_s)
    fixed = len(program.rows)
    rooms: dict[int, float] = {}
    for _ in range(_ROUNDS):
        names = found.fleet.devices
        program.rows[fixed:] = [keep_row(found.choices, names[i].name, i, room) for i, room in sorted(rooms.items())]
        answer = solve(program)
        if not answer.values:
            return None
        work = np.maximum(work, _work(found.choices, answer.values, len(capacity)))
        kept, brief = _kept(found.choices, answer.values, len(capacity))
        left = capacity - work - brief
        over = kept - left
        if float(over.max()) <= 0:
            return program, answer
        worst = np.argsort(-over, kind="stable")[:_ROWS]
        full = [*rooms, *worst[over[worst] > 0].tolist()]
        rooms = {place: max(float(left[place]), 1.0) for place in full}
    return None


def _offer_frozen(found: Candidates, room: Floats) -> None:
    """Options that keep, for every part with a frozen operand that has none yet."""
    for one in _frozen_parts(found):
        if (one.number, one.place) not in found.prepared:
            streamed = [choice.option for choice in found.choices if (choice.level, choice.part) == (one.number, one.place)]
            found.offer(one.number, one.place, list(_options(found, one, room, streamed)))


def _capacity(found: Candidates) -> Floats:
    """Bytes of each device beside its stream buffers."""
    return (1 - STREAM_SHARE) * np.array([device.memory_bytes for device in found.fleet.devices])


def _frozen_parts(found: Candidates) -> list[_Frozen]:
    """Every part with a frozen operand; the shares are in proportion to the bytes of these over all levels."""
    parts = [
        (number, place, part, tuple(side for side in SIDES if frozen(found.workload, part.gemm, side)))
        for number, level in enumerate(found.classes)
        for place, part in enumerate(level.parts)
    ]
    kept = [(number, place, part, sides) for number, place, part, sides in parts if sides]
    sizes = [_frozen_bytes(part, sides) for _, _, part, sides in kept]
    total = sum(found.classes[number].count * size for (number, _, _, _), size in zip(kept, sizes, strict=True))
    return [
        _Frozen(number=number, place=place, part=part, sides=sides, share=size / total)
        for (number, place, part, sides), size in zip(kept, sizes, strict=True)
    ]


def _options(found: Candidates, one: _Frozen, room: Floats, streamed: Sequence[Option]) -> Iterator[Option]:
    """Options of ``one`` that keep, with each kind of server; ``room``: bytes that each device may keep of everything."""
    for kind in found.server_kinds(one.part.gemm):
        context = KeepContext(
            devices=found.columns_of(one.part.gemm), room=room * one.share,
            links=found.links(one.part.gemm, one.part.copies), server=found.fleet.servers[kind[0]] if kind else None,
            inner=found.inner,
        )  # fmt: skip
        made = keeping_options(one.part, one.sides, streamed, context)
        yield from at_home([option for option in made if option.mode in found.rules.modes(one.part.gemm)], kind)


def _frozen_bytes(part: Part, sides: tuple[Side, ...]) -> float:
    sizes: Mapping[Side, int] = {"a": part.gemm.a_bytes, "b": part.gemm.b_bytes}
    return float(part.copies * sum(sizes[side] for side in sides))


def _chosen(choices: list[Choice], values: dict[str, float]) -> list[tuple[Option, float]]:
    found = [(choice.option, values.get(variable(number), 0.0)) for number, choice in enumerate(choices)]
    return [(option, count) for option, count in found if count > 0.5]


def _work(choices: list[Choice], values: dict[str, float], devices: int) -> Floats:
    """The most memory that a tile of the chosen options needs on each device, stream buffers apart."""
    return np.asarray(np.max([np.zeros(devices), *(option.work_bytes for option, _ in _chosen(choices, values))], axis=0))


def _kept(choices: list[Choice], values: dict[str, float], devices: int) -> tuple[Floats, Floats]:
    """Bytes that each device would keep of all levels, and of the fullest level what is kept within it."""
    lasting = np.zeros(devices)
    brief: dict[int, Floats] = {}
    for number, choice in enumerate(choices):
        count, option = round(values.get(variable(number), 0.0)), choice.option
        if count and option.kept_bytes is not None:
            lasting = lasting + count * option.kept_bytes
        if count and option.brief_bytes is not None:
            brief[choice.level] = brief.get(choice.level, np.zeros(devices)) + option.brief_bytes
    return lasting, np.asarray(np.max([np.zeros(devices), *brief.values()], axis=0))
