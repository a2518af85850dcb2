"""An engine whose devices are hosts behind shaped links; tiles are streamed as the cost model says that devices work.

A device has one tile at a time. Its tile goes down in parts: first the operand that stays, then the other one piece by piece,
each followed up by its result (:mod:`cleave_plan.cost.tile`, executed cost). What is lost stays lost: this engine is for
measuring, and a link that breaks ends the measurement.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Flag
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.shaped.wire import Answer, Part, receive, send, tls
from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.base import Event, Finished, Lost, Task
from cleave_plan.execution.engines.pieces import apart, pieces_of
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.chain import ChainPieces, ChainProduct, Work
from cleave_plan.kernels.tile import Box

PARTS = 20
"""Parts of a tile at the most: so many that filling and emptying the pipeline is a small share of its time."""

PART_BYTES = 32_000
"""What a part should move at the least: smaller ones cost more than they gain."""

Kept = Callable[[Task], int]
"""Which operand of a tile stays on its device: 0 is A, 1 is B, 2 is the result."""


def parts_of(work: Work, box: Box, kept: int) -> list[Box]:
    """The tile cut along what streams by: columns where A stays, rows where B does, the inner axis where the result does."""
    if isinstance(work, ChainProduct):
        items = range(box.batch_start, box.batch_stop)
        each = max(1, _worthwhile(work, box) // len(items))
        return [
            box._replace(batch_start=item, batch_stop=item + 1, m_start=low, m_stop=high)
            for item in items
            for low, high in _ranges(box.m_start, box.m_stop, each)
        ]
    axis = ("n", "m", "k")[kept]
    if work.window is not None:
        axis = "m"  # an inner axis of a convolution is never cut, and rows are what its regions are made of
    low, high = getattr(box, f"{axis}_start"), getattr(box, f"{axis}_stop")
    return [box._replace(**{f"{axis}_start": a, f"{axis}_stop": b}) for a, b in _ranges(low, high, _worthwhile(work, box))]


def _worthwhile(work: Work, box: Box) -> int:
    """How many parts, judged by the bytes that stream by or come back: those of the result, and of a square tile's operand."""
    size = work.result_bytes(box)
    if not isinstance(work, ChainProduct):
        rows, columns, inner = (stop - start for start, stop in (box[0:2], box[2:4], box[4:6]))
        size += 4 * inner * max(rows, columns)
    return min(PARTS, max(1, size // PART_BYTES))


def _ranges(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    """The range in ``parts``, small ones first and last: what comes before the first result, and after the last operand, is idle
    time of one of the link's directions."""
    count = min(parts, stop - start)
    weights = np.minimum(np.minimum(np.arange(count) + 1, np.arange(count)[::-1] + 1), 4)
    # Every part has a row at least: what is left after one each is shared out by weight.
    edges = np.floor((stop - start - count) * np.cumsum(weights) / weights.sum()).astype(int) + np.arange(count) + 1
    yield from pairwise([start, *(start + edges).tolist()])


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    work: Work
    operands: tuple[Array | None, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class _Host:
    """A device: its lines, the tasks that wait for it, and the tile that it works on."""

    name: str
    down: socket.socket
    up: socket.socket
    tasks: Queue[Task | None] = field(default_factory=Queue)
    task: Task | None = None
    result: Array = field(default_factory=lambda: np.empty(0))
    whole: bool = False
    idle: Flag = field(default_factory=Flag)
    sent: int = 0
    known: dict[bytes, int] = field(default_factory=dict)


class ShapedEngine:
    """Devices by name at (address, port); ``kept`` says how each tile streams. ``delay_s`` by device are not used but told."""

    def __init__(self, places: Mapping[str, tuple[str, int]], certificate: Path, key: Path, kept: Kept) -> None:
        self._places, self._tls, self._kept = places, tls(certificate, key, server=False), kept
        self._hosts: dict[str, _Host] = {}
        self._jobs: dict[int, _Job] = {}
        self._events: Queue[Event] = Queue()
        self._stopped = False

    def start(self, load: Mapping[str, float]) -> None:
        """Connect to every device that has something to do."""
        for name in load:
            host = _Host(name=name, down=self._line(name), up=self._line(name))
            host.idle.set()
            self._hosts[name] = host
            for action in (self._feed, self._listen):
                Thread(target=action, args=(host,), daemon=True).start()

    def _line(self, name: str) -> socket.socket:
        address, port = self._places[name]
        plain = socket.create_connection((address, port), timeout=30)
        plain.settimeout(None)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._tls.wrap_socket(plain, server_hostname=address)

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that are connected."""
        return tuple(self._hosts)

    @property
    def processes(self) -> tuple[int, ...]:
        """None: devices are other hosts."""
        return ()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An ordinary array."""
        return np.empty(shape, numpy_dtype(dtype))

    def share(self, array: Array) -> Array:
        """The array itself."""
        return array

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """Keep the operands at hand."""
        self._jobs[job] = _Job(work=work, operands=tuple(operands))
        return self.empty(work.whole_shape, work.out_dtype)

    def send(self, *tasks: Task) -> None:
        """Queue tiles for their devices."""
        for task in tasks:
            self._hosts[task.device].tasks.put(task)

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The next event."""
        try:
            return self._events.get(timeout=timeout_s) if timeout_s != 0 else self._events.get_nowait()
        except Empty:
            return None

    def drop(self, device: str, reason: str) -> None:
        """End the device's lines; it is reported lost."""
        self._hosts[device].down.close()

    def close(self, job: int) -> None:
        """Forget the operands."""
        del self._jobs[job]

    def stop(self) -> None:
        """End all lines."""
        self._stopped = True
        for host in self._hosts.values():
            host.tasks.put(None)
            for line in (host.down, host.up):
                line.close()
        self._hosts.clear()

    def _feed(self, host: _Host) -> None:
        """Send one tile after another, each when the one before has come back."""
        try:
            while (task := host.tasks.get()) is not None:
                host.idle.wait()
                host.idle.clear()
                self._stream(host, task)
        except OSError as error:
            self._lose(host, f"its link broke ({error})")

    def _stream(self, host: _Host, task: Task) -> None:
        job = self._jobs[task.job]
        kept = self._kept(task)
        added = kept == 2 and not isinstance(job.work, ChainProduct) and job.work.window is None
        boxes = parts_of(job.work, task.box, kept)
        host.task, host.sent, host.whole = task, 0, added
        host.result = np.empty(job.work.result_shape(task.box), numpy_dtype(job.work.result_dtype(task.box)))
        slots: dict[tuple[object, ...], int] = {}
        before: Any = None
        for place, box in enumerate(boxes):
            pieces = pieces_of(job.work, job.operands, box)
            form, arrays = apart(pieces)
            numbers, fresh = [], {}
            for array in arrays:
                number, is_new = self._number(host, slots, array, constant=_is_constant(pieces, array))
                numbers.append(number)
                if is_new:
                    fresh[number] = array
                    host.sent += array.nbytes
            about = None if form == before else (job.work, form)
            part = Part(task.tile, about, tuple(box), tuple(numbers), tuple(fresh), place == len(boxes) - 1, added)
            send(host.down, tuple(part), list(fresh.values()))
            before = form

    @staticmethod
    def _number(host: _Host, slots: dict[tuple[object, ...], int], array: Array, *, constant: bool) -> tuple[int, bool]:
        """The number of an array on the device, and whether it has to be sent; what never changes is sent once for ever."""
        if constant:
            mark = sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).digest()
            is_new = mark not in host.known
            return host.known.setdefault(mark, -1 - len(host.known)), is_new
        interface = array.__array_interface__
        key = (interface["data"][0], array.shape, array.strides)
        is_new = key not in slots
        return slots.setdefault(key, len(slots)), is_new

    def _listen(self, host: _Host) -> None:
        """Put results together as they come."""
        try:
            while (message := receive(host.up)) is not None:
                header, arrays = message
                self._take(host, Answer(*header), arrays)
            self._lose(host, "its link ended")
        except Exception as error:  # whatever it is, the run must not wait for this device
            self._lose(host, f"it was not understood ({error})")

    def _take(self, host: _Host, answer: Answer, arrays: Sequence[Array]) -> None:
        task = host.task
        assert task is not None and answer.tile == task.tile  # noqa: PT018
        if host.whole:
            host.result[...] = arrays[0]
        else:
            whole, part = task.box, Box(*answer.box)
            columns = slice(None) if host.result.shape[2] != whole.n_stop - whole.n_start else _within(part, whole, "n")
            host.result[_within(part, whole, "batch"), _within(part, whole, "m"), columns] = arrays[0]
        if answer.last:
            host.task = None
            done = Finished(
                task=task, result=host.result, in_place=False, bytes_down=host.sent, bytes_up=host.result.nbytes,
                seconds=answer.seconds,
            )  # fmt: skip
            host.idle.set()
            self._events.put(done)

    def _lose(self, host: _Host, reason: str) -> None:
        if self._stopped or self._hosts.pop(host.name, None) is None:
            return
        owed = [] if host.task is None else [host.task]
        while not host.tasks.empty():
            waiting = host.tasks.get()
            owed += [] if waiting is None else [waiting]
        where = "{}:{}".format(*self._places[host.name])
        self._events.put(Lost(devices=(host.name,), tasks=tuple(owed), where=where, reason=reason))


def _within(part: Box, whole: Box, axis: str) -> slice:
    """Where a part lies in the tile, along one axis."""
    start: int = getattr(whole, f"{axis}_start")
    return slice(getattr(part, f"{axis}_start") - start, getattr(part, f"{axis}_stop") - start)


def _is_constant(pieces: Any, array: Array) -> bool:
    """Whether an array is a side of a chain that is the same in every run: it is on the device before the run."""
    if not isinstance(pieces, ChainPieces):
        return False
    return any(side is array and constant for side, constant in zip(pieces.sides, pieces.constant, strict=True))
