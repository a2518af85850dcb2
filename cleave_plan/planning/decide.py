"""From the program's numbers to decisions for real levels, and from those to a plan's assignments."""

from __future__ import annotations

from dataclasses import dataclass

from cleave_plan.cost.tile import Ints
from cleave_plan.plan.plan import Assignment
from cleave_plan.planning.candidates import Candidates
from cleave_plan.planning.formulation import Choice, variable
from cleave_plan.planning.option import Option
from cleave_plan.workload.gemm import ClassKey, Gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Levels of class ``level_class`` (their indices) that are all done by ``choices``, one for each part."""

    level_class: int
    levels: tuple[int, ...]
    choices: tuple[Choice, ...]


def decisions_of(found: Candidates, values: dict[str, float]) -> list[Decision]:
    """Spread each class's counts over its levels, in order."""
    decisions: list[Decision] = []
    for number, level in enumerate(found.classes):
        picked = [
            (choice, round(values[variable(place)]))
            for place, choice in enumerate(found.choices)
            if choice.level == number and round(values[variable(place)]) > 0
        ]
        if len(level.parts) != 1:
            choices = tuple(sorted((choice for choice, _ in picked), key=lambda choice: choice.part))
            decisions.append(Decision(level_class=number, levels=level.levels, choices=choices))
            continue
        start = 0
        for choice, count in picked:
            decisions.append(Decision(level_class=number, levels=level.levels[start : start + count], choices=(choice,)))
            start += count
    return decisions


def assignments_of(found: Candidates, decisions: list[Decision]) -> tuple[Assignment, ...]:
    """One assignment for each decision, part and copy: the names of its GEMMs over all the decision's levels."""
    names = _class_names(found)
    server_names = [server.name for server in found.fleet.servers]
    answer = []
    for decision in decisions:
        for choice in decision.choices:
            part = found.classes[decision.level_class].parts[choice.part]
            key = part.gemm.class_key
            rows = [_members(found, level, key) for level in decision.levels]
            joined = found.view.members
            for copy, tiles in enumerate(choice.option.tiles):
                names_of = [member.name for row in rows for member in joined[row[copy].name]]
                answer.append(
                    Assignment(
                        class_name=names[key], mode=choice.option.mode, gemms=tuple(names_of),
                        joined=len(joined[rows[0][copy].name]), join_axis=part.gemm.join.value,
                        server=server_names[choice.placement.servers[0]],
                        servers=tuple(server_names[place] for place in choice.placement.servers),
                        shares=choice.placement.shares, tiles=tiles, **_held(choice.option, copy),
                    )
                )  # fmt: skip
    return tuple(answer)


def _held(option: Option, copy: int) -> dict[str, Ints]:
    """The columns of an assignment that say what the tiles of one copy of ``option`` find."""
    columns = {"held_a": option.held_a, "held_b": option.held_b}
    return {name: column[copy] for name, column in columns.items() if column and column[copy].any()}


def _members(found: Candidates, level: int, key: ClassKey) -> list[Gemm]:
    """The GEMMs of a class in one level, in the workload's order."""
    gemms = (found.workload.gemms[place] for place in found.workload.levels[level].gemms)
    return [gemm for gemm in gemms if gemm.class_key == key]


def _class_names(found: Candidates) -> dict[ClassKey, str]:
    """A readable, unique name for each class of identical GEMMs."""
    names: dict[ClassKey, str] = {}
    taken: dict[str, int] = {}
    for key, members in found.workload.classes().items():
        batch, m, k, n = key.shape
        base = f"{members[0].op} {batch}x{m}x{k}x{n} {key.a[1].value}"
        taken[base] = taken.get(base, 0) + 1
        names[key] = base if taken[base] == 1 else f"{base} #{taken[base]}"
    return names
