"""The engine of several machines: a Ray actor for each device identity, operands and results in Ray's object store.

A device is where its name is offered: the node that was started with the custom resource of that name (``ray start
--resources='{"phone-1": 1}'``) gets the actor, and holds it alone. A piece of an operand is put into the store once for all
tiles that read it, and travels once to each node however many devices are there. A device whose node is not in the cluster
counts as lost until it is; the loss of a node or process is heard from Ray.

Ray is an extra of the installation and is imported when an engine starts.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.execution.engines.base import Event, Failed, Finished, Joined, Lost, Task, without_job
from cleave_plan.execution.engines.pieces import apart, pieces_of, result_of, together
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box

GATHERING_S = 30.0
"""Seconds that :meth:`RayEngine.start` waits for devices; those that come later join."""

_LONGEST_WAIT_S = 3600.0


class RayDevice:
    """What runs on a node: it computes tiles from their pieces, one after another."""

    def ready(self) -> tuple[str, str]:
        """The version that is installed there, and the node's identity."""
        import ray

        return version("cleave-plan"), str(ray.get_runtime_context().get_node_id())

    def compute(self, work: Work, box: Box, form: Any, *arrays: Array) -> tuple[Array, float]:
        """The tile's result, and the seconds that it took."""
        begin = time.perf_counter()
        result = result_of(work, together(form, arrays), box)
        return result, time.perf_counter() - begin


@dataclass(slots=True, kw_only=True, eq=False)
class _Member:
    """A device identity: its actor, the call that says when it is there, and the tiles that it has not answered."""

    name: str
    actor: Any
    ready: Any
    node: str = ""
    here: bool = False
    out: dict[Any, Task] = field(default_factory=dict)
    given_up: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """An open job: ``sizes`` are bytes down by the tile's call."""

    work: Work
    operands: tuple[Array | None, ...]
    sizes: dict[Any, int] = field(default_factory=dict)


