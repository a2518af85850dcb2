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
from cleave_plan.kernels.arrays import Array
from cleave_plan.onnx_io.products import Operands
from cleave_plan.progress import Progress, silent


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was done so far: tiles of devices, tiles of the server, bytes down and up, seconds by device."""

    tiles: int = 0
    at_home: int = 0
    down: int = 0
    up: int = 0
    device_s: dict[str, float] = field(default_factory=dict)

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

    ``total`` is what ``progress`` counts up to, ``label`` what it is told.
    """

    def __init__(
        self, engine: Engine, tally: Tally, first_job: int, *, total: int = 0, label: str = "", progress: Progress = silent
    ) -> None:  # fmt: skip
        self._engine, self._tally, self._next_job = engine, tally, first_job
        self._total, self._label, self._progress = total, label, progress
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
        for tile, (device, box) in placed.away.items():
            self._engine.send(Task(job, tile, device, box))
        return job

    def finish(self) -> Mapping[int, Array]:
        """The canonical result of each product by its job number, when the server's own tiles and all others are there.

        Raises ExecutionError when a device is lost or cannot compute a tile.
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
            self._parts[task.job].assembly.add(task.tile, event.result, in_place=event.in_place)
            self._tally.count(event)
            self._device_s[task.device] = time.perf_counter() - self._began
            self._progress(self._tally.tiles, self._total, self._label)
        elif isinstance(event, Failed):
            raise ExecutionError(
                f"tile {event.task.tile} of {self._parts[event.task.job].placed.gemm.name!r} failed: {event.reason}",
                where=f"device {event.task.device}",
            )
        elif isinstance(event, Lost):
            raise ExecutionError(
                f"it {event.reason} during the run", where=event.where, expected="devices that live until the run is over",
                remedy="run again; if it happens again, look for what ends the process (the system log, when memory runs out)",
            )  # fmt: skip
