r"""A plan after devices were lost or have joined: only what must move moves.

The tiles of lost devices are cut anew (:mod:`~cleave_plan.planning.recut`) over the devices that are there, joined ones among
them, each busy with what it has in the same level; every other tile stays. Levels go by the time that they take, longest first;
identical levels share their tiles, so each product is cut anew once. K is never cut where it was not.

*Hysteresis*: with a ``gain``, the plan that the planner would make for the devices that are there takes the patched one's place,
if it makes the batch faster by that share at the least. It is not even looked for where the lower bound rules that out.

In a patched plan devices keep nothing (:mod:`~cleave_plan.planning.resident`), whatever the old one had them keep: who has a
piece now was not sent it before. Its settings name "reuse" among what it is without, and its bound is that of plans without.

A lost device stays in the fleet (the plan is for the same fleet file) and holds nothing; ``settings["lost"]`` has its name, so
that a plan can be re-planned again. Devices that join are put behind the others; one that was lost comes back under its name.
Bound and yardsticks are those of the devices that are there. No program was solved: the solver's part of the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.tile import Tiles
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError, UsageError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.percentile import at_percentile
from cleave_plan.fleet.stranger import one_of
from cleave_plan.ordering import natural
from cleave_plan.plan.constraints import caps_of, excluded, fleet_view
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Assignment, Plan, Predicted, Reference, SolverReport, SolverStatus
from cleave_plan.planning.candidates import Candidates, level_classes
from cleave_plan.planning.constrained import ruled
from cleave_plan.planning.decide import Decision
from cleave_plan.planning.patch import patched
from cleave_plan.planning.placing import base_memory
from cleave_plan.planning.planner import make_plan
from cleave_plan.planning.predict import notes_of, one_device, predict
from cleave_plan.planning.subfleet import restored, some_devices
from cleave_plan.progress import Progress, silent
from cleave_plan.workload.graph import Workload

GAIN = 0.05
"""Share by which a plan made anew must shorten the batch to be worth moving tiles that could stay."""

LOST = "lost"
"""The setting of a plan that names the fleet's devices that are not there."""

