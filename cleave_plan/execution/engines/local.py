"""The engine of one machine: worker processes that hold device identities, and memory that they share with the server.

Workers are fresh interpreters rather than forks (BLAS and onnxruntime have threads) and do not import the caller's main
module, so a run can be started from a script, a notebook or standard input alike. Each has its own process group: Ctrl-C
reaches the server only, which ends them. A worker that dies closes its line, which is seen at once; one that is stopped
or stuck misses its heartbeats; one whose server dies ends by itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.execution.engines.base import Finished, Task
from cleave_plan.execution.engines.memory import Arena, Block
from cleave_plan.execution.worker import START, Answer, Order
from cleave_plan.kernels.arrays import Array, dtype_of_array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box

POLL_S = 0.5
"""Longest wait between two looks at the heartbeats."""

WINDOW = 16
"""Tiles that a worker has in hand: enough to stay busy, few enough that its line never fills up."""

_THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_THREAD_LIMITS, "1")
"""A worker is one core: its BLAS must not start threads of its own."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    place: int
    process: subprocess.Popen[bytes]
    line: Connection
    devices: tuple[str, ...]
    waiting: deque[Task] = field(default_factory=deque)
    in_hand: dict[tuple[int, int], Task] = field(default_factory=dict)
    last_beat: int = 0
    silent_s: float = 0.0

    @property
    def label(self) -> str:
        return f"worker {self.place} (process {self.process.pid}) with {_listing(self.devices)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    work: Work
    operands: tuple[Block | None, ...]
    results: Mapping[int, Block]


