"""An engine whose devices die, hang, slow down, lie or come late.

Only benchmarks build one: nothing in ``cleave_plan`` can be told to misbehave.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.base import Engine, Event, Finished, Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work

SLOWDOWN = 20
PERIOD_S = 0.02
ERROR = 1e-3


@dataclass(slots=True, kw_only=True)
class Fault:
    """``kind`` happens to ``device`` when ``after`` tiles have come back; ``at_s``: when it did, by time.perf_counter()."""

    kind: str
    device: str
    after: int
    at_s: float | None = None


class FaultyEngine:
    """``inner`` with the faults of one run after another, which happen to processes of ``local`` (default: ``inner`` itself).

    ``felt`` is told of each device that is killed, hangs or is slow, with how many times as long it takes from then on.
    """

    def __init__(
        self, inner: Engine, local: LocalEngine | None = None, *, felt: Callable[[str, float], None] = lambda device, factor: None
    ) -> None:
        assert local is not None or isinstance(inner, LocalEngine), "somebody's processes are disturbed"
        self._inner = inner
        self._local: LocalEngine = local if local is not None else inner  # type: ignore[assignment]
        self._felt = felt
        self._waiting: list[Fault] = []
        self._done = 0
        self._works: dict[int, Work] = {}
        self._liars: set[str] = set()
        self._sick: dict[str, int] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.seen: set[int] = set()
        self.shared: set[Path] = set()

    def arm(self, faults: Sequence[Fault]) -> None:
        """A run begins, with these faults."""
        self._waiting, self._done = sorted(faults, key=lambda fault: fault.after), 0

    def heal(self, devices: Sequence[str]) -> None:
        """A run is over: all of ``devices`` are made to be there, well and alone."""
        self.shared |= shared_files((os.getpid(), *self._local.processes))
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._stopping.clear()
        self._liars.clear()
        for device, process in self._sick.items():
            if device in self._local.devices and self._local.process_of(device) == process:
                self._local.drop(device, "was healed")
        self._sick.clear()
        for device in set(self._local.devices) - set(devices):
            self._local.drop(device, "came late, and is not of the plan")
        while self._local.collect(0.0) is not None:
            pass
        self.join([device for device in devices if device not in self._local.devices])
        deadline = time.monotonic() + 60
        while set(self._local.devices) != set(devices) and time.monotonic() < deadline:
            self._local.collect(0.2)

    def start(self, load: Mapping[str, float]) -> None:
        """Start the engine inside."""
        self._inner.start(load)
        self.seen |= set(self._inner.processes)

    def join(self, devices: Sequence[str]) -> None:
        """As inside."""
        for device in devices:
            self._local.join((device,))
        self.seen |= set(self._local.processes)

    @property
    def devices(self) -> tuple[str, ...]:
        """As inside."""
        return self._inner.devices

    @property
    def processes(self) -> tuple[int, ...]:
        """As inside."""
        return self._inner.processes

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """As inside."""
        return self._inner.empty(shape, dtype)

    def share(self, array: Array) -> Array:
        """As inside."""
        return self._inner.share(array)

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """As inside."""
        self._works[job] = work
        return self._inner.open(job, work, operands)

    def send(self, *tasks: Task) -> None:
        """As inside."""
        self._inner.send(*tasks)

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """As inside; tiles of liars are spoilt, and faults happen whose time has come."""
        event = self._inner.collect(timeout_s)
        self.seen |= set(self._inner.processes)
        if isinstance(event, Finished):
            self._done += 1
            if event.task.device in self._liars:
                self._spoil(event)
            self._strike()
        return event

    def drop(self, device: str, reason: str) -> None:
        """As inside."""
        self._inner.drop(device, reason)

    def close(self, job: int) -> None:
        """As inside."""
        self._inner.close(job)

    def stop(self) -> None:
        """As inside, when nobody is slowed down any more."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._inner.stop()

    def _strike(self) -> None:
        while self._waiting and self._waiting[0].after <= self._done:
            fault = self._waiting.pop(0)
            if fault.kind == "join":
                self.join((fault.device,))
            elif fault.device not in self._local.devices:
                continue  # it is lost already
            elif fault.kind == "corrupt":
                self._liars.add(fault.device)
            else:
                self._sick[fault.device] = self._local.process_of(fault.device)
                self._signal(fault.kind, self._sick[fault.device])
                self._felt(fault.device, SLOWDOWN if fault.kind == "slow" else math.inf)
            fault.at_s = time.perf_counter()

    def _signal(self, kind: str, process: int) -> None:
        if kind == "slow":
            thread = threading.Thread(target=self._slow_down, args=(process,), daemon=True)
            self._threads.append(thread)
            thread.start()
        else:
            os.kill(process, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)

    def _slow_down(self, process: int) -> None:
        """Let a process run for one part in SLOWDOWN of the time, as long as it is one of this engine's."""
        while not self._stopping.is_set() and process in self._local.processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                time.sleep(PERIOD_S * (1 - 1 / SLOWDOWN))
                os.kill(process, signal.SIGCONT)
                time.sleep(PERIOD_S / SLOWDOWN)

    def _spoil(self, event: Finished) -> None:
        work, box = self._works[event.task.job], event.task.box
        tile = work.fetch(event.result, box) if event.in_place else event.result
        wide = tile.astype(np.float64)
        place = tuple(0 for _ in tile.shape)
        tile[place] += max(ERROR * float(np.sqrt(np.mean(wide * wide))), 10 * float(np.spacing(np.abs(tile[place]))))


def shared_files(processes: Iterable[int]) -> set[Path]:
    """The named files of shared memory that ``processes`` have open or mapped; one that has just ended has none."""
    found = set()
    for process in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
            found |= {line.split(maxsplit=5)[-1] for line in lines}
            found |= {str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir()}
    return {Path(path) for path in found if path.startswith("/dev/shm/")}


def add_campaign(parser: argparse.ArgumentParser, *, runs: int) -> None:
    """The options that say which seeds of a campaign are run, by default so many, over how many devices."""
    parser.add_argument("--runs", type=int, default=runs, metavar="N", help=f"runs, of as many seeds (default: {runs})")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="first seed (default: 0)")
    parser.add_argument("--devices", type=int, default=8, metavar="N", help="devices, each a process (default: 8)")


def seeds_of(options: argparse.Namespace) -> range:
    """The seeds that the options of :func:`add_campaign` ask for."""
    return range(options.first_seed, options.first_seed + options.runs)
