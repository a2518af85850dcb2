"""The tiles of one level: sent to their devices, computed here where the plan leaves them to the server, put together.

All that a run does about devices that are lost, fail or are late is done here: the walk above sees results only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleave_plan.errors import ExecutionError
from cleave_plan.execution.admission import Placed
from cleave_plan.execution.assembly import Assembly
from cleave_plan.execution.engines.base import Engine, Event, Failed, Finished, Lost, Task
from cleave_plan.execution.recovery import Incident, cut_anew
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.products import Operands
from cleave_plan.progress import Progress, silent


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was done so far: tiles of devices, tiles of the server, bytes down and up, seconds by device, and what went wrong.

    ``began``: when the batch did, by time.perf_counter().
    """

    tiles: int = 0
    at_home: int = 0
    down: int = 0
    up: int = 0
    device_s: dict[str, float] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def count(self, finished: Finished) -> None:
        """Add a tile of a device."""
        self.tiles, self.down, self.up = self.tiles + 1, self.down + finished.bytes_down, self.up + finished.bytes_up
        device = finished.task.device
        self.device_s[device] = self.device_s.get(device, 0.0) + finished.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTiming:
    """How long a level took from its first tile's leaving: ``seconds`` until all results were put together, ``device_s`` until
    the last result of each device was there. A level that the server does alone has no devices and takes what its GEMMs take.
    """

    seconds: float
    device_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One product of the level."""

    placed: Placed
    lowered: Operands
    assembly: Assembly


class LevelRun:
    """One level of a run on ``engine``; ``first_job`` is the first of as many new job numbers as products will be added.

    ``total`` is what ``progress`` counts up to, ``label`` what it is told; ``index``: the level's number. Tiles of devices that
    are gone, before or while they compute, go to the others.
    """

    def __init__(
        self, engine: Engine, tally: Tally, first_job: int, *, index: int = 0, total: int = 0, label: str = "",
        progress: Progress = silent,
    ) -> None:  # fmt: skip
        self._engine, self._tally, self._next_job = engine, tally, first_job
        self._index, self._total, self._label, self._progress = index, total, label, progress
        self._out: dict[tuple[int, int], Task] = {}
        self._next_tile: dict[int, int] = {}
        self._parts: dict[int, _Part] = {}
        self._began = time.perf_counter()
        self._sent = False
        self._device_s: dict[str, float] = {}

    @property
    def timing(self) -> LevelTiming:
        """What it took so far."""
        return LevelTiming(seconds=time.perf_counter() - self._began, device_s=dict(self._device_s))

    def add(self, placed: Placed, lowered: Operands) -> int:
        """Send the tiles of a product to their devices; returns at once, with the product's job number."""
        job, self._next_job = self._next_job, self._next_job + 1
        boxes = {tile: box for tile, (_, box) in enumerate(placed.tiles)}
        whole = self._engine.open(job, lowered.work, lowered.arrays) if placed.away else None
        assembly = Assembly(lowered.work, boxes, lowered.along, whole=whole)
        self._parts[job] = _Part(placed=placed, lowered=lowered, assembly=assembly)
        if placed.away and not self._sent:
            self._began, self._sent = time.perf_counter(), True
        self._next_tile[job] = len(placed.tiles)
        homeless = [task for task in (Task(job, tile, *spot) for tile, spot in placed.away.items()) if not self._send(task)]
        if homeless:
            names = tuple(dict.fromkeys(task.device for task in homeless))
            self._move(homeless, names, where=", ".join(names), reason="was gone before the level began")
        return job

    def finish(self) -> Mapping[int, Array]:
        """The canonical result of each product by its job number, when the server's own tiles and all others are there.

        Raises ExecutionError when no device is left, or one cannot compute a tile.
        """
        for part in self._parts.values():
            for tile in part.placed.home:
                part.assembly.compute(tile, part.lowered.arrays)
                self._tally.at_home += 1
        while not all(part.assembly.complete for part in self._parts.values()):
            event = self._engine.collect()
            if event is not None:
                self._take(event)
        results = {}
        for job, part in self._parts.items():
            results[job] = part.assembly.finish()
            if part.placed.away:
                self._engine.close(job)
        return results

    def _take(self, event: Event) -> None:
        if isinstance(event, Finished):
            task = event.task
            self._out.pop((task.job, task.tile), None)
            self._parts[task.job].assembly.add(task.tile, event.result, in_place=event.in_place)
            self._tally.count(event)
            self._device_s[task.device] = time.perf_counter() - self._began
            self._progress(self._tally.tiles, max(self._total, self._tally.tiles), self._label)
        elif isinstance(event, Failed):
            raise ExecutionError(
                f"tile {event.task.tile} of {self._parts[event.task.job].placed.gemm.name!r} failed: {event.reason}",
                where=f"device {event.task.device}",
            )
        elif isinstance(event, Lost):
            owed = [self._out.pop((task.job, task.tile)) for task in event.tasks if (task.job, task.tile) in self._out]
            self._move(owed, event.devices, where=event.where, reason=event.reason)

    def _send(self, task: Task) -> bool:
        """Hand a tile to its device; False when the device is known to be gone."""
        try:
            self._engine.send(task)
        except KeyError:
            return False
        self._out[task.job, task.tile] = task
        return True

    def _move(self, owed: list[Task], devices: tuple[str, ...], *, where: str, reason: str) -> None:
        """Give the tiles ``owed`` by devices that are gone to others, and note it."""
        begin = time.perf_counter()
        pieces: list[Task] = []
        for job in dict.fromkeys(task.job for task in owed):
            part, mine = self._parts[job], [task for task in owed if task.job == job]
            waiting = [*self._out.values(), *pieces]
            found = cut_anew(
                part.placed.gemm, [task.box for task in mine], self._engine.devices, waiting, grid=part.placed.grid
            )  # fmt: skip
            cuts: dict[int, dict[int, Box]] = {}
            for origin, device, box in found:
                tile, self._next_tile[job] = self._next_tile[job], self._next_tile[job] + 1
                cuts.setdefault(mine[origin].tile, {})[tile] = box
                pieces.append(Task(job, tile, device, box))
            for tile, parts in cuts.items():
                part.assembly.replace(tile, parts)
        now = time.perf_counter()
        self._tally.incidents.append(
            Incident(
                devices=devices, level=self._index, at_s=begin - self._tally.began, tiles=len(owed), pieces=len(pieces),
                takers=len({task.device for task in pieces}), replan_s=now - begin, where=where, reason=reason,
            )
        )  # fmt: skip
        again = [task for task in pieces if not self._send(task)]
        if again:
            names = tuple(dict.fromkeys(task.device for task in again))
            self._move(again, names, where=", ".join(names), reason="was gone when it was asked to help")
