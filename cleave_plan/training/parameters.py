"""What a training run owns: parameters, their optimizer state, running statistics; updated in place, shard by shard.

Values lie where workers reach them, so that a step reads what the step before it wrote without a copy. A parameter of 16 bits
has a master copy in float32, on which the optimizer works. State that is lost is lost for good, so none of it is on devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod, sqrt
from typing import NamedTuple, TypeVar

import numpy as np

from cleave_plan.errors import ExecutionError, InputFileError
from cleave_plan.execution.cores import usable_cores
from cleave_plan.kernels.arrays import Array
from cleave_plan.training.optimizers import Block, optimizer_of
from cleave_plan.training.ownership import Shard
from cleave_plan.training.settings import Settings

Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_ELEMENTS = 1 << 15
"""Elements that are updated together: with state and scratch they fit into a core's second cache."""

_NORM_ELEMENTS = 1 << 16
"""Elements whose squares are added before the next ones are; fixed, so that the norm does not depend on anything else."""

_WORTH_THREADS = 1 << 18
"""Elements from which on handing pieces to other threads takes less than it saves."""

_CLIP_GUARD = 1e-6
"""Added to the norm before it divides, as PyTorch does."""


class _Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of a parameter."""

    name: str
    start: int
    stop: int


class Parameters:
    """The values of ``initial`` (parameters) and ``statistics``, placed by ``share`` (an array to one that workers reach)."""

    def __init__(
        self,
        initial: Mapping[str, Array],
        statistics: Mapping[str, Array],
        shards: Sequence[Shard],
        settings: Settings,
        share: Callable[[Array], Array],
    ) -> None:
        self._settings = settings
        self._optimizer = optimizer_of(settings)
        self._values = {name: _own(share, array) for name, array in initial.items()}
        self._statistics = {name: np.array(array) for name, array in statistics.items()}
        self._masters = {name: _master(array) for name, array in self._values.items()}
        self._state = {
            name: {slot: np.zeros_like(master) for slot in self._optimizer.slots} for name, master in self._masters.items()
        }
        self.shards = tuple(shards)
        self._pieces = list(_pieces(self.shards))
        self._elements = sum(master.size for master in self._masters.values())
        self._pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="optimizer")
        self._room = threading.local()

    @property
    def feeds(self) -> dict[str, Array]:
        """The inputs that a step reads them from."""
        return {**self._values, **self._statistics}

    @property
    def values(self) -> Mapping[str, Array]:
        """Parameters and statistics by name."""
        return self.feeds

    def bytes_of(self) -> dict[str, tuple[int, int]]:
        """Bytes of parameters (with master copies) and of optimizer state that each server has."""
        found: dict[str, tuple[int, int]] = {}
        for shard in self.shards:
            count, master = shard.stop - shard.start, self._masters[shard.parameter]
            value = self._values[shard.parameter]
            own = count * (value.itemsize + (master.itemsize if master.dtype != value.dtype else 0))
            held = count * master.itemsize * len(self._optimizer.slots)
            before = found.get(shard.server, (0, 0))
            found[shard.server] = (before[0] + own, before[1] + held)
        return found

    def keep_statistics(self, updated: Mapping[str, Array]) -> None:
        """Take in new running statistics."""
        for name, array in updated.items():
            self._statistics[name][...] = array

    def step(self, gradients: Mapping[str, Array], *, step: int, share: float, scale: float = 1.0) -> float:
        """One optimizer step, the ``step``-th from 1, down ``scale`` times ``gradients``; the norm of those before clipping.

        ``share``: what the schedule makes of the learning rates. Raises ExecutionError, with nothing changed, when the norm is
        not finite.
        """
        flat = {name: np.ascontiguousarray(gradient).reshape(-1) for name, gradient in gradients.items()}
        norm = scale * sqrt(sum(self._each(_sum_of_squares, flat.values())))
        if not np.isfinite(norm):
            raise ExecutionError(
                "the gradients hold infinities or NaN", where=f"step {step}", expected="finite gradients",
                remedy="lower the learning rate, or clip the gradients (clip_norm)",
            )  # fmt: skip
        limit = self._settings.clip_norm
        factor = scale if limit is None else scale * min(1.0, limit / (norm + _CLIP_GUARD))

        def update(piece: _Piece) -> None:
            self._update(piece, flat[piece.name], step=step, share=share, factor=factor)

        for _ in self._each(update, self._pieces):
            pass
        return norm

    def _each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """``work`` on every item, on all cores where that is worth it."""
        return self._pool.map(work, items) if self._elements >= _WORTH_THREADS else map(work, items)

    def _update(self, piece: _Piece, gradient: Array, *, step: int, share: float, factor: float) -> None:
        name, span = piece.name, slice(piece.start, piece.stop)
        master = self._masters[name].reshape(-1)[span]
        first, second, down = self._scratch(master)
        np.multiply(gradient[span], factor, out=down, casting="unsafe")
        state = {slot: array.reshape(-1)[span] for slot, array in self._state[name].items()}
        rate, decay = self._settings.rate_of(name) * share, self._settings.decay_of(name)
        block = Block(values=master, state=state, scratch=(first, second))
        self._optimizer.update(block, down, step=step, rate=rate, decay=decay)
        if self._masters[name] is not self._values[name]:
            self._values[name].reshape(-1)[span] = master

    def _scratch(self, like: Array) -> tuple[Array, Array, Array]:
        """Three arrays like ``like`` without values, this thread's own."""
        kind = like.dtype.name
        if not hasattr(self._room, kind):
            setattr(self._room, kind, np.empty((3, BLOCK_ELEMENTS), like.dtype))
        first, second, third = getattr(self._room, kind)[:, : like.size]
        return first, second, third

    def arrays(self) -> dict[str, Array]:
        """Everything that must be kept to go on later, by names that say what it is."""
        kept = {f"parameter/{name}": master for name, master in self._masters.items()}
        kept |= {f"statistic/{name}": array for name, array in self._statistics.items()}
        return kept | {f"state/{slot}/{name}": array for name, state in self._state.items() for slot, array in state.items()}

    def restore(self, arrays: Mapping[str, Array], where: str) -> None:
        """Take over what :meth:`arrays` gave; raises InputFileError when it is not this model's."""
        own = self.arrays()
        for name, array in own.items():
            given = arrays.get(name)
            if given is None or given.shape != array.shape or given.dtype != array.dtype:
                raise InputFileError(
                    f"{name!r} is {'not there' if given is None else f'{given.dtype.name} {list(given.shape)}'}", where=where,
                    expected=f"{array.dtype.name} {list(array.shape)}, as the model has it",
                    remedy="resume with the model and settings that the checkpoint was written with",
                )  # fmt: skip
        for name, array in own.items():
            array[...] = arrays[name]
        for name, value in self._values.items():
            if self._masters[name] is not value:
                value[...] = self._masters[name]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _own(share: Callable[[Array], Array], array: Array) -> Array:
    """``array`` where workers reach it, as an array that may be written and that nobody else has."""
    placed = share(np.array(array))
    placed.flags.writeable = True
    return placed


def _master(value: Array) -> Array:
    return value if value.dtype.itemsize >= 4 else value.astype(np.float32)


def _pieces(shards: Sequence[Shard]) -> Iterator[_Piece]:
    for shard in shards:
        for start in range(shard.start, shard.stop, BLOCK_ELEMENTS):
            yield _Piece(shard.parameter, start, min(start + BLOCK_ELEMENTS, shard.stop))


def _sum_of_squares(flat: Array) -> float:
    """In float64, in an order that only the array's length decides."""
    total = 0.0
    for start in range(0, flat.size, _NORM_ELEMENTS):
        piece = flat[start : start + _NORM_ELEMENTS].astype(np.float64)
        total += float(np.sum(np.square(piece, out=piece)))
    return total


def elements_of(initial: Mapping[str, Array]) -> dict[str, int]:
    """How many elements each parameter has."""
    return {name: prod(array.shape) for name, array in initial.items()}
