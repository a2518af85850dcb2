"""What one kind of level asks of each seat: its products' tiles, as the plan gives them to the fleet's devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cleave_plan.cost.tile import Tiles, price
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment
from cleave_plan.simulation.crowd import Floats
from cleave_plan.simulation.level import paced
from cleave_plan.simulation.task import Task, tasks_of
from cleave_plan.simulation.work import LevelWork, Links
from cleave_plan.workload.gemm import Gemm


class SeatWork:
    """One kind of level: its products (``parts``) with the fleet's figures for each (``columns``), their tiles by seat, seconds
    of the level and of its servers without churn, and its multiply-adds."""

    def __init__(self, work: LevelWork, products: Mapping[str, Gemm], owner: Mapping[str, Assignment], fleet: Fleet) -> None:
        self.work = work
        self.parts = [products[name] for name in work.gemms]
        self.columns, self._seats = work.columns, len(fleet.devices)
        self.tiles = [self._sent(owner[name].tiles, len(fleet.devices)) for name in work.gemms]
        still = paced(work, Links.of(fleet), fleet.servers)
        self.planned_s, self.servers_s = still.seconds, still.servers_s
        self.macs = sum(float(gemm.macs) for gemm in self.parts)

    @staticmethod
    def _sent(tiles: Tiles, devices: int) -> Tiles:
        return tiles.select(tiles.device < devices)

    def seconds_on(self, like: int) -> Floats:
        """Seconds of each seat's tiles on the fleet's device ``like``."""
        total = np.zeros(self._seats)
        for gemm, tiles, columns in zip(self.parts, self.tiles, self.columns, strict=True):
            costs = price(gemm, replace(tiles, device=np.full(len(tiles), like)), columns)
            total += np.bincount(tiles.device, costs.executed_s, minlength=len(total))
        return total

    def tasks(self, seat: int, like: int) -> list[Task]:
        """The seat's tiles for a device with the figures of ``like``."""
        found = []
        for part, (gemm, tiles, columns) in enumerate(zip(self.parts, self.tiles, self.columns, strict=True)):
            mine = tiles.select(tiles.device == seat)
            if len(mine):
                seconds = price(gemm, replace(mine, device=np.full(len(mine), like)), columns).executed_s
                found += tasks_of(part, mine, seconds)
        return found