_NOTE = "re-planned: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The new ``plan`` and the ``fleet`` it is for; names of devices that are gone or have joined.

    ``tiles`` of products (each counted once for all identical levels) had lost their device and became ``pieces`` on ``takers``
    other devices. ``anew``: whether the plan was made anew instead, for a gain of ``gain`` of the batch time.
    """

    plan: Plan
    fleet: Fleet
    lost: tuple[str, ...]
    joined: tuple[str, ...]
    tiles: int
    pieces: int
    takers: int
    anew: bool
    gain: float


def replan(
    plan: Plan,
    workload: Workload,
    fleet: Fleet,
    lost: Collection[str] = (),
    joined: Sequence[Device] = (),
    *,
    gain: float | None = None,
    progress: Progress = silent,
) -> Replanned:
    """``plan`` (made for ``workload`` and ``fleet``, whose servers are the plan's) without ``lost`` and with ``joined`` devices.

    ``gain``: share of the batch time for which other tiles may move too (None: they never do). Raises UsageError for devices
    that the fleet does not have or has twice, InfeasibleError when no device that is left can take a tile.
    """
    gone = _gone(plan, fleet, lost, joined)
    grown = _grown(fleet, joined)
    present = [place for place, device in enumerate(grown.devices) if device.name not in gone]
    if not present:
        raise InfeasibleError(
            "every device is lost", where=f"fleet {fleet.name}", facts={"unit": "device", "available": 0},
            remedy="plan for the devices that are left, or for the server alone",
        )  # fmt: skip
    judge = _Judge(plan, workload, grown, present)
    before = _renumbered(plan, len(grown.devices))
    patch = patched(judge.workload, judge.products(before), judge.columns, judge.away)
    assignments = tuple(replace(a, tiles=b.tiles, mode=b.mode) for a, b in zip(before, patch.assignments, strict=True))
    predicted = judge.predicted(assignments)
    anew, won = False, 0.0
    if gain is not None and judge.bound_s + predicted.server_operators_s <= (1 - gain) * predicted.batch_s:
        better = judge.made_anew(plan, progress)
        won = 1 - better.predicted.batch_s / predicted.batch_s
        if won >= gain:
            anew, assignments, predicted = True, better.assignments, better.predicted
    without = _without(plan) if anew else _without(plan) | {"reuse"}
    notes = judge.notes(plan, predicted, without)
    if gone and not anew:
        notes.append(f"{_NOTE}{len(gone)} devices are not there, their tiles were cut anew over others, the rest stays as it was")
    kept = {name: value for name, value in plan.settings.items() if name != LOST} | {"without": ",".join(sorted(without))}
    made = replace(
        plan, fleet=Reference(name=grown.name, sha256=grown.sha256), assignments=assignments, predicted=predicted,
        device_names=tuple(device.name for device in grown.devices), notes=tuple(notes), solver=_unsolved(predicted),
        settings=kept | ({LOST: ",".join(sorted(gone, key=natural))} if gone else {}),
    )  # fmt: skip
    return Replanned(
        plan=made, fleet=grown, lost=tuple(sorted(gone, key=natural)), joined=tuple(device.name for device in joined),
        tiles=patch.tiles, pieces=patch.pieces, takers=patch.takers, anew=anew, gain=won if anew else 0.0,
    )  # fmt: skip


def lost_before(plan: Plan) -> frozenset[str]:
    """The devices of the plan's fleet that were lost when it was re-planned."""
    return frozenset(name for name in plan.settings.get(LOST, "").split(",") if name)


def _without(plan: Plan) -> frozenset[str]:
    """What the plan was made without."""
    return frozenset(name for name in plan.settings.get("without", "").split(",") if name)


def _gone(plan: Plan, fleet: Fleet, lost: Collection[str], joined: Sequence[Device]) -> frozenset[str]:
    """Names of the devices that are not there; raises UsageError for changes that cannot be meant."""
    known = {device.name for device in fleet.devices}
    before = lost_before(plan)
    for name in sorted(lost, key=natural):
        if name not in known:
            raise UsageError(f"it has no device {name!r} to lose", where=f"fleet {fleet.name}", expected=one_of(known, name))
    names = [device.name for device in joined]
    for name in names:
        if names.count(name) > 1 or (name in known and name not in before):
            raise UsageError(f"device {name!r} joins", where=f"fleet {fleet.name}", expected="a name that it does not have yet")
    return (before - set(names)) | set(lost)


def _grown(fleet: Fleet, joined: Sequence[Device]) -> Fleet:
    """``fleet`` with ``joined`` behind its devices, or in the place of the lost one of that name."""
    if not joined:
        return fleet
    back = {device.name: device for device in joined}
    devices = [back.pop(device.name, device) for device in fleet.devices]
    return make_fleet(fleet.name, fleet.servers, [*devices, *back.values()])


def _renumbered(plan: Plan, devices: int) -> tuple[Assignment, ...]:
    """The plan's assignments where ``devices`` instead of the plan's number of them stands for the server."""
    old = len(plan.device_names)

    def of(tiles: Tiles) -> Tiles:
        return replace(tiles, device=np.where(tiles.device == old, devices, tiles.device))

    nothing = np.empty(0, dtype=np.int64)
    return tuple(replace(one, tiles=of(one.tiles), held_a=nothing, held_b=nothing) for one in plan.assignments)


def _unsolved(predicted: Predicted) -> SolverReport:
    """What stands in the solver's place: no program, and what the bound proves of the tiles."""
    return SolverReport(
        name="none (re-planned)", status=SolverStatus.WITHIN_GAP, objective=predicted.ideal_levels_s, bound=predicted.bound_s,
        gap=max(predicted.gap, 0.0), build_s=None, solve_s=None, variables=0, rows=0,
    )  # fmt: skip


class _Judge:
    """What assignments take on the devices that are there, by the figures that the plan was made with."""

    def __init__(self, plan: Plan, workload: Workload, fleet: Fleet, present: Sequence[int]) -> None:
        self.fleet, self.present = fleet, present
        self.figures = at_percentile(fleet_view(plan.constraints, fleet), plan.percentile)
        self.tagged, rules = ruled(plan.constraints, workload)
        self._original = workload
        banned = excluded(plan.constraints, fleet)
        self.able = [place for place in present if fleet.devices[place].name not in banned]
        there = some_devices(self.figures, self.able)
        caps = caps_of(plan.constraints, there.devices)
        without = _without(plan)
        view, _ = products_of(self.tagged, plan.assignments)
        server, inner = "server" not in without, "inner" not in without
        known = replace(rules, caps=caps if caps.any else None)
        self._there = Candidates(view=view, fleet=there, server_allowed=server, inner=inner, rules=known)
        self._whole = Candidates(view=view, fleet=self.figures, server_allowed=server, inner=inner)
        self._whole.classes = self._there.classes = level_classes(view.workload)
        self._whole.bounds = [self._there.level_bound(level) for level in self._there.classes]
        self.workload = view.workload
        self.away = np.ones(len(fleet.devices), dtype=bool)
        self.away[self.able] = False

    def products(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """The assignments with products in place of their members."""
        return products_of(self.tagged, assignments)[1]

    @property
    def bound_s(self) -> float:
        """Seconds that all levels take at least, by ideal cost."""
        return sum(level.count * bound for level, bound in zip(self._whole.classes, self._whole.bounds, strict=True))

    def columns(self, dtype: DType) -> DeviceColumns:
        """Figures of all devices, lost ones too."""
        if dtype not in self._whole.columns:
            self._whole.columns[dtype] = device_columns(self.figures.devices, dtype)
        return self._whole.columns[dtype]

    def predicted(self, assignments: Sequence[Assignment]) -> Predicted:
        """The figures of ``assignments``, which join the GEMMs as the plan does."""
        place = {name: number for number, assignment in enumerate(assignments) for name in assignment.gemms}
        members = self._whole.view.members
        decisions = []
        for number, level in enumerate(self._whole.classes):
            alike: dict[tuple[int, ...], list[int]] = {}
            for index in level.levels:
                gemms = (self.workload.gemms[at] for at in self.workload.levels[index].gemms)
                alike.setdefault(tuple(sorted(place[members[gemm.name][0].name] for gemm in gemms)), []).append(index)
            decisions += [Decision(level_class=number, levels=tuple(levels), choices=()) for levels in alike.values()]
        found = predict(self._whole, decisions, assignments, base_memory(self._original, self.figures))
        name, alone = one_device(self._there)
        return replace(
            found, one_device_name=name, one_device_s=None if alone is None else alone + found.server_operators_s
        )  # fmt: skip

    def notes(self, plan: Plan, predicted: Predicted, without: frozenset[str]) -> list[str]:
        """The notes of ``plan``, those on what its figures leave out as they are for ``predicted``."""
        view = self._whole.view
        before = {*notes_of(view, plan.predicted, _without(plan)), *notes_of(view, plan.predicted, _without(plan) | {"reuse"})}
        return [*notes_of(view, predicted, without), *(n for n in plan.notes if n not in before and not n.startswith(_NOTE))]

    def made_anew(self, plan: Plan, progress: Progress) -> Plan:
        """What the planner makes of the devices that are there, as a plan for the whole fleet."""
        made = make_plan(
            self._original, some_devices(self.fleet, self.present), constraints=plan.constraints, percentile=plan.percentile,
            without=_without(plan),
            gap=float(plan.settings.get("gap", 1e-3)), time_limit_s=float(plan.settings.get("time_limit_s", 60.0)),
            progress=progress,
        )  # fmt: skip
        return restored(made, self.fleet, self.present)