class RayEngine:
    """Tiles on the nodes of a Ray cluster: the one at ``address``, or the one that Ray finds by itself (``RAY_ADDRESS``, a node
    on this machine). It leaves a cluster as it was, and a program that has connected to one before keeps its connection.
    """

    def __init__(self, address: str | None = None, *, gathering_s: float = GATHERING_S) -> None:
        self._address, self._gathering_s = address or "auto", gathering_s
        self._ray: Any = None
        self._connected = False
        self._members: dict[str, _Member] = {}
        self._jobs: dict[int, _Job] = {}
        self._put: dict[tuple[object, ...], tuple[Array, Any]] = {}
        self._sent: set[tuple[Any, str]] = set()
        self._events: deque[Event] = deque()

    def start(self, load: Mapping[str, float]) -> None:
        """Connect, and ask for an actor for every device; those that do not come within the gathering time are lost for now.

        Raises UsageError without the extra, ExecutionError when there is no cluster, no device comes, or a node has
        another version.
        """
        self._ray = _import_ray()
        if not self._ray.is_initialized():
            self._connect()
        for name in load:
            self._members[name] = self._ask(name)
        deadline = time.monotonic() + self._gathering_s
        while missing := [member for member in self._members.values() if not member.here]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            done, _ = self._ray.wait([member.ready for member in missing], num_returns=1, timeout=left)
            self._welcome([member for member in missing if member.ready in done])
        if len(missing) == len(self._members):
            offered = sorted(name for name in self._ray.cluster_resources() if ":" not in name)
            raise ExecutionError(
                f"none of the plan's {len(missing)} devices is in the cluster", where=f"Ray cluster at {self._address}",
                expected=f"nodes that offer resources called {', '.join(list(load)[:5])} (offered: {', '.join(offered)})",
                remedy="start a node with `ray start --address=HOST:6379 --resources='{\"NAME\": 1}'`",
            )  # fmt: skip
        for member in missing:
            where = "no node of the cluster"
            self._events.append(Lost(devices=(member.name,), tasks=(), where=where, reason="was not there at the start"))

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that are here, and those whose loss has not been told."""
        untold = {name for event in self._events if isinstance(event, Lost) for name in event.devices}
        return tuple(name for name, member in self._members.items() if member.here or name in untold)

    @property
    def processes(self) -> tuple[int, ...]:
        """None: devices are elsewhere."""
        return ()

    def join(self, devices: Sequence[str]) -> None:
        """Ask for devices that are not known, or were given up."""
        for name in devices:
            member = self._members.get(name)
            if member is None or member.given_up:
                self._members[name] = self._ask(name)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An ordinary array: pieces are copied into the object store when tiles are sent."""
        return np.empty(shape, numpy_dtype(dtype))

    def share(self, array: Array) -> Array:
        """The array itself, for the same reason."""
        return array

    def open(self, job: int, work: Work, operands: Sequence[Array | None]) -> Array:
        """Keep the operands at hand; nothing travels before a tile needs it."""
        self._jobs[job] = _Job(work=work, operands=tuple(operands))
        return self.empty(work.whole_shape, work.out_dtype)

    def send(self, *tasks: Task) -> None:
        """Put those pieces of the tiles that are not in the store yet, and call their devices."""
        for task in tasks:
            self._call(task)

    def _call(self, task: Task) -> None:
        member, job = self._members[task.device], self._jobs[task.job]
        if not member.here:
            self._owe(task)
            return
        form, arrays = apart(pieces_of(job.work, job.operands, task.box))
        stored = [self._stored(array) for array in arrays]
        call = member.actor.compute.remote(job.work, task.box, form, *stored)
        member.out[call] = task
        job.sizes[call] = self._travels(member.node, arrays, stored)

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The next event."""
        deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        while not self._events:
            calls = {call: member for member in self._members.values() for call in member.out}
            waiting = [member.ready for member in self._members.values() if not member.here and not member.given_up]
            if not calls and not waiting:
                if timeout_s is None:
                    raise ExecutionError("no device is left to answer", where=f"Ray cluster at {self._address}")
                time.sleep(max(0.0, deadline - time.monotonic()))
                return None
            patience = min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT_S)
            done, _ = self._ray.wait([*calls, *waiting], num_returns=1, timeout=patience)
            if not done and time.monotonic() >= deadline:
                return None
            for each in done:
                if each in calls:
                    self._answered(calls[each], each)
            came = [member for member in self._members.values() if not member.here and member.ready in done]
            if names := self._welcome(came):
                self._events.append(Joined(devices=names))
        return self._events.popleft()

    def drop(self, device: str, reason: str) -> None:
        """End the device's actor; what it owes comes back with its loss."""
        member = self._members.get(device)
        if member is not None and not member.given_up:
            member.given_up = reason
            self._ray.kill(member.actor)
            if member.here:
                self._lose(member, reason)

    def close(self, job: int) -> None:
        """Let go of the job's pieces; calls that are still out are cancelled or forgotten."""
        del self._jobs[job]
        self._events = without_job(self._events, job)
        for member in self._members.values():
            for call in [call for call, task in member.out.items() if task.job == job]:
                self._ray.cancel(call)
                del member.out[call]
        if not self._jobs:
            self._put.clear()
            self._sent.clear()

    def stop(self) -> None:
        """End the actors, and the connection if this engine made it."""
        if self._ray is None:
            return
        for member in self._members.values():
            if not member.given_up:
                self._ray.kill(member.actor)
        self._members.clear()
        self._jobs.clear()
        self._put.clear()
        self._events.clear()
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def _connect(self) -> None:
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds, of which none is promised
            told = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExecutionError(
                f"no connection ({told})", where=f"Ray cluster at {self._address}", expected="a running Ray cluster",
                remedy="start one with `ray start --head`, or set RAY_ADDRESS; see docs/cluster.md",
            ) from error  # fmt: skip
        self._connected = True

    def _ask(self, name: str) -> _Member:
        """Ask for the actor of a device; it comes when a node offers its resource."""
        kind = self._ray.remote(RayDevice)
        actor = kind.options(num_cpus=0, resources={name: 1}, max_restarts=0, max_task_retries=0).remote()
        return _Member(name=name, actor=actor, ready=actor.ready.remote())

    def _welcome(self, members: Sequence[_Member]) -> tuple[str, ...]:
        """Take in members whose ready call has an answer; the names of those that are here."""
        names = []
        for member in members:
            try:
                theirs, node = self._ray.get(member.ready)
            except self._ray.exceptions.RayError as error:  # it was lost before it was there: ask again
                if member.given_up:
                    continue
                if not isinstance(error, self._ray.exceptions.RayActorError):
                    raise ExecutionError(
                        f"it cannot be made ready ({_last_line(error)})", where=f"device {member.name}",
                        remedy="install cleave-plan on its node, for the same Python version",
                    ) from error  # fmt: skip
                self._members[member.name] = self._ask(member.name)
                continue
            ours = version("cleave-plan")
            if theirs != ours:
                raise ExecutionError(
                    f"its node has cleave-plan {theirs}", where=f"device {member.name}", expected=f"version {ours}, as here"
                )
            member.here, member.node = True, node
            names.append(member.name)
        return tuple(names)

    def _stored(self, array: Array) -> Any:
        """The reference of a piece in the object store, put there once while jobs are open."""
        interface = array.__array_interface__
        key = (interface["data"][0], array.shape, array.strides, array.dtype.str, array.dtype.name)
        if key not in self._put:
            # The array is kept: its address names it for only as long as it lives.
            self._put[key] = (array, self._ray.put(np.ascontiguousarray(array)))
        return self._put[key][1]

    def _travels(self, node: str, arrays: Sequence[Array], stored: Sequence[Any]) -> int:
        """Bytes of the pieces that this node is not sent already."""
        fresh = {reference: array.nbytes for array, reference in zip(arrays, stored, strict=True)}
        size = sum(nbytes for reference, nbytes in fresh.items() if (reference, node) not in self._sent)
        self._sent.update((reference, node) for reference in fresh)
        return size

    def _answered(self, member: _Member, call: Any) -> None:
        """Make an event of a call that has ended."""
        task = member.out.get(call)
        if task is None:  # the member was lost with it
            return
        try:
            result, seconds = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            del member.out[call]
            self._events.append(Failed(task=task, reason=_last_line(error)))
        except self._ray.exceptions.RayError as error:
            self._lose(member, member.given_up or f"is gone ({type(error).__name__})")
        else:
            del member.out[call]
            down = self._jobs[task.job].sizes.pop(call)
            self._events.append(
                Finished(task=task, result=result, in_place=False, bytes_down=down, bytes_up=result.nbytes, seconds=seconds)
            )

    def _lose(self, member: _Member, reason: str) -> None:
        """Report a loss, and ask for the device again unless the server gave it up."""
        self._events.append(
            Lost(devices=(member.name,), tasks=tuple(member.out.values()), where=f"device {member.name}", reason=reason)
        )
        member.here = False
        member.out.clear()
        if not member.given_up:
            self._members[member.name] = self._ask(member.name)

    def _owe(self, task: Task) -> None:
        """A task for a device whose loss has not been told: it comes back with it."""
        for place, event in enumerate(self._events):
            if isinstance(event, Lost) and task.device in event.devices:
                tasks = (*event.tasks, task)
                self._events[place] = Lost(devices=event.devices, tasks=tasks, where=event.where, reason=event.reason)
                return
        raise KeyError(task.device)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "the ray engine needs Ray, which is not installed", where="--engine ray", remedy="pip install 'cleave-plan[ray]'"
        ) from error
    return ray


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
