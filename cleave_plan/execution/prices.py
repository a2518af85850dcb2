"""What a plan's work takes on its fleet, tile by tile and level by level: what emulation plays and comparisons start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.level import Load, Placement, server_load, tiled_load
from cleave_plan.cost.phases import phases_of
from cleave_plan.cost.tile import BOX, Tiles
from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.engines.emulated import ServerWork
from cleave_plan.execution.pacing import Pacer, Phase, Rates
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.figures import figures_of
from cleave_plan.fleet.percentile import at_percentile
from cleave_plan.kernels.tile import Box
from cleave_plan.plan.constraints import fleet_view
from cleave_plan.plan.objective import products_of
from cleave_plan.plan.plan import Assignment, Mode, Plan
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLevel:
    """A level as the plan has it, by executed cost: names of its GEMMs, seconds, those of each device and its phases.

    ``server_s`` is the longest that a server takes by itself or over its links; ``crowded``: whether the devices together can
    fill servers' links, or servers pass activations on, so that transfers may wait for one another. ``dtypes``: element types of
    the GEMMs.
    """

    gemms: tuple[str, ...]
    seconds: float
    device_s: Mapping[str, float]
    work: Mapping[str, tuple[Phase, ...]]
    server_s: float
    crowded: bool
    dtypes: tuple[str, ...]


class FleetPrices:
    """The prices of ``plan`` on ``fleet``, as the plan sees it: its servers in its order, its percentile, its memory caps.

    ``jobs``: the first member of each product that has tiles, in the order in which a batch opens them as jobs.
    """

    def __init__(self, plan: Plan, workload: Workload, fleet: Fleet, jobs: Sequence[str]) -> None:
        view, assignments = products_of(workload, plan.assignments)
        by_name = {server.name: server for server in fleet.servers}
        seen = at_percentile(fleet_view(plan.constraints, fleet), plan.percentile)
        self._fleet = fleet = replace(seen, servers=tuple(by_name[name] for name in plan.server_names))
        self._gemms = {view.members[gemm.name][0].name: gemm for gemm in view.workload.gemms}
        self._assignments = {name: assignment for assignment in assignments for name in assignment.gemms}
        self._jobs = [self._gemms[name] for name in jobs]
        self._places = {device.name: place for place, device in enumerate(fleet.devices)}
        self._servers = {server.name: place for place, server in enumerate(fleet.servers)}
        self._links = {device.name: Rates(device.downlink_bytes_per_s, device.uplink_bytes_per_s) for device in fleet.devices}
        self._columns: dict[DType, DeviceColumns] = {}
        self._phases: dict[tuple[str, str, Box], tuple[list[Phase], tuple[float, ...]]] = {}
        self._members = {gemm.name: tuple(member.name for member in view.members[gemm.name]) for gemm in view.workload.gemms}
        self._levels = [[view.workload.gemms[place] for place in level.gemms] for level in view.workload.levels]
        self._server_work: dict[int, list[ServerWork]] = {}
        self._prepare()

    def pacer(self) -> Pacer:
        """The fleet's devices and links, with nothing to do."""
        servers = self._fleet.servers
        return Pacer(self._links, [s.egress_bytes_per_s for s in servers], [s.ingress_bytes_per_s for s in servers])

    def level(self, job: int) -> int:
        """The level of a job, counted on from batch to batch."""
        batch, place = divmod(job, len(self._jobs))
        return batch * len(self._levels) + self._jobs[place].level

    def phases(self, task: Task) -> tuple[list[Phase], tuple[float, ...]]:
        """The phases of a tile on its device, and each server's share of its bytes."""
        return self._priced(self._jobs[task.job % len(self._jobs)], task.device, task.box)

    def seconds(self, task: Task) -> float:
        """What a tile takes on its device, if no server's link holds it up."""
        link = self._links[task.device]
        return sum(
            phase.wait_s + max(phase.down_bytes / link.down, phase.flop_s, phase.up_bytes / link.up)
            for phase in self.phases(task)[0]
        )

    def columns(self, gemm: Gemm, devices: Sequence[str]) -> DeviceColumns:
        """The figures of ``devices``, in that order, for the element type of ``gemm``."""
        return self._device_columns(gemm).take(np.array([self._places[name] for name in devices], dtype=np.int64))

    def _priced(self, gemm: Gemm, device: str, box: Box) -> tuple[list[Phase], tuple[float, ...]]:
        key = (gemm.name, device, box)
        if key not in self._phases:
            tiles = Tiles.of([(self._places[device], *box)])
            found = phases_of(gemm, tiles, self._device_columns(gemm))
            columns = (found.wait_s, found.down_bytes, found.flop_s, found.up_bytes)
            rows = [Phase(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
            self._phases[key] = (rows, tuple(self._route(self._assignments[gemm.name]).tolist()))
        return self._phases[key]

    def servers(self, job: int) -> list[ServerWork]:
        """What the servers compute in the level of a job, and what they pass to one another."""
        level = self._jobs[job % len(self._jobs)].level
        if level not in self._server_work:
            self._server_work[level] = self._servers_in(level)
        return self._server_work[level]

    def _prepare(self) -> None:
        """Price everything that the plan has, so that it is there when it is asked for: pricing would be in the way then."""
        for job, gemm in enumerate(self._jobs):
            self.servers(job)
            self._tiles_of(gemm)

    def _tiles_of(self, gemm: Gemm) -> list[tuple[str, list[Phase]]]:
        """The tiles that devices have of a GEMM: the device's name and the tile's phases."""
        tiles = self._assignments[gemm.name].tiles
        boxes = zip(*(tiles.column(name).tolist() for name in BOX), strict=True)
        places = [(place, Box(*box)) for place, box in zip(tiles.device.tolist(), boxes, strict=True)]
        names = [device.name for device in self._fleet.devices]
        return [(names[place], self._priced(gemm, names[place], box)[0]) for place, box in places if place < len(names)]

    def _servers_in(self, level: int) -> list[ServerWork]:
        load, own_down, own_up = self._load(level)
        work = []
        for name, place in self._servers.items():
            alone = tuple(float(each == place) for each in range(len(self._servers)))
            moved_down, moved_up = load.egress[place] - own_down[place], load.ingress[place] - own_up[place]
            parts = {
                f"server {name}": Phase(0.0, 0.0, float(load.server_s[place]), 0.0),
                f"from server {name}": Phase(0.0, float(moved_down), 0.0, 0.0),
                f"to server {name}": Phase(0.0, 0.0, 0.0, float(moved_up)),
            }
            server = self._fleet.servers[place]
            limits = (1.0, 1 / server.egress_bytes_per_s, 1.0, 1 / server.ingress_bytes_per_s)
            for row, phase in parts.items():
                if sum(amount * each for amount, each in zip(phase, limits, strict=True)) > _NOTHING_S:
                    work.append(ServerWork(row=row, phase=phase, share=alone))
        return work

    def figures(self) -> dict[str, dict[str, float]]:
        """The figures of each device that its prices are made of, by name and in SI."""
        return {device.name: figures_of(device) for device in self._fleet.devices}

    def predicted(self) -> list[PredictedLevel]:
        """Each level as the plan has it, those without GEMMs too."""
        return [self._predicted(index) for index in range(len(self._levels))]

    def _predicted(self, index: int) -> PredictedLevel:
        load, _, _ = self._load(index)
        egress = load.egress / np.array([server.egress_bytes_per_s for server in self._fleet.servers])
        ingress = load.ingress / np.array([server.ingress_bytes_per_s for server in self._fleet.servers])
        server_s = float(max(egress.max(), ingress.max(), load.server_s.max()))
        device_s = {
            device.name: seconds
            for device, seconds in zip(self._fleet.devices, load.executed_s.tolist(), strict=True)
            if seconds > 0
        }
        names = tuple(name for gemm in self._levels[index] for name in self._members[gemm.name])
        seconds = max(server_s, *device_s.values()) if device_s else server_s
        work: dict[str, list[Phase]] = {}
        for gemm in self._levels[index]:
            for name, phases in self._tiles_of(gemm):
                work.setdefault(name, []).extend(phases)
        return PredictedLevel(
            gemms=names, seconds=seconds, device_s=device_s, server_s=server_s, crowded=self._crowded(device_s),
            work={name: tuple(phases) for name, phases in work.items()},
            dtypes=tuple(sorted({gemm.dtype.value for gemm in self._levels[index]})),
        )  # fmt: skip

    def _crowded(self, devices: Iterable[str]) -> bool:
        some = [self._fleet.devices[self._places[name]] for name in devices]
        servers = self._fleet.servers
        return len(servers) > 1 or (
            sum(device.downlink_bytes_per_s for device in some) > servers[0].egress_bytes_per_s
            or sum(device.uplink_bytes_per_s for device in some) > servers[0].ingress_bytes_per_s
        )

    def _load(self, index: int) -> tuple[Load, np.ndarray, np.ndarray]:
        """The load of a level, and what of the servers' bytes goes to and comes from devices."""
        devices, servers = len(self._fleet.devices), self._fleet.servers
        load = Load.none(devices, len(servers))
        down, up = np.zeros(len(servers)), np.zeros(len(servers))
        for gemm in self._levels[index]:
            assignment = self._assignments[gemm.name]
            spot = Placement(servers=tuple(self._servers[name] for name in assignment.servers), shares=assignment.shares)
            if assignment.mode is Mode.SERVER:
                load = load + server_load(gemm, spot, devices, servers)
                continue
            load = load + tiled_load(gemm, assignment.tiles, spot, self._device_columns(gemm), servers)
            route = self._route(assignment)
            away = assignment.tiles.select(assignment.tiles.device < devices)
            found = phases_of(gemm, away, self._device_columns(gemm))
            down, up = down + route * found.down_bytes.sum(), up + route * found.up_bytes.sum()
        return load, down, up

    def _route(self, assignment: Assignment) -> np.ndarray:
        route = np.zeros(len(self._servers))
        for name, share in zip(assignment.servers, assignment.shares, strict=True):
            route[self._servers[name]] += share
        return route

    def _device_columns(self, gemm: Gemm) -> DeviceColumns:
        if gemm.dtype not in self._columns:
            self._columns[gemm.dtype] = device_columns(self._fleet.devices, gemm.dtype)
        return self._columns[gemm.dtype]


_NOTHING_S = 1e-9
"""Seconds of a server's own work that are not worth a row (rounding)."""
