"""Why a plan is as it is: each GEMM beside its next best alternatives, and what a device or a faster one would be worth.

An alternative of a GEMM is a plan of that GEMM alone (of the product that it is cut in) in which one thing is pinned.
Constraints on devices hold there too, those on the GEMM itself are set aside, so that one sees what they cost; where
devices do it, the server takes no tile. All times of a story are those of the GEMM alone, by ideal cost, which is what the
planner minimises; alternatives are sent everything, and what a training step finds on devices counts as sent in the story of
the GEMM too. In a level of several GEMMs the choice also weighs the others, so an alternative can be shorter than
the chosen one.

What a device is worth is told by finite differences, of two quantities: of the *lower bound* of all levels (what the best
plan could gain or lose at the most, as far as the bound is tight) and of *this plan* with its tiles as they are (what
comes at once; None for taking a device away, whose tiles would have to go somewhere).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import Held, price
from cleave_plan.errors import InfeasibleError, UsageError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.fleet.percentile import at_percentile
from cleave_plan.plan.constraints import caps_of, excluded, fleet_view, matches
from cleave_plan.plan.objective import LevelTimes, Recount, products_of
from cleave_plan.plan.plan import Assignment, Constraint, Mode, Plan
from cleave_plan.planning.candidates import Candidates
from cleave_plan.planning.chains import usable_chains
from cleave_plan.planning.constrained import ruled
from cleave_plan.planning.holding import Holding
from cleave_plan.planning.planner import SWITCHES, make_plan
from cleave_plan.planning.story import Alternative, Change, DeviceStory, Explanation, GemmStory, HeldPiece
from cleave_plan.planning.subfleet import some_devices
from cleave_plan.planning.tied import lower_bound
from cleave_plan.progress import Progress, silent
from cleave_plan.workload.gemm import Gemm, Join
from cleave_plan.workload.graph import Level, Workload
from cleave_plan.workload.joined import product_of, view_of

DEVICES = 3
"""Devices whose worth is told when none is asked for: those that hold up most of the plan."""

CUT = tuple(mode for mode in Mode if mode is not Mode.SERVER)
"""Modes in which devices do all of it."""

CHANGES = ("downlink", "uplink", "compute", "latency")
"""What is twice as good (a latency: half) in the changes that are tried."""


def explain(
    plan: Plan, workload: Workload, fleet: Fleet, *, gemm: str = "*", devices: Sequence[str] = (), progress: Progress = silent
) -> Explanation:
    """The story of the decisions that hold a GEMM matching ``gemm``, and of ``devices`` (default: those that bind most).

    ``workload`` and ``fleet`` are those of the plan, the fleet with the plan's servers. Raises UsageError when nothing
    matches.
    """
    chosen = [a for a in plan.assignments if any(matches(name, [gemm]) for name in a.gemms)]
    if not chosen:
        raise UsageError(f"no GEMM of the plan matches {gemm!r}", expected=f"a name such as {plan.assignments[0].gemms[0]!r}")
    unknown = [name for name in devices if name not in plan.device_names]
    if unknown:
        raise UsageError(f"no device is named {unknown[0]!r}", where=f"fleet {fleet.name}")
    teller = _Teller(plan, workload, fleet)
    stories = []
    for place, assignment in enumerate(chosen):
        progress(place, len(chosen), assignment.gemms[0])
        stories.append(teller.gemm(assignment))
    names = list(devices) or teller.binding()[:DEVICES]
    told = tuple(teller.device(name) for name in names)
    progress(len(chosen), len(chosen), "")
    return Explanation(
        ideal_levels_s=plan.predicted.ideal_levels_s, bound_s=plan.predicted.bound_s, gemms=tuple(stories), devices=told
    )


class _Teller:
    """Tells the stories of one plan."""

    def __init__(self, plan: Plan, workload: Workload, fleet: Fleet) -> None:
        self._plan, self._workload, self._fleet = plan, workload, at_percentile(fleet, plan.percentile)
        self._view = fleet_view(plan.constraints, self._fleet)
        self._gemms = {gemm.name: gemm for gemm in workload.gemms}
        self._without = frozenset(plan.settings.get("without", "").split(",")) & SWITCHES
        view, self._products = products_of(workload, plan.assignments)
        self._product_of = {gemm.name: gemm for gemm in view.workload.gemms}
        self._holding = Holding(view.workload, self._products, len(fleet.devices))

    def gemm(self, assignment: Assignment) -> GemmStory:
        """The story of one decision, told of its first product."""
        names = assignment.products()[0]
        alone = self._alone(names)
        own = replace(assignment, gemms=names)
        levels = Recount(alone, [own], self._view.devices, self._view.servers).figures().levels
        level = max(levels, key=lambda one: one.ideal_s)
        return GemmStory(
            gemms=assignment.gemms, mode=assignment.mode, joined=assignment.joined, devices=_devices_of(own, self._fleet),
            ideal_s=level.ideal_s, executed_s=level.executed_s, bound_s=self._bound(alone, self._view),
            binds=self._binds(level, own, alone), constraints=self._demands(names),
            alternatives=tuple(sorted(self._alternatives(own, alone), key=lambda a: (a.ideal_s is None, a.ideal_s))),
        )  # fmt: skip

    def _alone(self, names: Sequence[str]) -> Workload:
        """The workload of one product: its members in as few levels as they have."""
        members = [self._gemms[name] for name in names]
        number = {level: place for place, level in enumerate(sorted({gemm.level for gemm in members}))}
        gemms = tuple(replace(gemm, level=number[gemm.level]) for gemm in members)
        levels = tuple(
            Level(index=index, gemms=tuple(i for i, gemm in enumerate(gemms) if gemm.level == index), live_bytes=0)
            for index in number.values()
        )
        chains = tuple(replace(c, level=number.get(c.level, 0)) for c in self._workload.chains if c.gemms == tuple(names))
        tensors = {operand.tensor for gemm in members for operand in (gemm.a, gemm.b)}
        parameters = {tensor: size for tensor, size in self._workload.parameters.items() if tensor in tensors}
        return replace(
            self._workload, gemms=gemms, levels=levels, chains=chains, server_operators=(), parameters=parameters, notes=()
        )

    def _demands(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the constraints on any of the GEMMs ``names``."""
        return tuple(one.name for one in self._plan.constraints if any(matches(name, one.gemms) for name in names))

    def _planned(self, alone: Workload, pins: Sequence[Constraint], without: frozenset[str] = frozenset()) -> Plan | None:
        """The plan of a product alone, nothing kept, under ``pins`` and the plan's constraints on devices; None when there is
        none."""
        demands = (*(one for one in self._plan.constraints if one.devices), *pins)
        try:
            return make_plan(alone, self._fleet, constraints=demands, without=self._without | without | {"reuse"})
        except InfeasibleError:
            return None

    def _alternatives(self, own: Assignment, alone: Workload) -> Iterator[Alternative]:
        """Each other mode, half of the devices, apart where several are cut as one, and everything sent where some is held."""
        members = tuple(gemm.name for gemm in alone.gemms)
        if own.finds:
            yield _alternative("nothing held", self._planned(alone, [Constraint(name="same", gemms=members, modes=(own.mode,))]))
        for mode in Mode:
            if mode is not own.mode:
                name = "server only" if mode is Mode.SERVER else mode.value
                yield _alternative(name, self._planned(alone, [Constraint(name="pinned", gemms=members, modes=(mode,))]))
        used = sorted({i for i in own.tiles.device.tolist() if i < len(self._fleet.devices)})
        if len(used) > 1:
            work = np.bincount(own.tiles.device, own.tiles.m_stop - own.tiles.m_start, minlength=len(self._fleet.devices))
            kept = set(sorted(used, key=lambda i: -work[i])[: len(used) // 2])
            others = tuple(device.name for i, device in enumerate(self._fleet.devices) if i not in kept)
            fewer = Constraint(name="fewer", devices=others, exclude=True)
            half = self._planned(alone, [fewer, Constraint(name="away", gemms=members, modes=CUT)])
            yield _alternative(f"{len(kept)} of its {len(used)} devices", half)
        if own.joined > 1:
            pins = [] if own.mode is Mode.SERVER else [Constraint(name="away", gemms=members, modes=CUT)]
            yield _alternative("each GEMM by itself", self._planned(alone, pins, frozenset({"shared", "chains"})))

    def _binds(self, level: LevelTimes, own: Assignment, alone: Workload) -> str:
        """What the GEMM waits for by ideal cost."""
        device = int(level.device_ideal_s.argmax())
        slowest = max(level.server_s, key=lambda name: level.server_s[name])
        if level.server_s[slowest] >= level.device_ideal_s[device]:
            return slowest
        product = product_of(alone, alone.gemms, Join(own.join_axis))
        held = self._holding.held(self._product_of[product.name])
        seconds = _resources(product, own, device, self._view.devices[device], held)
        return f"device {self._view.devices[device].name}: {max(seconds, key=lambda name: seconds[name])}"

    def binding(self) -> list[str]:
        """Devices in falling order of the seconds of the levels that wait for them; then by work."""
        held = self._held_up()
        return sorted(held, key=lambda name: -held[name]) or list(self._plan.predicted.device_memory_bytes)

    def _held_up(self) -> dict[str, float]:
        held: dict[str, float] = {}
        for level in self._plan.predicted.levels:
            if level.binds.startswith("device "):
                name = level.binds.removeprefix("device ")
                held[name] = held.get(name, 0.0) + level.count * level.executed_s
        return held

    def device(self, name: str) -> DeviceStory:
        """The story of one device."""
        place = self._plan.device_names.index(name)
        device = self._view.devices[place]
        seconds = dict.fromkeys(("downlink", "compute", "uplink", "latency"), 0.0)
        pieces: list[HeldPiece] = []
        for assignment in self._products:
            if not bool((assignment.tiles.device == place).any()):
                continue
            product, count = self._product_of[assignment.gemms[0]], len(assignment.gemms)
            held = self._holding.held(product)
            for kind, value in _resources(product, assignment, place, device, held).items():
                seconds[kind] += count * value
            pieces += _held_pieces(assignment, held, place)
        base_bound, base_plan = self._bound(self._workload, self._view), self._ideal(self._view.devices)
        rest = [i for i in range(len(self._view.devices)) if i != place]
        changes = [Change(name="without it", bound_s=self._gain(base_bound, rest), plan_s=None)]
        for kind in CHANGES:
            changed = tuple(_better(d, kind) if i == place else d for i, d in enumerate(self._view.devices))
            faster = replace(self._view, devices=changed)
            label = "half the latency" if kind == "latency" else f"twice the {kind}"
            changes.append(
                Change(
                    name=label, bound_s=base_bound - self._bound(self._workload, faster), plan_s=base_plan - self._ideal(changed)
                )
            )
        busiest = max(seconds, key=lambda kind: seconds[kind])
        return DeviceStory(
            device=name, seconds=seconds, binds=busiest if seconds[busiest] > 0 else "nothing: it is not used",
            holds_up_s=self._held_up().get(name, 0.0), held=tuple(pieces), changes=tuple(changes),
        )  # fmt: skip

    def _gain(self, bound_s: float, places: Sequence[int]) -> float | None:
        """What the bound loses when only the devices at ``places`` are left; None when none may be used."""
        banned = excluded(self._plan.constraints, self._view)
        if not any(self._view.devices[place].name not in banned for place in places):
            return None
        return bound_s - self._bound(self._workload, some_devices(self._view, places))

    def _bound(self, workload: Workload, fleet: Fleet) -> float:
        """Lower bound of all levels of ``workload`` on ``fleet``, under the plan's constraints as far as a bound knows them."""
        banned = excluded(self._plan.constraints, fleet)
        used = some_devices(fleet, [place for place, device in enumerate(fleet.devices) if device.name not in banned])
        tagged, rules = ruled(self._plan.constraints, workload)
        caps = caps_of(self._plan.constraints, used.devices)
        chains = () if "chains" in self._without else usable_chains(tagged, used)
        kept = [chain for chain in chains if rules.keep(chain, tagged)]
        view = view_of(tagged, shared="shared" not in self._without, chains=kept)
        found = Candidates(
            view=view,
            fleet=used,
            server_allowed="server" not in self._without,
            inner="inner" not in self._without,
            rules=replace(rules, caps=caps if caps.any else None),
        )
        return lower_bound(found, reuse="reuse" not in self._without)

    def _ideal(self, devices: Sequence[Device]) -> float:
        """Ideal seconds of the plan's levels with its tiles as they are."""
        return Recount(self._workload, self._plan.assignments, devices, self._view.servers).figures().ideal_levels_s


def _better(device: Device, kind: str) -> Device:
    """``device`` with one figure twice as good."""
    if kind == "compute":
        return replace(device, flop_per_s={dtype: 2 * rate for dtype, rate in device.flop_per_s.items()})
    if kind == "latency":
        return replace(device, latency_s=device.latency_s / 2)
    field = f"{kind}_bytes_per_s"
    return replace(device, **{field: 2 * getattr(device, field)})


def _held_pieces(assignment: Assignment, held: Held | None, place: int) -> Iterator[HeldPiece]:
    """What one device holds for the tiles of an assignment of products."""
    if held is None:
        return
    t = assignment.tiles
    for tile in np.flatnonzero(t.device == place).tolist():
        box = {axis: (int(t.column(f"{axis}_start")[tile]), int(t.column(f"{axis}_stop")[tile])) for axis in ("m", "n", "k")}
        for operand, size in (("a", float(held.a_bytes[tile])), ("b", float(held.b_bytes[tile]))):
            if size > 0:
                yield HeldPiece(products=assignment.gemms, operand=operand, bytes=size, **box)


def _resources(product: Gemm, assignment: Assignment, place: int, device: Device, held: Held | None) -> dict[str, float]:
    """Seconds of one product on one device by resource; ``held``: what the assignment's tiles find."""
    mine = assignment.tiles.device == place
    tiles = assignment.tiles.select(mine)
    tiles = replace(tiles, device=np.zeros(len(tiles), dtype=np.int64))
    columns = device_columns([device], product.dtype)
    costs = price(product, tiles, columns, None if held is None else held.select(mine))
    speed = columns.take(tiles.device).rate(costs.flop)
    return {
        "downlink": float(costs.down_bytes.sum()) / device.downlink_bytes_per_s,
        "compute": float((costs.flop / speed).sum()), "uplink": float(costs.up_bytes.sum()) / device.uplink_bytes_per_s,
        "latency": device.latency_s * product.repeats * len(tiles),
    }  # fmt: skip


def _devices_of(assignment: Assignment, fleet: Fleet) -> int:
    return len({i for i in assignment.tiles.device.tolist() if i < len(fleet.devices)})


def _alternative(name: str, plan: Plan | None) -> Alternative:
    if plan is None:
        return Alternative(name=name, ideal_s=None, devices=0)
    return Alternative(name=name, ideal_s=plan.predicted.ideal_levels_s, devices=plan.predicted.devices_used)
