r"""Stage 2: the integer program that chooses an option and servers for every part of every level.

Levels with the same parts are one level class L with a count n_L. Sets: parts p of L, options o of p, placements S
(a server, or a striped set of servers).

    variables   z[L,p,o,S]  how many of the n_L copies do part p that way (integer; 0 or n_L where L has several parts)
                T[L]        seconds of one copy of a level class with several parts

    minimise    sum_{L with one part} sum_{o,S} seconds[L,p,o,S] * z[L,p,o,S]   +   sum_{other L} n_L * T[L]

    choose/L/p          sum_{o,S} z[L,p,o,S] = n_L
    device/L/i          n_L * T[L] >= sum_{p,o,S} device_s[p,o][i] * z[L,p,o,S]                      for each device i
    egress/L/s          n_L * T[L] >= sum_{p,o,S} egress[p,o,S][s] / E_s * z[L,p,o,S]                for each server s
    ingress/L/s         the same with I_s
    server/L/s          n_L * T[L] >= sum_{p,o,S} server_s[p,o,S][s] * z[L,p,o,S]
    memory/s            base_s + sum weights[p] * share[S][s] * z[L,p,o,S] <= capacity_s             for each server s
    after/c             n_L * b[c] <= sum z[..]  over the choices of an option that c finds pieces of, for each such option
    device-memory/i     sum kept[p,o][i] * z[L,p,o,S] <= room_i                  for each device i that would keep too much

``seconds`` of a level with one part is the whole maximum, so it needs no row. All coefficients are ideal cost
(:mod:`cleave_plan.cost.level`), divided by the sum of the levels' lower bounds so that they are near 1. Rows of devices that
another device dominates in every option are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.level import Load, Placement, level_time
from cleave_plan.fleet.device import Fleet
from cleave_plan.planning.option import Option, Part

Floats = NDArray[np.float64]


KEEP_SLACK = 4e-6
"""Share of a device's room that stays free: several times the solver's tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """One column of the program: part ``part`` of level class ``level`` done by ``option`` with ``placement``.

    ``load`` is that of one copy of the level's part; ``weight_bytes`` what the part's parameters take on the servers.
    """

    level: int
    part: int
    option: Option
    placement: Placement
    load: Load
    weight_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelClass:
    """Identical levels: their parts and which levels they are."""

    parts: tuple[Part, ...]
    levels: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many levels are alike."""
        return len(self.levels)


@dataclass(kw_only=True)
class Row:
    """``sum(coefficients[v] * v) <relation> limit`` with ``relation`` "<=" or "=="."""

    name: str
    coefficients: dict[str, float]
    relation: str
    limit: float


@dataclass(kw_only=True)
class Program:
    """A mixed-integer program in plain values: what a solver is given and what its answer is checked against."""

    goal: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    integers: dict[str, int] = field(default_factory=dict)
    continuous: list[str] = field(default_factory=list)
    unit_s: float = 1.0


def variable(place: int) -> str:
    """The name of choice number ``place``."""
    return f"z{place}"


def build_program(
    classes: Sequence[LevelClass], choices: Sequence[Choice], fleet: Fleet, base_memory: Sequence[float], unit_s: float
) -> Program:
    """The program of the module's docstring; ``base_memory[s]`` are bytes that server s holds whatever is chosen."""
    program = Program(unit_s=unit_s)
    by_level: dict[int, list[tuple[int, Choice]]] = {}
    for place, choice in enumerate(choices):
        by_level.setdefault(choice.level, []).append((place, choice))
    for number, level in enumerate(classes):
        mine = by_level.get(number, [])  # none where chains have taken all GEMMs
        for place, _ in mine:
            program.integers[variable(place)] = level.count
        _choose(program, number, level, mine)
        if len(level.parts) == 1:
            for place, choice in mine:
                program.goal[variable(place)] = level_time(choice.load, fleet).ideal_s / unit_s
            _all_or_none(program, level, [(place, choice) for place, choice in mine if choice.option.after])
        elif level.parts:
            _several_parts(program, number, level, mine, fleet)
    _after(program, classes, choices)
    _memory(program, choices, fleet, base_memory)
    return program


def _choose(program: Program, number: int, level: LevelClass, mine: list[tuple[int, Choice]]) -> None:
    for part in range(len(level.parts)):
        names = {variable(place): 1.0 for place, choice in mine if choice.part == part}
        program.rows.append(Row(name=f"choose/{number}/{part}", coefficients=names, relation="==", limit=float(level.count)))


