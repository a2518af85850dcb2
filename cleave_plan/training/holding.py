"""What one server holds of the parameters: its ranges of them with their optimizer state, and what it does to them.

A parameter's values lie where devices read them; master copies (of parameters of 16 bits, in float32, on which the optimizer
works) and optimizer state are this server's alone, as large as its ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from cleave_plan.kernels.arrays import Array, as_ieee
from cleave_plan.training.optimizers import Block, optimizer_of
from cleave_plan.training.settings import Settings

Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_ELEMENTS = 1 << 15
"""Elements that are updated together: with state and scratch they fit into a core's second cache."""

CHUNK_ELEMENTS = 1 << 16
"""Elements of a parameter whose squares are added before the next ones are; fixed, so that a norm depends on nothing else."""

MASTER = "master"
"""The name, beside the optimizer's slots, of the values that the optimizer works on."""

_WORTH_THREADS = 1 << 18
"""Elements from which on handing pieces to other threads takes less than it saves."""


class Part(NamedTuple):
    """Elements ``start`` to ``stop`` of the parameter ``name``, whose whole ``values`` are one flat array."""

    name: str
    values: Array
    start: int
    stop: int


class _Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of part number ``part``, counted from the part's first."""

    part: int
    start: int
    stop: int


def master_type(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type of the optimizer's numbers for a parameter of ``dtype``."""
    return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)


class Holding:
    """The ``parts`` of one server; it works on them with at most ``threads`` threads. No two parts are of one parameter."""

    def __init__(self, parts: Sequence[Part], settings: Settings, *, threads: int) -> None:
        self._parts, self._settings = tuple(parts), settings
        self._optimizer = optimizer_of(settings)
        self._own = [part.values[part.start : part.stop] for part in self._parts]
        self._masters = [own.astype(master_type(own.dtype), copy=False) for own in self._own]
        self._state = [{slot: np.zeros_like(master) for slot in self._optimizer.slots} for master in self._masters]
        self._place = {part.name: place for place, part in enumerate(self._parts)}
        self._pieces = list(_pieces(self._parts))
        self._elements = sum(master.size for master in self._masters)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="optimizer") if threads > 1 else None
        self._room = threading.local()

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters, master copies among them."""
        pairs = zip(self._own, self._masters, strict=True)
        return sum(own.nbytes + (master.nbytes if master is not own else 0) for own, master in pairs)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state."""
        return sum(array.nbytes for state in self._state for array in state.values())

    def squares(self, gradients: Mapping[str, Array]) -> list[list[float]]:
        """Of each part, the sums of the squares of the chunks of its parameter's (flat, whole) gradient that begin in it.

        In float64. A chunk is as long as it would be on one server: where it goes on in the next server's range, its sum is
        here alone, so that no sum depends on where parameters are cut.
        """

        def of_part(part: Part) -> list[float]:
            first, last = (-(-place // CHUNK_ELEMENTS) for place in (part.start, part.stop))
            chunks = (gradients[part.name][at * CHUNK_ELEMENTS : (at + 1) * CHUNK_ELEMENTS] for at in range(first, last))
            return [_sum_of_squares(chunk) for chunk in chunks]

        return list(self._each(of_part, self._parts))

    def update(self, gradients: Mapping[str, Array], *, step: int, share: float, factor: float) -> None:
        """One optimizer step, the ``step``-th from 1, down ``factor`` times ``gradients`` (flat and whole).

        ``share``: what the schedule makes of the learning rates.
        """

        def update(piece: _Piece) -> None:
            self._update(piece, gradients[self._parts[piece.part].name], step=step, share=share, factor=factor)

        for _ in self._each(update, self._pieces):
            pass

    def give(self, slot: str, whole: Mapping[str, Array]) -> None:
        """Copy this server's ranges of ``slot`` into the flat arrays ``whole``, of parameters by name."""
        for place, span, target in self._spans(whole):
            target[span] = self._slot(slot, place)

    def take(self, slot: str, whole: Mapping[str, Array]) -> None:
        """The other way round; values of 16 bits follow their master copies."""
        for place, span, source in self._spans(whole):
            self._slot(slot, place)[...] = source[span]
            if slot == MASTER and self._masters[place] is not self._own[place]:
                self._own[place][...] = self._masters[place]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _slot(self, slot: str, place: int) -> Array:
        return self._masters[place] if slot == MASTER else self._state[place][slot]

    def _spans(self, whole: Mapping[str, Array]) -> Iterator[tuple[int, slice, Array]]:
        """Place, range and array of the parameters of ``whole`` that this server has a part of."""
        for name in whole.keys() & self._place.keys():
            part = self._parts[self._place[name]]
            yield self._place[name], slice(part.start, part.stop), whole[name]

    def _each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """``work`` on every item, on all threads where that is worth it."""
        if self._pool is None or self._elements < _WORTH_THREADS:
            return map(work, items)
        return self._pool.map(work, items)

    @as_ieee
    def _update(self, piece: _Piece, gradient: Array, *, step: int, share: float, factor: float) -> None:
        part, span = self._parts[piece.part], slice(piece.start, piece.stop)
        master = self._masters[piece.part][span]
        first, second, down = self._scratch(master)
        np.multiply(gradient[part.start + piece.start : part.start + piece.stop], factor, out=down, casting="unsafe")
        state = {slot: array[span] for slot, array in self._state[piece.part].items()}
        rate, decay = self._settings.rate_of(part.name) * share, self._settings.decay_of(part.name)
        block = Block(values=master, state=state, scratch=(first, second))
        self._optimizer.update(block, down, step=step, rate=rate, decay=decay)
        if self._masters[piece.part] is not self._own[piece.part]:
            self._own[piece.part][span] = master

    def _scratch(self, like: Array) -> tuple[Array, Array, Array]:
        """Three arrays like ``like`` without values, this thread's own."""
        kind = like.dtype.name
        if not hasattr(self._room, kind):
            setattr(self._room, kind, np.empty((3, BLOCK_ELEMENTS), like.dtype))
        first, second, third = getattr(self._room, kind)[:, : like.size]
        return first, second, third


def _pieces(parts: Sequence[Part]) -> Iterator[_Piece]:
    for place, part in enumerate(parts):
        count = part.stop - part.start
        for start in range(0, count, BLOCK_ELEMENTS):
            yield _Piece(place, start, min(start + BLOCK_ELEMENTS, count))


@as_ieee
def _sum_of_squares(flat: Array) -> float:
    """In float64, in an order that only the length decides."""
    wide = flat.astype(np.float64)
    return float(np.sum(np.square(wide, out=wide)))