class LocalEngine:
    """Runs tiles in ``workers`` processes (default: one per core, never more than devices).

    A worker without a heartbeat for ``hang_limit_s`` seconds, while its answer is waited for, counts as lost.
    """

    def __init__(self, workers: int | None = None, *, hang_limit_s: float = 60.0) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"{workers} workers asked for", expected="1 or more")
        self._limit = workers or usable_cores()
        self._hang_limit_s = hang_limit_s
        self._workers: list[_Worker] = []
        self._by_device: dict[str, _Worker] = {}
        self._jobs: dict[int, _Job] = {}
        self._placed: dict[tuple[object, ...], tuple[Array, Block]] = {}
        self._done: deque[Finished] = deque()
        self._lost: list[str] = []
        self._checked_at = 0.0
        self._arena, self._beats_arena = Arena(), Arena()

    def start(self, load: Mapping[str, float]) -> None:
        """Start the workers and share the device identities out, so that their loads are as even as whole devices allow."""
        if os.name != "posix":
            raise ExecutionError("the local engine needs a POSIX system", where=sys.platform, expected="Linux or macOS")
        groups = share_out(load, min(self._limit, len(load)))
        beats = self._beats_arena.allocate((max(1, len(groups)),), DType.INT64)
        self._beats = self._beats_arena.view(beats)
        for place, devices in enumerate(groups):
            worker = self._spawn(place, devices)
            self._workers.append(worker)
            self._by_device |= dict.fromkeys(devices, worker)

    def open(self, job: int, work: Work, operands: Sequence[Array | None], boxes: Mapping[int, Box]) -> None:
        """Copy the operands into shared memory, once for all GEMMs that are open together and read the same array."""
        self._jobs[job] = _Job(
            work=work, operands=tuple(None if array is None else self._place(array) for array in operands),
            results={
                tile: self._arena.allocate(work.result_shape(box), work.result_dtype(box)) for tile, box in boxes.items()
            },
        )  # fmt: skip

    def send(self, task: Task) -> None:
        """Queue a tile for its device's worker."""
        worker = self._by_device[task.device]
        worker.waiting.append(task)
        self._feed(worker)

    def collect(self) -> Finished:
        """The next finished tile; raises ExecutionError within a second of a worker's death."""
        while not self._done:
            busy = {worker.line: worker for worker in self._workers if worker.in_hand}
            for line in wait(list(busy), POLL_S):
                self._receive(busy[line])  # type: ignore[index]
            self._check_beats(busy.values())
        return self._done.popleft()

    def close(self, job: int) -> None:
        """Forget a GEMM; when none is left the shared memory is used afresh."""
        del self._jobs[job]
        if not self._jobs:
            self._placed.clear()
            self._arena.clear()

    def lost(self) -> tuple[str, ...]:
        """Identities on workers that are gone."""
        gone = [device for worker in self._workers if worker.process.poll() is not None for device in worker.devices]
        return tuple(dict.fromkeys([*self._lost, *gone]))

    def stop(self) -> None:
        """Close the lines, on which idle workers leave, and kill those that have not left at once."""
        for worker in self._workers:
            worker.line.close()
        deadline = time.monotonic() + POLL_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._placed.clear()
        self._done.clear()
        self._arena.close()
        self._beats_arena.close()
        self._workers, self._by_device = [], {}

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def _spawn(self, place: int, devices: tuple[str, ...]) -> _Worker:
        ours, theirs = socket.socketpair()
        inherited = (theirs.fileno(), self._arena.descriptor, self._beats_arena.descriptor)
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            process = subprocess.Popen(
                [sys.executable, *START, *map(str, (*inherited, place, os.getpid()))],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths}, pass_fds=inherited, process_group=0,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise ExecutionError(
                f"worker {place} cannot be started: {error.strerror}", where=sys.executable, remedy="run with fewer workers"
            ) from None
        finally:
            theirs.close()
        return _Worker(place=place, process=process, line=Connection(ours.detach()), devices=devices)

    def _place(self, array: Array) -> Block:
        interface = array.__array_interface__
        key = (interface["data"][0], array.shape, array.strides, array.dtype)
        if key not in self._placed:
            block = self._arena.allocate(array.shape, dtype_of_array(array))
            self._arena.view(block)[...] = array
            # The array is kept: its address names it for only as long as it lives.
            self._placed[key] = (array, block)
        return self._placed[key][1]

    def _feed(self, worker: _Worker) -> None:
        while worker.waiting and len(worker.in_hand) < WINDOW:
            task = worker.waiting.popleft()
            job = self._jobs[task.job]
            worker.in_hand[task.job, task.tile] = task
            try:
                worker.line.send(Order(task.job, task.tile, task.box, job.work, job.operands, job.results[task.tile]))
            except OSError:
                raise self._death(worker) from None

    def _receive(self, worker: _Worker) -> None:
        try:
            answer: Answer = worker.line.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        task = worker.in_hand.pop((answer.job, answer.tile))
        if answer.fault:
            raise ExecutionError(
                f"tile {task.tile} failed on {task.device}: {answer.fault.strip().splitlines()[-1]}", where=worker.label
            )
        result = self._arena.view(self._jobs[task.job].results[task.tile])
        self._done.append(
            Finished(task=task, result=result, bytes_down=answer.bytes_down, bytes_up=answer.bytes_up, seconds=answer.seconds)
        )
        self._feed(worker)

    def _check_beats(self, busy: Iterable[_Worker]) -> None:
        """Silence is counted in looks rather than by the clock, so that a suspended machine does not accuse its workers."""
        now = time.monotonic()
        elapsed, self._checked_at = min(now - self._checked_at, 2 * POLL_S), now
        for worker in busy:
            beat = int(self._beats[worker.place])
            worker.silent_s = 0.0 if beat != worker.last_beat else worker.silent_s + elapsed
            worker.last_beat = beat
            if worker.silent_s > self._hang_limit_s:
                worker.process.kill()
                self._lost.extend(worker.devices)
                raise ExecutionError(
                    f"it has shown no sign of life for {worker.silent_s:.0f} s and was ended", where=worker.label,
                    expected=f"a heartbeat every {self._hang_limit_s:.0f} s at least",
                    remedy="run again, with fewer workers if the machine is overloaded",
                )  # fmt: skip

    def _death(self, worker: _Worker) -> ExecutionError:
        try:
            code = worker.process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        self._lost.extend(worker.devices)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return ExecutionError(
            f"it {how} during the run", where=worker.label, expected="workers that live until the run is over",
            remedy="run again; if it happens again, look for what ends the process (the system log, when memory runs out)",
        )  # fmt: skip


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_out(load: Mapping[str, float], groups: int) -> list[tuple[str, ...]]:
    """``load``'s keys in ``groups`` groups of nearly even sums: the heaviest first, each to the lightest group so far."""
    shares: list[list[str]] = [[] for _ in range(groups)]
    sums = [0.0] * groups
    for name in sorted(load, key=lambda name: (-load[name], name)):
        lightest = min(range(groups), key=lambda place: (sums[place], len(shares[place])))
        shares[lightest].append(name)
        sums[lightest] += load[name]
    return [tuple(share) for share in shares]


def _listing(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return f"device{'s' if len(names) > 1 else ''} {shown}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
