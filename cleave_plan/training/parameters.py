"""What a training run owns: parameters and running statistics, and the servers that hold their optimizer state and move them.

Values lie where workers reach them, so that a step reads what the step before it wrote without a copy; each range of a
parameter is written by its server alone. State that is lost is lost for good, so none of it is on devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod, sqrt

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError, InputFileError
from cleave_plan.execution.engines.shared import SharedArrays
from cleave_plan.kernels.arrays import Array
from cleave_plan.training.holding import MASTER, Part, master_type
from cleave_plan.training.optimizers import optimizer_of
from cleave_plan.training.orders import Answer, Kind, Memory, Order
from cleave_plan.training.ownership import Shard
from cleave_plan.training.servers import start_servers
from cleave_plan.training.settings import Settings

_CLIP_GUARD = 1e-6
"""Added to the norm before it divides, as PyTorch does."""


class Parameters:
    """The values of ``initial`` (parameters) and ``statistics``, on ``servers`` that have ``shards`` of them.

    The first server is this process, each other one a process of its own. ``room``: the memory that workers read (None: there
    is none; with several servers one is made). Raises ExecutionError when a server cannot be started.
    """

    def __init__(
        self,
        initial: Mapping[str, Array],
        statistics: Mapping[str, Array],
        shards: Sequence[Shard],
        settings: Settings,
        *,
        servers: Sequence[str],
        room: SharedArrays | None,
    ) -> None:
        self._settings = settings
        self._slots = optimizer_of(settings).slots
        self._made = SharedArrays() if room is None and len(servers) > 1 else None
        self._room = room if self._made is None else self._made
        self._apart = len(servers) > 1
        self._values = {name: self._reachable(np.array(array, order="C")) for name, array in initial.items()}
        self._statistics = {name: np.array(array) for name, array in statistics.items()}
        self.shards = tuple(shards)
        parts: dict[str, list[Part]] = {name: [] for name in servers}
        for shard in self.shards:
            parts[shard.server].append(Part(shard.parameter, self._values[shard.parameter].reshape(-1), shard.start, shard.stop))
        self._names = {name: [part.name for part in own] for name, own in parts.items()}
        self._servers = start_servers(parts, settings, self._room)
        self._memory = {name: answer.memory for name, answer in self._all(Order(kind=Kind.REPORT)).items()}

    @property
    def feeds(self) -> dict[str, Array]:
        """The inputs that a step reads them from: parameters and statistics by name."""
        return {**self._values, **self._statistics}

    @property
    def memory(self) -> Mapping[str, Memory]:
        """What each server holds, and the most that its process has had, as of the last step."""
        return self._memory

    @property
    def processes(self) -> Mapping[str, int | None]:
        """The process ids of the servers; None for the first, which this process plays."""
        return {server.name: server.process for server in self._servers}

    def keep_statistics(self, updated: Mapping[str, Array]) -> None:
        """Take in new running statistics."""
        for name, array in updated.items():
            self._statistics[name][...] = array

    def step(self, gradients: Mapping[str, Array], *, step: int, share: float, scale: float = 1.0) -> float:
        """One optimizer step, the ``step``-th from 1, down ``scale`` times ``gradients``; the norm of those before clipping.

        ``share``: what the schedule makes of the learning rates. Raises ExecutionError, with nothing changed, when the norm is
        not finite, and when a server is gone.
        """
        flat = {name: self._within_reach(np.ascontiguousarray(gradient).reshape(-1)) for name, gradient in gradients.items()}
        totals = self._squares(self._all(Order(kind=Kind.SQUARES, arrays=flat)))
        norm = scale * sqrt(sum(totals[name] for name in gradients))
        if not np.isfinite(norm):
            raise ExecutionError(
                "the gradients hold infinities or NaN", where=f"step {step}", expected="finite gradients",
                remedy="lower the learning rate, or clip the gradients (clip_norm)",
            )  # fmt: skip
        limit = self._settings.clip_norm
        factor = scale if limit is None else scale * min(1.0, limit / (norm + _CLIP_GUARD))
        done = self._all(Order(kind=Kind.UPDATE, arrays=flat, step=step, share=share, factor=factor))
        self._memory = {name: answer.memory for name, answer in done.items()}
        return norm

    def arrays(self) -> Mapping[str, Array]:
        """Everything that must be kept to go on later, by names that say what it is; fetched from the servers one by one."""
        fetched: dict[str, Callable[[], Array]] = {}
        for name in self._values:
            fetched[f"parameter/{name}"] = partial(self._gathered, MASTER, name)
        for name, array in self._statistics.items():
            fetched[f"statistic/{name}"] = partial(np.asarray, array)
        for name in self._values:
            fetched |= {f"state/{slot}/{name}": partial(self._gathered, slot, name) for slot in self._slots}
        return _Fetched(fetched)

    def restore(self, arrays: Mapping[str, Array], where: str) -> None:
        """Take over what :meth:`arrays` gave, on however many servers; raises InputFileError when it is not this model's."""
        self._require_own(arrays, where)
        for name, array in self._statistics.items():
            array[...] = arrays[f"statistic/{name}"]
        for name in self._values:
            for slot in (MASTER, *self._slots):
                source = arrays[f"parameter/{name}" if slot == MASTER else f"state/{slot}/{name}"]
                flat = self._within_reach(np.ascontiguousarray(source).reshape(-1))
                self._all(Order(kind=Kind.TAKE, arrays={name: flat}, slot=slot))

    def close(self) -> None:
        """End the servers; values stay."""
        for server in self._servers:
            server.close()
        if self._made is not None:
            self._made.close()

    def _all(self, order: Order) -> dict[str, Answer]:
        """Have every server do its part of ``order``, all at the same time; those whose parts it is about, or all."""
        asked = []
        for server in self._servers:
            arrays = {name: order.arrays[name] for name in self._names[server.name] if name in order.arrays}
            if arrays or order.kind in (Kind.REPORT, Kind.UPDATE):
                server.ask(replace(order, arrays=arrays))
                asked.append(server)
        return {server.name: server.answer() for server in asked}

    def _squares(self, answers: Mapping[str, Answer]) -> dict[str, float]:
        """The sum of the squares of each parameter's gradient: chunk by chunk from its first, wherever they were added up."""
        sums = {name: iter(answer.sums) for name, answer in answers.items()}
        chunks: dict[str, list[float]] = {name: [] for name in self._values}
        for shard in self.shards:
            chunks[shard.parameter] += next(sums[shard.server])
        return {name: sum(found) for name, found in chunks.items()}

    def _gathered(self, slot: str, name: str) -> Array:
        """A slot of a parameter, put together from its servers' ranges; values that are their own master are read in place."""
        value = self._values[name]
        kind = master_type(value.dtype)
        if slot == MASTER and kind == value.dtype:
            return value
        whole = np.empty(value.size, kind) if self._room is None else self._room.empty((value.size,), DType(kind.name))
        self._all(Order(kind=Kind.GIVE, arrays={name: whole}, slot=slot))
        return whole.reshape(value.shape)

    def _require_own(self, arrays: Mapping[str, Array], where: str) -> None:
        own = {f"statistic/{name}": (array.shape, array.dtype) for name, array in self._statistics.items()}
        for name, value in self._values.items():
            like = (value.shape, master_type(value.dtype))
            own |= dict.fromkeys([f"parameter/{name}", *(f"state/{slot}/{name}" for slot in self._slots)], like)
        for name, (shape, dtype) in own.items():
            given = arrays.get(name)
            if given is None or given.shape != shape or given.dtype != dtype:
                raise InputFileError(
                    f"{name!r} is {'not there' if given is None else f'{given.dtype.name} {list(given.shape)}'}", where=where,
                    expected=f"{dtype.name} {list(shape)}, as the model has it",
                    remedy="resume with the model and settings that the checkpoint was written with",
                )  # fmt: skip

    def _reachable(self, array: Array) -> Array:
        """``array`` where workers reach it, if there is such a place."""
        return array if self._room is None else self._room.reach(array)

    def _within_reach(self, flat: Array) -> Array:
        """``flat`` where all servers reach it."""
        return self._reachable(flat) if self._apart else flat


class _Fetched(Mapping[str, Array]):
    """Arrays that are there when they are asked for: all at once might not fit into memory."""

    def __init__(self, fetch: Mapping[str, Callable[[], Array]]) -> None:
        self._fetch = fetch

    def __getitem__(self, name: str) -> Array:
        return self._fetch[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetch)

    def __len__(self) -> int:
        return len(self._fetch)


def elements_of(initial: Mapping[str, Array]) -> dict[str, int]:
    """How many elements each parameter has."""
    return {name: prod(array.shape) for name, array in initial.items()}
