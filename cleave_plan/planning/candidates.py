"""From a workload and a fleet to what the program chooses among: level classes, placements, choices and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import Load, Placement, server_load, server_seconds, tiled_load
from cleave_plan.errors import InfeasibleError
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.ability import bound_of, cuts_depth
from cleave_plan.planning.formulation import Choice, LevelClass
from cleave_plan.planning.joint import joint_options, together
from cleave_plan.planning.option import Option, Part
from cleave_plan.planning.options import options_for
from cleave_plan.planning.partition import Owners, partitions, small
from cleave_plan.planning.placing import base_memory, placements
from cleave_plan.planning.rules import nothing_obeys, ruled_options
from cleave_plan.planning.setting import Setting
from cleave_plan.planning.terms import terms_of
from cleave_plan.progress import Progress
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.gemm import ClassKey, Gemm
from cleave_plan.workload.graph import Workload

_WORTH = 1e-3
"""Levels that are less than this share of the whole are not searched for all partitions."""


def level_classes(workload: Workload) -> list[LevelClass]:
    """Identical levels together, in order of first appearance."""
    grouped: dict[tuple[tuple[ClassKey, int], ...], tuple[tuple[Part, ...], list[int]]] = {}
    for level in workload.levels:
        parts: dict[ClassKey, Part] = {}
        for place in level.gemms:
            gemm = workload.gemms[place]
            known = parts.get(gemm.class_key)
            parts[gemm.class_key] = Part(gemm=known.gemm if known else gemm, copies=known.copies + 1 if known else 1)
        key = tuple(sorted(((k, part.copies) for k, part in parts.items()), key=repr))
        grouped.setdefault(key, (tuple(parts[k] for k, _ in key), []))[1].append(level.index)
    return [LevelClass(parts=parts, levels=tuple(levels)) for parts, levels in grouped.values()]


@dataclass(kw_only=True)
class Candidates(Setting):
    """Everything that stage 1 finds. ``prepared``: options of parts (level class, place) that need no search."""

    level_joint: bool = True
    classes: list[LevelClass] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    prepared: dict[tuple[int, int], list[Option]] = field(default_factory=dict)
    _options: dict[tuple[ClassKey, int, bool], list[Option]] = field(default_factory=dict)
    _spots: list[Placement] = field(default_factory=list)

    def _allowed_spots(self, part: Part, option: Option) -> list[Placement]:
        """Where an option may be placed: one server for what a server computes alone, one of its homes for a slab."""
        names = [server.name for server in self.fleet.servers]
        left = self._spots[: len(names)] if option.mode is Mode.SERVER else self._spots
        return [
            spot
            for spot in left
            if (not option.homes or spot.servers[0] in option.homes)
            and all(self.rules.allows_server(part.gemm, names[place]) for place in spot.servers)
        ]

    def collect(self, progress: Progress) -> None:
        """Fill ``classes``, ``choices`` and ``bounds``; raises InfeasibleError when a GEMM fits nowhere."""
        self.classes = self.classes or level_classes(self.workload)
        weights = sum(self.view.original.parameters.values())
        self._spots = placements(self.fleet, base_memory(self.view.original, self.fleet), weights)
        for number, level in enumerate(self.classes):
            progress(number, len(self.classes), "bounding levels")
            self.bounds.append(self.level_bound(level))
        worth_s = _WORTH * total_bound(self.classes, self.bounds)
        for number, level in enumerate(self.classes):
            progress(number, len(self.classes), "pricing tilings")
            joint = self._joint(level, self.bounds[number])
            settled, exact = self._settled(level, joint), self._exact(level, self.bounds[number], worth_s)
            for place, part in enumerate(level.parts):
                known = self.prepared.get((number, place))
                if known is None and not (settled and place in joint):
                    known = self.options_of(part, alone=not joint)
                self.offer(number, place, [*(known or []), *joint.get(place, []), *exact.get(place, [])])
        progress(len(self.classes), len(self.classes), "pricing tilings")

    def offer(self, level: int, place: int, options: Sequence[Option]) -> None:
        """Add ``options`` of part ``place`` of level class ``level`` to the choices, wherever they may be placed."""
        part = self.classes[level].parts[place]
        for option in options:
            for spot in self._allowed_spots(part, option):
                self.choices.append(self._choice(level, place, part, option, spot))

    def options_of(self, part: Part, *, alone: bool) -> list[Option]:
        """Options of ``part``, found once for each class and number of copies."""
        key = (part.gemm.class_key, part.copies, alone)
        if key not in self._options:
            found: list[Option] = []
            for number, kind in enumerate(self.server_kinds(part.gemm)):
                made = at_home(self._searched(part, kind, alone=alone), kind)
                found += made if number == 0 else [option for option in made if option.homes]
            if not found:
                raise nothing_obeys(part.gemm, self.rules) if self.rules.bind(part.gemm) else self._fits_nowhere(part.gemm)
            self._options[key] = found
        return self._options[key]

    def _searched(self, part: Part, kind: tuple[int, ...], *, alone: bool) -> list[Option]:
        """Options of ``part`` that obey the rules, with servers of ``kind`` computing what servers do."""
        server = self.fleet.servers[kind[0]] if kind else None
        links = self.links(part.gemm, part.copies)
        inner = self.inner and Mode.INNER in self.rules.modes(part.gemm)

        def find(shown: DeviceColumns) -> list[Option]:
            return options_for(part, shown, links, server, alone=alone, inner=inner)

        most = max(len(level.parts) for level in self.classes)
        return ruled_options(part, self.columns_of(part.gemm), links, server, self.rules, most, find)

    def _joint(self, level: LevelClass, bound_s: float) -> dict[int, list[Option]]:
        """Options of a level's parts over disjoint groups of devices, by the part's place."""
        places = [place for place, part in enumerate(level.parts) if part.gemm.macs > 0 and not part.gemm.pinned]
        if len(places) < 2 or not self.level_joint or self.rules.caps is not None:
            return {}
        parts = [level.parts[place] for place in places]
        columns = [self.columns_of(part.gemm) for part in parts]
        found: dict[int, list[Option]] = {}
        alike = all(self.server_kinds(part.gemm) == self.server_kinds(parts[0].gemm) for part in parts)
        for kind in self.server_kinds(parts[0].gemm) if alike else [()]:
            server = self.fleet.servers[kind[0]] if kind else None
            made = joint_options(parts, columns, self.links(parts[0].gemm), server, bound_s, inner=self.inner)
            for place, option in zip(places, at_home(made, kind), strict=False):
                if option.mode in self.rules.modes(level.parts[place].gemm):
                    found.setdefault(place, []).append(option)
        return found

    def _exact(self, level: LevelClass, bound_s: float, worth_s: float) -> dict[int, list[Option]]:
        """Options of the parts of a level that is small enough for all partitions, by the part's place.

        None under constraints, and none where all levels of the class take less than ``worth_s`` (by their bound).
        """
        places = [place for place, part in enumerate(level.parts) if part.gemm.macs > 0]
        parts = [level.parts[place] for place in places]
        if not parts or level.count * bound_s <= worth_s or any(part.gemm.pinned or self.rules.bind(part.gemm) for part in parts):
            return {}
        owners = [
            Owners(
                columns=self.columns_of(part.gemm), server=self.server_may(part.gemm),
                inner=cuts_depth(terms_of(part.gemm), self.inner),
            )
            for part in parts
        ]  # fmt: skip
        if (not self.level_joint and len(parts) > 1) or not small(parts, owners):
            return {}
        made = partitions(parts, owners, self.fleet, bound_s)
        return {place: [options[g] for options in made] for g, place in enumerate(places)}

    def _settled(self, level: LevelClass, joint: dict[int, list[Option]]) -> bool:
        """Whether groups of devices are proven to be better than each part over the whole fleet in turn or on the server: the
        sum of the parts' own bounds, and every part's time on the server, are longer than the groups need."""
        free = [place for place, part in enumerate(level.parts) if part.gemm.macs > 0 and not part.gemm.pinned]
        if not joint or set(joint) != set(free):
            return False
        parts = [level.parts[place] for place in free]
        grouped_s = together([joint[place][0] for place in free], self.links(parts[0].gemm))
        if any(part.copies * server_seconds(part.gemm, server) <= grouped_s for part in parts for server in self.fleet.servers):
            return False
        in_turn_s = sum(
            bound_of(terms_of(part.gemm, part.copies), self.able(part), self.links(part.gemm, part.copies), inner=self.inner)
            for part in parts
        )
        return in_turn_s >= grouped_s

    def _choice(self, level: int, place: int, part: Part, option: Option, spot: Placement) -> Choice:
        devices, servers = self.columns_of(part.gemm), self.fleet.servers
        load = Load.none(len(devices), len(servers))
        for copy, tiles in enumerate(option.tiles):
            if option.mode is Mode.SERVER:
                load = load + server_load(part.gemm, spot, len(devices), servers)
            else:
                held = option.held[copy] if option.held else None
                load = load + tiled_load(part.gemm, tiles, spot, devices, servers, held)
        return Choice(level=level, part=place, option=option, placement=spot, load=load, weight_bytes=self._weight_bytes(part))

    def _weight_bytes(self, part: Part) -> float:
        """Bytes that the part's parameters take on the servers (a weight derived from another is counted with that one)."""
        return self._counted_once * part.copies * self._operand_bytes(part)

    def _operand_bytes(self, part: Part) -> float:
        """Bytes of the parameters that one copy of the part uses."""
        sizes = self.view.original.parameters
        members = self.view.members[part.gemm.name]
        return float(sum(sizes.get(operand.tensor, 0) for member in members for operand in (member.a, member.b)))

    @cached_property
    def _counted_once(self) -> float:
        """The parameters' bytes over the sum of all their uses (tied weights, dX beside forward).

        One server holds a tensor once, however many GEMMs use it. With several, uses may be apart: each counts whole.
        """
        uses = sum(level.count * part.copies * self._operand_bytes(part) for level in self.classes for part in level.parts)
        if uses == 0 or len(self.fleet.servers) > 1:
            return 1.0
        original = self.view.original
        used = {operand.tensor for gemm in original.gemms for operand in (gemm.a, gemm.b)}
        return sum(size for tensor, size in original.parameters.items() if tensor in used) / uses

    def _fits_nowhere(self, gemm: Gemm) -> InfeasibleError:
        needed = terms_of(gemm).stream_bytes
        available = {device.name: 0.1 * device.memory_bytes for device in self.fleet.devices}
        best = max(available, key=lambda name: available[name])
        listed = ", ".join(f"{name} {format_value(size, Unit.BYTES)}" for name, size in list(available.items())[:8])
        return InfeasibleError(
            f"no device can hold one row and one column of depth K = {gemm.shape.k} in its stream buffers "
            f"(a tenth of its memory), and GEMMs on the server are forbidden: required {format_value(needed, Unit.BYTES)}, "
            f"available {listed}{', ...' if len(available) > 8 else ''}",
            where=f"GEMM {gemm.name}",
            remedy=f"allow the server, or give {best} {format_value(10 * needed, Unit.BYTES)} of memory",
            facts={
                "gemm": gemm.name, "unit": "byte", "required": needed, "available": available,
                "levers": ["allow GEMMs on the server", f"a device with {10 * needed:.0f} byte of memory"],
            },
        )  # fmt: skip


def at_home(options: list[Option], homes: tuple[int, ...]) -> list[Option]:
    """Options with a server's slab are tied to the servers that it was sized for."""

    def sized(option: Option) -> bool:
        return option.server_s > option.sums_s and option.mode is not Mode.SERVER

    return [replace(option, homes=homes) if sized(option) else option for option in options]


def total_bound(classes: Sequence[LevelClass], bounds: Sequence[float]) -> float:
    """Seconds of all levels at least, by ideal cost."""
    return sum(level.count * bound for level, bound in zip(classes, bounds, strict=True))
