"""What an engine is: it brings operands within reach of devices, sends them tiles, and says what became of each.

The server drives it::

    start(load)                      the device identities get ready
    open(job, work, operands)        per GEMM or chain; the job's number is new in the engine's life
        send(task, ...) ...          every tile, to the device that the server names; returns at once
        collect(timeout_s)           one event, or None when the time is over; as often as there is something to wait for
        drop(device, reason)         the server gives a device up (too slow, wrong numbers)
    join(devices)                more devices, at any time after start
    close(job)                       also while tiles of it are out
    stop()                           at the end, whatever happened

An engine never decides what is computed where, how long is too long, or what happens to a tile that failed: it says what it
sees, in events, and the server decides. What it promises:

- **Every task that was sent comes back exactly once** while its job is open: as :class:`Finished`, :class:`Failed`, or in the
  ``tasks`` of a :class:`Lost`. After ``close`` nothing more is heard of a job's tasks, though devices may still work on them.
- **A device that is gone is reported once**, by :class:`Lost`, with the tasks that were sent to it and are not answered. When
  that event is returned the device cannot write anything any more. Several identities that one process plays are lost
  together. A task may be sent to a device that is gone as long as its loss has not been returned: it comes back with it.
- **A device that comes late** is reported by :class:`Joined` once tasks can be sent to it.
- **Silence is an engine's business only where a device can be alive without working**: the local engine looks for heartbeats.
  Deadlines are the server's, with ``collect(timeout_s)`` and ``drop``.
- **Results**: ``open`` returns the array of the job's whole result. A tile that holds the whole of K may be written into it by
  its device (``Finished.in_place``); any other result is an array of its own, which the server places. A task with ``apart``
  is never written in place: so the server may ask a second device for a tile that the first still works on. A device that
  lost such a race may write its tile late, so that a result with a tile in doubt has to be copied before it is used;
  its memory is not given to anything else until that device has answered or is gone.
- **Memory**: arrays from ``empty`` lie where devices reach them without a copy, if the engine has such a place; so do their
  views. ``open`` recognises them and copies any other operand, once for all jobs that are open together. They live as long
  as they are referenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box


class Task(NamedTuple):
    """Tile number ``tile`` of the opened GEMM ``job``, for the device identity ``device``.

    Numbers tell tasks apart: a tile that is sent again gets a new one. ``apart``: its result must not be written in place.
    """

    job: int
    tile: int
    device: str
    box: Box
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A tile that is done: ``result`` has the shape ``work.result_shape(box)`` and is valid until its job is closed.

    ``in_place``: ``result`` is the job's whole result, in which the tile stands already (``work.fetch(result, box)`` shows
    it). ``bytes_down`` and ``bytes_up`` are what travelled (or, on one
    machine, what a link would have carried); ``seconds`` is the time that the device took.
    """

    task: Task
    result: Array
    in_place: bool
    bytes_down: int
    bytes_up: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A tile that its device could not compute though it lives: ``reason`` is what it says of it."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Devices that are gone, and ``tasks`` of open jobs that were sent to them and are not answered.

    ``where`` names what played them (a process, a node), ``reason`` is one clause on how it ended.
    """

    devices: tuple[str, ...]
    tasks: tuple[Task, ...]
    where: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Devices that were not there at the start, or were lost, and can be sent tasks from now on."""

    devices: tuple[str, ...]


Event = Finished | Failed | Lost | Joined


def without_job(events: Iterable[Event], job: int) -> deque[Event]:
    """The events that are still to be told when ``job`` is closed: none of its answers."""
    return deque(event for event in events if not isinstance(event, Finished | Failed) or event.task.job != job)


class Engine(Protocol):
    """A way to run tiles on devices; the module says what its methods promise.

    Methods raise ExecutionError when the engine itself cannot work (no memory, no process, no cluster), never because a
    device is gone.
    """

    def start(self, load: Mapping[str, float]) -> None:
        """Make the device identities ready; ``load`` gives each one's share of the work, in any unit."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Identities that tasks can be sent to: started or joined, and not reported lost."""

    def join(self, devices: Sequence[str]) -> None:
        """Let devices come late; returns at once, and ``collect`` says when they are there. Those that were asked before are not
        asked twice."""

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An array without values, for operands that are about to be made."""

    def share(self, array: Array) -> Array:
        """The same numbers in an array like those of :meth:`empty`: for operands of many jobs, as weights are."""

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """Bring canonical operands (in the order of ``work.run``) within reach; the array of the whole result, unfilled."""

    def send(self, *tasks: Task) -> None:
        """Hand tiles to their devices; returns at once. What is sent together may be computed together, where one process plays
        several devices. Raises KeyError for a device that is not in ``devices``; nothing is sent then."""

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None when there is none within ``timeout_s`` (None: wait for ever). 0 only looks."""

    def drop(self, device: str, reason: str) -> None:
        """Give a device up: it is ended, and reported lost by ``collect`` like one that ended by itself."""

    def close(self, job: int) -> None:
        """Let go of a GEMM's operands and results."""

    def stop(self) -> None:
        """End everything that was started; safe to call at any time, more than once."""

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids on this machine that play devices (for reports and tests); empty where there are none."""
