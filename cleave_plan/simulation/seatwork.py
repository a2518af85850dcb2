"""What one kind of level asks of each seat: its products' tiles, as the plan gives them to the fleet's devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cleave_plan.cost.tile import Tiles, executed_on, price, work_of
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Assignment
from cleave_plan.simulation.crowd import Floats
from cleave_plan.simulation.level import paced
from cleave_plan.simulation.task import Task, tasks_of
from cleave_plan.simulation.work import LevelWork, Links
from cleave_plan.workload.gemm import Gemm


class SeatWork:
    """One kind of level: its ``name``, its products (``parts``) with the fleet's figures for each (``columns``), their tiles by
    seat, seconds of the level and of its servers without churn, and its multiply-adds."""

    def __init__(self, work: LevelWork, products: Mapping[str, Gemm], owner: Mapping[str, Assignment], fleet: Fleet) -> None:
        self.work = work
        self.name = ", ".join(work.gemms)
        self.parts = [products[name] for name in work.gemms]
        self.columns, self._seats = work.columns, len(fleet.devices)
        self.tiles = [self._sent(owner[name].tiles, len(fleet.devices)) for name in work.gemms]
        still = paced(work, Links.of(fleet), fleet.servers)
        self.planned_s, self.servers_s = still.seconds, still.servers_s
        self.macs = sum(float(gemm.macs) for gemm in self.parts)
        self._work = [work_of(gemm, tiles) for gemm, tiles in zip(self.parts, self.tiles, strict=True)]
        self._ends = [np.searchsorted(tiles.device, np.arange(self._seats + 1)) for tiles in self.tiles]

    @staticmethod
    def _sent(tiles: Tiles, devices: int) -> Tiles:
        """The tiles that devices get, seat by seat."""
        order = np.argsort(tiles.device, kind="stable")
        return tiles.select(order[tiles.device[order] < devices])

    def of_seat(self, part: int, seat: int) -> Tiles:
        """The seat's tiles of one product."""
        ends = self._ends[part]
        return self.tiles[part].select(slice(ends[seat], ends[seat + 1]))

    def own_seconds(self) -> Floats:
        """Seconds of each seat's tiles on the device that the plan gives them to."""
        total = np.zeros(self._seats)
        for gemm, tiles, columns in zip(self.parts, self.tiles, self.columns, strict=True):
            total += np.bincount(tiles.device, price(gemm, tiles, columns).executed_s, minlength=len(total))
        return total

    def seconds_on(self, like: int) -> Floats:
        """Seconds of each seat's tiles on the fleet's device ``like``."""
        total = np.zeros(self._seats)
        for gemm, tiles, work, columns in zip(self.parts, self.tiles, self._work, self.columns, strict=True):
            total += np.bincount(tiles.device, executed_on(gemm, tiles, work, columns, like), minlength=len(total))
        return total

    def seconds(self, seat: int, like: int) -> float:
        """Seconds of the ``seat``'s tiles on the fleet's device ``like``."""
        return float(sum(seconds.sum() for _, _, seconds in self._priced(seat, like)))

    def tasks(self, seat: int, like: int) -> list[Task]:
        """The seat's tiles for a device with the figures of ``like``."""
        return [task for part, tiles, seconds in self._priced(seat, like) for task in tasks_of(part, tiles, seconds)]

    def _priced(self, seat: int, like: int) -> Iterator[tuple[int, Tiles, Floats]]:
        """The seat's tiles of each product that has any, and what each takes on the device ``like``."""
        for part, (gemm, columns) in enumerate(zip(self.parts, self.columns, strict=True)):
            mine = self.of_seat(part, seat)
            if len(mine):
                yield part, mine, executed_on(gemm, mine, work_of(gemm, mine), columns, like)
