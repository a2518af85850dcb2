"""How what attention's operators read beside the scores comes into the form [batch, rows, length]."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from cleave_plan.kernels.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """Folds tensors that broadcast to ``shape`` (whose elements, in order, are those of [batch, rows, length]).

    ``split``: how many leading axes of ``shape`` are the batch, the others but the last being the rows; -1 where they do not
    part so, and whatever varies is then taken to vary with both.
    """

    shape: tuple[int, ...]
    batch: int
    rows: int
    split: int

    @classmethod
    def of(cls, shape: tuple[int, ...], batch: int, rows: int) -> Folding:
        """The folding of a tensor of ``shape`` with ``batch`` items of ``rows`` rows."""
        splits = (place for place in range(len(shape)) if prod(shape[:place]) == batch and prod(shape[place:-1]) == rows)
        return cls(shape=shape, batch=batch, rows=rows, split=next(splits, -1))

    def folded_shape(self, own: tuple[int, ...]) -> tuple[int, int, int]:
        """The folded shape of a tensor of shape ``own``; raises ValueError when it does not broadcast to ``shape``."""
        padded = self._padded(own)
        outer, inner = self._groups(padded)
        return self.batch if outer else 1, self.rows if inner else 1, padded[-1]

    def fold(self, array: Array) -> Array:
        """``array`` folded; a view where that is possible. Raises ValueError as :meth:`folded_shape`."""
        padded = self._padded(array.shape)
        outer, inner = self._groups(padded)
        split = len(padded) - 1 if self.split < 0 else self.split
        full = [
            whole if (outer if axis < split else inner) else size
            for axis, (size, whole) in enumerate(zip(padded[:-1], self.shape[:-1], strict=True))
        ]
        target = (*full, padded[-1])
        return np.broadcast_to(array.reshape(padded), target).reshape(self.folded_shape(array.shape))

    def _padded(self, own: tuple[int, ...]) -> tuple[int, ...]:
        rank = len(self.shape)
        if prod(own[: max(len(own) - rank, 0)]) != 1:
            raise ValueError(f"the shape {own} does not broadcast to {self.shape}")
        padded = (1,) * (rank - len(own)) + own[max(len(own) - rank, 0) :]
        if any(size not in (1, whole) for size, whole in zip(padded, self.shape, strict=True)):
            raise ValueError(f"the shape {own} does not broadcast to {self.shape}")
        return padded

    def _groups(self, padded: tuple[int, ...]) -> tuple[bool, bool]:
        """Whether a tensor varies over the batch, and over the rows."""
        if self.split < 0:
            varies = any(size > 1 for size in padded[:-1])
            return varies and self.batch > 1, varies and self.rows > 1
        return any(size > 1 for size in padded[: self.split]), any(size > 1 for size in padded[self.split : -1])
