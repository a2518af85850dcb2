"""The engine of one machine: worker processes that play device identities, and memory that they share with the server.

Operands lie in shared memory once; workers read tiles where they are and write results where they belong. Each worker has
some tiles in hand, so that it never waits for the server, and lives until the engine stops, over any number of runs.

Workers are fresh interpreters rather than forks (BLAS and onnxruntime have threads) and do not import the caller's main
module, so a run can be started from a script, a notebook or standard input alike. Each has its own process group: Ctrl-C
reaches the server only, which ends them. A worker that dies closes its line, which is seen at once; one that is stopped
or stuck misses its heartbeats; one whose server dies ends by itself.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Mapping, Sequence

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.execution.cores import usable_cores
from cleave_plan.execution.engines import wire
from cleave_plan.execution.engines.base import Event, Failed, Finished, Joined, Lost, Task, without_job
from cleave_plan.execution.engines.process import WorkerProcess, share_out
from cleave_plan.execution.engines.roster import OpenJob, Worker
from cleave_plan.execution.engines.shared import SharedArrays
from cleave_plan.execution.worker import BEATS, START
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.onnx_io.conv_kernel import Convolution, require_convolution, takes

POLL_S = 0.5
"""Longest wait between two looks at the heartbeats."""

WINDOW = 16
"""Tiles that a worker has in hand: enough to stay busy, few enough that its line never fills up."""

START_LIMIT_S = 60.0
"""Seconds that a worker may take to start before its silence counts."""


class LocalEngine:
    """Runs tiles in ``workers`` processes (default: one per core, never more than devices).

    A worker without a heartbeat for ``hang_limit_s`` seconds, while its answer is waited for, counts as lost.
    ``start`` are the interpreter's arguments that begin a worker (tests begin worse ones). ``convolution``: what computes
    tiles of convolutions where it can; NumPy computes all others.
    """

    def __init__(
        self, workers: int | None = None, *, hang_limit_s: float = 60.0, start: Sequence[str] = START,
        convolution: str = Convolution.NUMPY,
    ) -> None:  # fmt: skip
        self.convolution = require_convolution(convolution)
        if workers is not None and workers < 1:
            raise UsageError(f"{workers} workers asked for", expected="1 or more")
        self.workers = workers or usable_cores()
        self._hang_limit_s = hang_limit_s
        self._start = tuple(start)
        self._workers: list[Worker] = []
        self._by_device: dict[str, Worker] = {}
        self._started = 0
        self._jobs: dict[int, OpenJob] = {}
        self._events: deque[Event] = deque()
        self._checked_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._shared = SharedArrays()
        self._beats = self._shared.empty(BEATS.shape, BEATS.dtype)
        self._beats[:] = 0

    def start(self, load: Mapping[str, float], groups: Sequence[tuple[str, ...]] | None = None) -> None:
        """Start the workers, which play ``groups`` of devices; without any, their loads are as even as whole devices allow."""
        for devices in groups or share_out(load, min(self.workers, len(load))):
            self._spawn(devices, late=False)

    def join(self, devices: Sequence[str]) -> None:
        """Let devices come late, on one new worker; ``collect`` says when they are there. Those on their way are left out."""
        coming = {name for worker in self._workers if worker.late for name in worker.devices}
        if fresh := tuple(name for name in devices if name not in coming):
            self._spawn(fresh, late=True)

    @property
    def devices(self) -> tuple[str, ...]:
        """Identities on workers that live, as far as it is known."""
        return tuple(self._by_device)

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def process_of(self, device: str) -> int:
        """The process id of the worker that plays ``device``; raises KeyError for one that is not there."""
        return self._by_device[device].process.pid

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An array in shared memory."""
        return self._shared.empty(shape, dtype)

    @property
    def memory(self) -> SharedArrays:
        """The memory that workers read."""
        return self._shared

    def share(self, array: Array) -> Array:
        """The numbers of ``array`` in shared memory; a copy of a read-only array is a constant for as long as the engine runs."""
        return self._shared.share(array)

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """Find or copy the operands into shared memory, and make room for the whole result there."""
        placed = [None if array is None else self._shared.place(array) for array in operands]
        whole = self._shared.empty(work.whole_shape, work.out_dtype)
        blocks = tuple(None if array is None else self._shared.block(array) for array in placed)
        prepared = self.convolution == Convolution.ONNXRUNTIME and takes(work) and self._are_constant(placed[1:2])
        opening = wire.opening(wire.Job(work, job, blocks, self._shared.block(whole), prepared))
        arrays = tuple(array for array in placed if array is not None)
        self._jobs[job] = OpenJob(work=work, opening=opening, whole=whole, arrays=arrays)
        return whole

    def send(self, *tasks: Task) -> None:
        """Queue tiles for their devices' workers; each worker computes those of a convolution that make up a box as one."""
        shares: dict[tuple[Worker, int], list[Task]] = {}
        for task in tasks:
            shares.setdefault((self._by_device[task.device], task.job), []).append(task)
        for (worker, job), share in shares.items():
            self._jobs[job].out += len(share)
            worker.waiting.extend(self._jobs[job].groups(share))
        for worker in dict.fromkeys(worker for worker, _ in shares):
            self._feed(worker)

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The next event; a worker's death is one within milliseconds, a missing heartbeat within a second of its limit."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._events:
            left = POLL_S if deadline is None else min(POLL_S, max(0.0, deadline - time.monotonic()))
            for key, _ in self._selector.select(left):
                self._receive(key.data)
            self._check_beats()
            if not self._events and deadline is not None and time.monotonic() >= deadline:
                return None
        return self._events.popleft()

    def drop(self, device: str, reason: str) -> None:
        """End the worker that plays ``device``; other identities that it plays go on, with their tasks, on a new worker."""
        worker = self._by_device[device]
        others = tuple(name for name in worker.devices if name != device)
        owed = worker.unanswered
        worker.devices = (device,)
        worker.in_hand = {(task.job, task.tile): task for task in owed if task.device == device}
        worker.waiting.clear()
        self._end(worker, reason)
        if others:
            successor = self._spawn(others, late=False)
            for task in owed:
                if task.device != device and self._is_open(task.job):
                    successor.waiting.append((task,))
                elif task.device != device:
                    self._settle(task.job, 1)
            self._feed(successor)

    def close(self, job: int) -> None:
        """Forget a GEMM; its memory is free when no worker has a tile of it in hand."""
        for worker in self._workers:
            self._jobs[job].out -= worker.forget(job)
        self._jobs[job].closed = True
        self._events = without_job(self._events, job)
        self._settle(job, 0)
        if all(other.closed for other in self._jobs.values()):
            self._shared.forget()

    def stop(self) -> None:
        """Close the lines, on which idle workers leave, and kill the others."""
        for worker in self._workers:
            self._selector.unregister(worker.process.line)
            worker.process.line.close()
        deadline = time.monotonic() + POLL_S
        for worker in self._workers:
            worker.process.end(0.0 if worker.in_hand else max(0.0, deadline - time.monotonic()))
        self._workers.clear()
        self._by_device.clear()
        self._jobs.clear()
        self._events.clear()
        self._selector.close()
        self._shared.close()

    def _spawn(self, devices: tuple[str, ...], *, late: bool) -> Worker:
        if self._started == BEATS.shape[0]:
            raise ExecutionError(f"{self._started} workers have been started in this run", expected="fewer that are lost")
        process = WorkerProcess.spawn(self._start, self._started, self._shared.descriptor)
        worker = Worker(process=process, devices=devices, late=late)
        self._started += 1
        self._workers.append(worker)
        self._selector.register(process.line, selectors.EVENT_READ, worker)
        if not late:
            self._by_device |= dict.fromkeys(devices, worker)
        return worker

    def _are_constant(self, arrays: Sequence[Array | None]) -> bool:
        return all(array is not None and self._shared.is_constant(array) for array in arrays)

    def _feed(self, worker: Worker) -> None:
        """Hand waiting tiles over, up to the window, and with them what else the worker has to know: it would be woken for that
        alone."""
        parts: list[bytes] = []
        while worker.waiting and len(worker.in_hand) < WINDOW:
            group = worker.waiting.popleft()
            number, job = group[0].job, self._jobs[group[0].job]
            worker.in_hand |= {(number, task.tile): task for task in group}
            if number not in worker.known:
                worker.known.add(number)
                parts.append(job.opening)
            tiles = tuple((task.tile, task.box) for task in group)
            parts.append(wire.tiles(wire.Order(number, self._place_of_result(job, group[0]), tiles)))
        if parts:
            self._tell(worker, b"".join([*worker.closings, *parts]))
            worker.closings.clear()

    def _tell(self, worker: Worker, message: bytes) -> None:
        try:
            worker.process.line.sendall(message)
        except OSError:  # it is gone, or has read nothing for seconds: its line says so when it is looked at
            worker.process.kill()

    def _place_of_result(self, job: OpenJob, task: Task) -> int:
        work, box = job.work, task.box
        if job.goes_in_place(task):
            return wire.IN_PLACE
        result = self._shared.empty(work.result_shape(box), work.result_dtype(box))
        offset = self._shared.block(result).offset
        job.apart[task.tile] = (offset, result)
        return offset

    def _receive(self, worker: Worker) -> None:
        try:
            data = worker.process.receive()
            answers = worker.answers.feed(data)
            for answer in answers:
                self._take(worker, answer)
        except wire.BrokenLineError as error:
            self._end(worker, f"sent what is no answer ({error}) and was ended")
            return
        if not data:
            self._end(worker, "")
        elif worker.in_hand or worker.waiting:
            self._feed(worker)

    def _take(self, worker: Worker, answer: wire.Answer) -> None:
        if answer.job == wire.HELLO:
            worker.ready = True
            if worker.late:
                worker.late = False
                self._by_device |= dict.fromkeys(worker.devices, worker)
                self._events.append(Joined(devices=worker.devices))
            return
        task = worker.in_hand.pop((answer.job, answer.tile), None)
        if task is None:
            raise wire.BrokenLineError(f"tile {answer.tile} of job {answer.job}, which it was not asked for")
        job = self._jobs[task.job]
        if not job.closed:
            if answer.fault:
                self._events.append(Failed(task=task, reason=answer.fault.strip().splitlines()[-1]))
            else:
                own = job.apart.get(task.tile)
                self._events.append(
                    Finished(
                        task=task, result=job.whole if own is None else own[1], in_place=own is None,
                        bytes_down=answer.bytes_down, bytes_up=answer.bytes_up, seconds=answer.seconds,
                    )
                )  # fmt: skip
        self._settle(task.job, 1)

    def _settle(self, number: int, answered: int) -> None:
        """Count answers of a job, and let go of one that is closed and has none to come."""
        job = self._jobs[number]
        job.out -= answered
        if job.closed and not job.out:
            del self._jobs[number]
            for worker in self._workers:
                if number in worker.known:
                    worker.known.discard(number)
                    worker.closings.append(wire.closing(number))

    def _check_beats(self) -> None:
        """Silence is counted in looks rather than by the clock, so that a suspended machine does not accuse its workers."""
        now = time.monotonic()
        if now - self._checked_at < POLL_S / 2:
            return
        elapsed, self._checked_at = min(now - self._checked_at, 2 * POLL_S), now
        for worker in [worker for worker in self._workers if worker.in_hand]:
            beat = int(self._beats[worker.process.place])
            worker.silent_s = 0.0 if beat != worker.last_beat else worker.silent_s + elapsed
            worker.last_beat = beat
            if worker.silent_s > self._hang_limit_s + (0.0 if worker.ready else START_LIMIT_S):
                self._end(worker, f"has shown no sign of life for {worker.silent_s:.0f} s and was ended")

    def _end(self, worker: Worker, reason: str) -> None:
        """Make sure that a worker is gone, and report its devices with what they owe."""
        self._selector.unregister(worker.process.line)
        worker.process.line.close()
        how = worker.process.end(0.0 if reason else POLL_S)
        self._workers.remove(worker)
        for device in worker.devices:
            if self._by_device.get(device) is worker:
                del self._by_device[device]
        tasks = tuple(task for task in worker.unanswered if self._is_open(task.job))
        label = worker.process.label(worker.devices)
        self._events.append(Lost(devices=worker.devices, tasks=tasks, where=label, reason=reason or how))
        for task in worker.unanswered:
            self._settle(task.job, 1)

    def _is_open(self, job: int) -> bool:
        return job in self._jobs and not self._jobs[job].closed
