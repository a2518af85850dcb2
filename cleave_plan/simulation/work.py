"""A plan's levels as columns of phases in device order: what the simulator moves through.

Levels whose GEMMs have the same assignments and classes are one *kind*, laid out once. A *route* says which share of a
transfer's bytes each server carries; the activations that servers pass to one another are transfers without a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.level import Load, Placement, server_load, tiled_load
from cleave_plan.cost.phases import Phases, phases_of
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.planning.holding import Holding
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Columns over the fleet's devices: bytes/s down and up, seconds of latency."""

    downlink: Floats
    uplink: Floats
    latency: Floats

    def __len__(self) -> int:
        return len(self.latency)

    @classmethod
    def of(cls, fleet: Fleet) -> Links:
        """The links of ``fleet``."""
        return cls(
            downlink=np.array([device.downlink_bytes_per_s for device in fleet.devices]),
            uplink=np.array([device.uplink_bytes_per_s for device in fleet.devices]),
            latency=np.array([device.latency_s for device in fleet.devices]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelWork:
    """One kind of level.

    Columns over phases, sorted by device and then by time: ``device`` (index into the fleet), ``gemm`` (place in ``gemms``),
    ``tile`` (running number in the level), ``route`` (row of ``routes``), and the content of :class:`Phases`. ``load`` is
    what the cost model says of the level: seconds per device, bytes and seconds per server. ``routes``: shares, of shape
    (routes, servers). ``columns``: the fleet's figures for each GEMM's element type.
    """

    gemms: tuple[str, ...]
    device: Ints
    gemm: Ints
    tile: Ints
    route: Ints
    wait_s: Floats
    down_bytes: Floats
    flop: Floats
    flop_s: Floats
    up_bytes: Floats
    routes: Floats
    columns: tuple[DeviceColumns, ...]
    load: Load

    @property
    def starts(self) -> Ints:
        """Where each device's phases begin: one entry per device that takes part."""
        return np.flatnonzero(np.diff(self.device, prepend=-1))

    @property
    def active(self) -> Ints:
        """The devices that take part, ascending."""
        return self.device[self.starts]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanWork:
    """A plan laid out: its kinds of levels, the kind of each level in order, and seconds of operators before each level
    (one entry more than levels: the last ones run at the end)."""

    kinds: tuple[LevelWork, ...]
    kind_of: Ints
    operators_s: Floats
    links: Links


def plan_work(plan: Plan, workload: Workload, fleet: Fleet) -> PlanWork:
    """Lay out ``plan`` as a batch after the first; ``fleet`` has the plan's servers only, in its order.

    Raises ValueError when an assignment joins what cannot be joined, MissingFigureError for a rate that the fleet lacks.
    """
    view, assignments = products_of(workload, plan.assignments)
    layout = _Layout(assignments, fleet, Holding(view.workload, assignments, len(fleet.devices)))
    kinds: dict[tuple[tuple[int, ...], ...], int] = {}
    works: list[LevelWork] = []
    kind_of = []
    for level in view.workload.levels:
        gemms = [view.workload.gemms[place] for place in level.gemms]
        key = tuple(layout.kind(gemm) for gemm in gemms)
        if key not in kinds:
            kinds[key] = len(works)
            works.append(layout.level(gemms))
        kind_of.append(kinds[key])
    return PlanWork(
        kinds=tuple(works), kind_of=np.array(kind_of, dtype=np.int64), operators_s=_operators(view.workload, fleet),
        links=Links.of(fleet),
    )  # fmt: skip


def _operators(workload: Workload, fleet: Fleet) -> Floats:
    seconds = np.zeros(len(workload.levels) + 1)
    for operator in workload.server_operators:
        place = min(max(operator.level, 0), len(workload.levels))
        seconds[place] += (operator.bytes or 0) / fleet.servers[0].memory_bandwidth_bytes_per_s
    return seconds


class _Layout:
    """Phases of GEMMs under their assignments, each pair laid out once."""

    def __init__(self, assignments: Sequence[Assignment], fleet: Fleet, holding: Holding) -> None:
        self._assignments, self._fleet, self._holding = assignments, fleet, holding
        self._place = {name: place for place, assignment in enumerate(assignments) for name in assignment.gemms}
        self._classes: dict[object, int] = {}
        self._columns: dict[object, DeviceColumns] = {}
        self._servers = {server.name: place for place, server in enumerate(fleet.servers)}

    def kind(self, gemm: Gemm) -> tuple[int, ...]:
        """GEMMs of one kind have the same phases."""
        known = self._classes.setdefault(gemm.class_key, len(self._classes))
        return self._place[gemm.name], known, *self._holding.kind(gemm)

    def columns(self, gemm: Gemm) -> DeviceColumns:
        """Device figures for the GEMM's element type."""
        if gemm.dtype not in self._columns:
            self._columns[gemm.dtype] = device_columns(self._fleet.devices, gemm.dtype)
        return self._columns[gemm.dtype]

    def level(self, gemms: Sequence[Gemm]) -> LevelWork:
        """All phases of a level, device by device, each device taking the GEMMs in their order."""
        load = Load.none(len(self._fleet.devices), len(self._fleet.servers))
        parts: list[tuple[Ints, int, Phases, Ints]] = []
        routes = np.zeros((len(gemms), len(self._fleet.servers)))
        for place, gemm in enumerate(gemms):
            assignment = self._assignments[self._place[gemm.name]]
            spot = Placement(servers=tuple(self._servers[name] for name in assignment.servers), shares=assignment.shares)
            routes[place, list(spot.servers)] = spot.shares
            if assignment.mode is Mode.SERVER:
                load = load + server_load(gemm, spot, len(self._fleet.devices), self._fleet.servers)
                continue
            figures = self.columns(gemm)
            held, on_device = self._holding.held(gemm), assignment.tiles.device < len(figures)
            load = load + tiled_load(gemm, assignment.tiles, spot, figures, self._fleet.servers, held)
            tiles = assignment.tiles.select(on_device)
            phases = phases_of(gemm, tiles, figures, None if held is None else held.select(on_device))
            parts.append((tiles.device[phases.tile], place, phases, phases.tile))
        columns = tuple(self.columns(gemm) for gemm in gemms)
        return _gathered(tuple(gemm.name for gemm in gemms), columns, parts, routes, load)


def _gathered(
    names: tuple[str, ...],
    columns: tuple[DeviceColumns, ...],
    parts: list[tuple[Ints, int, Phases, Ints]],
    routes: Floats,
    load: Load,
) -> LevelWork:
    """The phases of all GEMMs as one table, sorted by device (stably, so that the order in time stays)."""
    empty = np.empty(0, dtype=np.int64)
    device = np.concatenate([empty, *(devices for devices, _, _, _ in parts)])
    gemm = np.concatenate([empty, *(np.full(len(phases), place) for _, place, phases, _ in parts)])
    order = np.argsort(device, kind="stable")
    first, offsets = 0, []
    for _, _, _, tile in parts:
        offsets.append(tile + first)
        first += int(tile.max(initial=-1)) + 1

    def column(name: str) -> Floats:
        joined: Floats = np.concatenate([np.empty(0), *(getattr(phases, name) for _, _, phases, _ in parts)])[order]
        return joined

    return LevelWork(
        gemms=names, device=device[order], gemm=gemm[order], tile=np.concatenate([empty, *offsets])[order], route=gemm[order],
        wait_s=column("wait_s"), down_bytes=column("down_bytes"), flop=column("flop"), flop_s=column("flop_s"),
        up_bytes=column("up_bytes"), routes=routes, columns=columns, load=load,
    )  # fmt: skip
