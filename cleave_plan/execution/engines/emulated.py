"""An engine that makes another one as slow as a fleet: results are held back until the fleet's devices would have sent them.

The arithmetic is done at once by the engine inside. Beside it each device identity is played in the fleet's time: its link in
both directions, its latency and its FLOP/s, one tile after another, and the servers' links that all share. ``scale`` says how
many seconds here a second of the fleet takes. What the server computes itself in a level is played as well: the level's last
result waits for it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.execution.engines.base import Engine, Event, Finished, Joined, Lost, Task, without_job
from cleave_plan.execution.pacing import Pacer, Phase
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """What servers do in a level beside the devices: a row of the pacer by name, its phase, and each server's share of it."""

    row: str
    phase: Phase
    share: tuple[float, ...]


class Prices(Protocol):
    """What a fleet takes for the work of a run."""

    def pacer(self) -> Pacer:
        """The fleet's devices and links, with nothing to do."""

    def phases(self, task: Task) -> tuple[Sequence[Phase], Sequence[float]]:
        """The phases of a tile on its device, and each server's share of its bytes."""

    def level(self, job: int) -> int:
        """A number for the level that a job is in, another one in each batch."""

    def servers(self, job: int) -> Sequence[ServerWork]:
        """What the servers do themselves in the level of a job."""


class EmulatedEngine:
    """``inner`` at the pace of the fleet behind ``prices``; ``clock`` counts seconds."""

    def __init__(
        self, inner: Engine, prices: Prices, scale: float, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:  # fmt: skip
        self._inner, self._prices, self._scale, self._clock = inner, prices, scale, clock
        self._pacer = prices.pacer()
        self._began = clock()
        self._level: int | None = None
        self._server_rows: tuple[str, ...] = ()
        self._out: dict[tuple[int, int], Task] = {}
        self._due: set[tuple[int, int]] = set()
        self._computed: dict[tuple[int, int], Finished] = {}
        self._events: deque[Event] = deque()

    def start(self, load: Mapping[str, float]) -> None:
        """Start the engine inside."""
        self._inner.start(load)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of the engine inside."""
        return self._inner.devices

    def join(self, devices: Sequence[str]) -> None:
        """Devices that the fleet does not know cannot be played."""
        raise UsageError(f"{', '.join(devices)} cannot join a run that is emulated", expected="devices of the fleet")

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An array of the engine inside."""
        return self._inner.empty(shape, dtype)

    def share(self, array: Array) -> Array:
        """As the engine inside does."""
        return self._inner.share(array)

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """Open the job inside."""
        return self._inner.open(job, work, operands)

    def send(self, *tasks: Task) -> None:
        """Have tiles computed, each as one of its own, and played on their devices from now on."""
        for task in tasks:
            self._play(task)

    def _play(self, task: Task) -> None:
        self._inner.send(task)
        self._advance()
        self._enter(self._prices.level(task.job), task.job)
        phases, share = self._prices.phases(task)
        key = (task.job, task.tile)
        self._out[key] = task
        self._pacer.add(task.device, key, phases, share, self._now())

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The next event: a result when it was computed here and its device would have sent it, others as they come."""
        deadline = math.inf if timeout_s is None else self._clock() + timeout_s
        while True:
            self._advance()
            event = self._ready()
            if event is not None:
                return event
            until = min(deadline, self._began + self._scale * self._pacer.next_s())
            found = self._inner.collect(None if until == math.inf else max(0.0, until - self._clock()))
            if isinstance(found, Finished):
                self._computed[found.task.job, found.task.tile] = found
            elif found is not None:
                self._events.append(found)
            elif self._clock() >= deadline:
                self._advance()
                return self._ready()

    def drop(self, device: str, reason: str) -> None:
        """Give the device up inside."""
        self._inner.drop(device, reason)

    def close(self, job: int) -> None:
        """Close the job inside; what is still played of it keeps its device busy, as it would."""
        self._inner.close(job)
        self._events = without_job(self._events, job)
        for key in [key for key in self._out if key[0] == job]:
            self._out.pop(key)
            self._computed.pop(key, None)
            self._due.discard(key)

    def stop(self) -> None:
        """Stop the engine inside."""
        self._inner.stop()

    @property
    def processes(self) -> tuple[int, ...]:
        """Those of the engine inside."""
        return self._inner.processes

    def _now(self) -> float:
        """The fleet's time."""
        return (self._clock() - self._began) / self._scale

    def _advance(self) -> None:
        for done in self._pacer.advance(self._now()):
            if done.key in self._out:
                self._due.add(done.key)

    def _enter(self, level: int, job: int) -> None:
        """At the first tile of a level the servers' own work begins."""
        if level == self._level:
            return
        self._level = level
        work = self._prices.servers(job)
        self._server_rows = tuple(each.row for each in work)
        for each in work:
            self._pacer.remove(each.row)  # the level before has ended, whatever was left of it
            self._pacer.add(each.row, None, [each.phase], each.share, self._now())

    def _ready(self) -> Event | None:
        """An event that is due."""
        if self._events:
            event = self._events.popleft()
            return self._forget(self._gone(event) if isinstance(event, Lost) else event)
        waiting = len(self._out) == 1 and any(self._pacer.busy(row) for row in self._server_rows)
        for key in self._due:
            if key in self._computed and not waiting:
                return self._forget(self._computed[key])
        return None

    def _gone(self, event: Lost) -> Lost:
        """Devices are played no longer, and owe what they had not sent yet, whether it was computed here or not."""
        for device in event.devices:
            self._pacer.remove(device)
        told = {(task.job, task.tile) for task in event.tasks}
        unsent = [task for key, task in self._out.items() if task.device in event.devices and key not in told]
        return replace(event, tasks=(*event.tasks, *unsent))

    def _forget(self, event: Event) -> Event:
        """Nothing more is expected of an event's tasks."""
        tasks = event.tasks if isinstance(event, Lost) else () if isinstance(event, Joined) else (event.task,)
        for task in tasks:
            key = (task.job, task.tile)
            self._out.pop(key, None)
            self._computed.pop(key, None)
            self._due.discard(key)
        return event
