"""Batches: the n-th one is the same whenever it is asked for, so that a resumed run sees what the first one would have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cleave_plan.errors import InputFileError
from cleave_plan.kernels.arrays import Array
from cleave_plan.training.npzfile import map_arrays
from cleave_plan.workload.graph import TensorInfo

Data = str | Path | Mapping[str, Array] | Iterable[Mapping[str, Array]]
"""A ``.npz`` file, arrays by name, or batches by themselves."""


class Batches(Protocol):
    """``samples`` is the number in a batch; ``fingerprint`` says which data it is, as far as that can be known."""

    samples: int
    fingerprint: str

    def batch(self, number: int) -> Mapping[str, Array]:
        """The batch ``number``, from 0; raises InputFileError when there is none."""

    def position(self, number: int) -> dict[str, Any]:
        """Where the data stands before batch ``number``, for people who read checkpoints."""


def batches_of(data: Data, inputs: Sequence[TensorInfo], *, seed: int, shuffle: bool) -> Batches:
    """Batches for a step with these inputs; raises InputFileError when the data does not fit them."""
    if isinstance(data, str | Path):
        arrays, fingerprint = map_arrays(data)
        return ArrayBatches(arrays, inputs, seed=seed, shuffle=shuffle, fingerprint=fingerprint, where=str(data))
    if isinstance(data, Mapping):
        shapes = ", ".join(f"{name} {array.dtype.name}{list(array.shape)}" for name, array in data.items())
        return ArrayBatches(data, inputs, seed=seed, shuffle=shuffle, fingerprint=f"arrays in memory: {shapes}", where="data")
    return IteratedBatches(data, inputs)


class ArrayBatches:
    """Batches of samples from whole arrays, epoch after epoch; what is left at the end of one and fills no batch is left out.

    Arrays with one sample a row (as many rows as that of the first input) are drawn from; an array of exactly an input's shape
    otherwise goes into every batch as it is. ``shuffle``: epoch e goes through the samples in the order that
    ``numpy.random.default_rng([seed, e])`` permutes them to.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        inputs: Sequence[TensorInfo],
        *,
        seed: int,
        shuffle: bool,
        fingerprint: str,
        where: str,
    ) -> None:
        self.fingerprint = fingerprint
        self._seed, self._shuffle = seed, shuffle
        listing = "; ".join(f"{info.name}: {info.dtype} {_text('samples', *info.shape[1:])}" for info in inputs)
        missing = [info.name for info in inputs if info.name not in arrays]
        if missing or not inputs:
            raise InputFileError(f"no array for {', '.join(map(repr, missing)) or 'any input'}", where=where, expected=listing)
        first = next((info for info in inputs if info.shape), inputs[0])
        self.samples = first.shape[0] if first.shape else 1
        self._rows = len(arrays[first.name]) if arrays[first.name].ndim else 0
        self._drawn, self._fixed = {}, {}
        for info in inputs:
            array = arrays[info.name]
            by_row = info.shape and array.ndim == len(info.shape) and array.shape[1:] == info.shape[1:]
            if array.dtype.name != info.dtype:
                raise InputFileError(
                    f"{info.name!r} holds {array.dtype.name}",
                    where=where,
                    expected=f"{info.dtype}; nothing is converted silently",
                )
            if by_row and len(array) == self._rows and info.shape[0] == self.samples:
                self._drawn[info.name] = array
            elif array.shape == info.shape:
                self._fixed[info.name] = np.asarray(array)
            else:
                raise InputFileError(
                    f"{info.name!r} has the shape {list(array.shape)}", where=where,
                    expected=f"{_text(self._rows, *info.shape[1:])}, a row for each sample, or {list(info.shape)}",
                )  # fmt: skip
        self._per_epoch = self._rows // self.samples
        if not self._per_epoch:
            raise InputFileError(
                f"there are {self._rows} samples", where=where, expected=f"{self.samples} or more, which is one batch"
            )
        self._epoch, self._order = -1, np.arange(self._rows)

    def batch(self, number: int) -> Mapping[str, Array]:
        """The samples of batch ``number``, in memory."""
        epoch, place = divmod(number, self._per_epoch)
        if self._shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._rows)
        chosen = self._order[place * self.samples : (place + 1) * self.samples]
        return {name: np.ascontiguousarray(array[chosen]) for name, array in self._drawn.items()} | self._fixed

    def position(self, number: int) -> dict[str, Any]:
        """Epoch, samples of it that were used, and what the order is drawn from."""
        epoch, place = divmod(number, self._per_epoch)
        return {"batch": number, "epoch": epoch, "samples": place * self.samples, "random_state": [self._seed, epoch]}


class IteratedBatches:
    """Batches that someone else makes. What can be iterated again (a list, a loader) is, epoch after epoch; to resume, the
    batches that were used already are asked for and dropped, so they must come in the same order again.
    """

    fingerprint = "batches of an iterator"

    def __init__(self, source: Iterable[Mapping[str, Array]], inputs: Sequence[TensorInfo]) -> None:
        self._source = source
        self._iterator: Iterator[Mapping[str, Array]] = iter(source)
        self._next, self._epoch_start = 0, 0
        first = next((info for info in inputs if info.shape), None)
        self.samples = first.shape[0] if first is not None else 1

    def batch(self, number: int) -> Mapping[str, Array]:
        """The next batch whose number is ``number``."""
        while True:
            found = next(self._iterator, None)
            if found is None:
                self._begin_again()
                continue
            self._next += 1
            if self._next > number:
                return found

    def _begin_again(self) -> None:
        if iter(self._source) is self._iterator or self._next == self._epoch_start:
            raise InputFileError(
                f"the data ended after {self._next} batches", where="data", expected="a batch for each step",
                remedy="train fewer steps, or give data that can be iterated again",
            )  # fmt: skip
        self._iterator, self._epoch_start = iter(self._source), self._next

    def position(self, number: int) -> dict[str, Any]:
        """How many batches were used."""
        return {"batch": number}


def _text(*sizes: int | str) -> str:
    return f"[{', '.join(map(str, sizes))}]"