def _several_parts(program: Program, number: int, level: LevelClass, mine: list[tuple[int, Choice]], fleet: Fleet) -> None:
    """T[L] and its rows; every part is done the same way in all copies, so z is count times a binary."""
    seconds = f"T{number}"
    program.continuous.append(seconds)
    program.goal[seconds] = float(level.count)
    _all_or_none(program, level, mine)
    egress = np.array([server.egress_bytes_per_s for server in fleet.servers])
    ingress = np.array([server.ingress_bytes_per_s for server in fleet.servers])
    device = np.array([choice.load.ideal_s for _, choice in mine])
    for i in _undominated(device):
        _time_row(program, f"device/{number}/{fleet.devices[i].name}", seconds, level.count, mine, device[:, i])
    for s, server in enumerate(fleet.servers):
        for kind, column in (
            ("egress", [choice.load.egress[s] / egress[s] for _, choice in mine]),
            ("ingress", [choice.load.ingress[s] / ingress[s] for _, choice in mine]),
            ("server", [choice.load.server_s[s] for _, choice in mine]),
        ):
            _time_row(program, f"{kind}/{number}/{server.name}", seconds, level.count, mine, np.array(column))


def _all_or_none(program: Program, level: LevelClass, mine: list[tuple[int, Choice]]) -> None:
    """These choices are taken for all copies of the level or for none."""
    for place, _ in mine:
        switch = f"b{place}"
        program.integers[switch] = 1
        coefficients = {variable(place): 1.0, switch: -float(level.count)}
        program.rows.append(Row(name=f"all-or-none/{place}", coefficients=coefficients, relation="==", limit=0.0))


def _after(program: Program, classes: Sequence[LevelClass], choices: Sequence[Choice]) -> None:
    """A choice that finds pieces needs the options that left them there."""
    places: dict[int, list[int]] = {}
    for place, choice in enumerate(choices):
        places.setdefault(id(choice.option), []).append(place)
    for place, choice in enumerate(choices):
        for option in choice.option.after:
            coefficients = {variable(other): -1.0 for other in places.get(id(option), [])}
            coefficients[f"b{place}"] = float(classes[choice.level].count)
            program.rows.append(Row(name=f"after/{place}", coefficients=coefficients, relation="<=", limit=0.0))


def _time_row(program: Program, name: str, seconds: str, count: int, mine: list[tuple[int, Choice]], column: Floats) -> None:
    coefficients = {
        variable(place): float(value) / program.unit_s for (place, _), value in zip(mine, column, strict=True) if value > 0
    }
    if coefficients:
        coefficients[seconds] = -float(count)
        program.rows.append(Row(name=name, coefficients=coefficients, relation="<=", limit=0.0))


def _undominated(device: Floats) -> list[int]:
    """Devices (columns of ``device``) that no other device exceeds or equals in every choice; equal ones once."""
    left = np.argsort(-device.sum(axis=0), kind="stable")
    left = left[device[:, left].max(axis=0) > 0]
    kept: list[int] = []
    while len(left):
        kept.append(int(left[0]))
        left = left[(device[:, left] > device[:, left[:1]]).any(axis=0)]
    return sorted(kept)


def keep_row(choices: Sequence[Choice], device: str, place: int, room: float) -> Row:
    """What device number ``place`` keeps of all levels fits its ``room`` (bytes), a little of which stays free for rounding."""
    coefficients = {
        variable(number): float(choice.option.kept_bytes[place]) / room
        for number, choice in enumerate(choices)
        if choice.option.kept_bytes is not None and choice.option.kept_bytes[place] > 0
    }
    return Row(name=f"device-memory/{device}", coefficients=coefficients, relation="<=", limit=1.0 - KEEP_SLACK)


def _memory(program: Program, choices: Sequence[Choice], fleet: Fleet, base_memory: Sequence[float]) -> None:
    for s, server in enumerate(fleet.servers):
        if np.isinf(server.memory_bytes):
            continue
        coefficients = {}
        for place, choice in enumerate(choices):
            share = dict(zip(choice.placement.servers, choice.placement.shares, strict=True)).get(s, 0.0)
            if share * choice.weight_bytes > 0:
                coefficients[variable(place)] = share * choice.weight_bytes / server.memory_bytes
        limit = 1.0 - base_memory[s] / server.memory_bytes
        program.rows.append(Row(name=f"memory/{server.name}", coefficients=coefficients, relation="<=", limit=limit))
