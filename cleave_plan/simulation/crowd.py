"""Everyone who is there: columns over rows, one row for each device, used again when its device has gone and all know it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.dtypes import DType

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Columns = Callable[[DType], DeviceColumns]
"""The figures of all rows for an element type, as the server knows them."""

NOBODY = -1

SLOWEST = 1e12
"""Times as long as foreseen that everything takes at the most: a device that hangs."""


class Crowd:
    """Columns over rows.

    ``like``: the fleet's device whose figures it has; ``factor``: how many times longer everything takes, which the server does
    not know; ``alive``: whether it works; ``known``: whether the server counts on it; ``born``: how many devices had come before
    it (a row used again is another device); ``noticed_s``: when the server notices that it is gone; ``late``: levels running in
    which others had to help it; ``until_s``: until when it works on what others have done by now. ``unnoticed``: how many are
    gone and still counted on.
    """

    def __init__(self, names: Sequence[str]) -> None:
        count = len(names)
        self.like = np.arange(count)
        self.factor, self.noticed_s, self.until_s = np.ones(count), np.full(count, np.inf), np.zeros(count)
        self.late = np.zeros(count, dtype=np.int64)
        self.alive, self.known, self.used = (np.ones(count, dtype=bool) for _ in range(3))
        self.born = np.arange(count)
        self.row_of = {name: row for row, name in enumerate(names)}
        self.unnoticed = 0
        self._free: list[int] = []
        self._came = count

    def __len__(self) -> int:
        return len(self.like)

    def join(self, name: str, like: int) -> int:
        """The row of a device that comes in."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.like[row], self.factor[row], self.noticed_s[row], self.until_s[row], self.late[row] = like, 1.0, np.inf, 0.0, 0
        self.alive[row] = self.known[row] = self.used[row] = True
        self.born[row], self.row_of[name] = self._came, row
        self._came += 1
        return row

    def go(self, name: str, noticed_s: float) -> int:
        """The row of a device that works no longer; the server still counts on it, until it notices."""
        row = self.row_of.pop(name)
        self.alive[row], self.noticed_s[row] = False, noticed_s
        self.unnoticed += 1
        return row

    def slow(self, name: str, factor: float) -> tuple[int, float]:
        """The row of a device that takes ``factor`` times as long from now on, and how many times it is in fact (``SLOWEST``)."""
        row = self.row_of[name]
        more = min(factor, SLOWEST / float(self.factor[row]))
        self.factor[row] *= more
        return row, more

    def exclude(self, row: int, now_s: float) -> str:
        """The server gives up the device of ``row``, which is late in level after level; its name."""
        name = next(name for name, place in self.row_of.items() if place == row)
        self.go(name, now_s)
        self.forget(row)
        return name

    def forget(self, row: int) -> None:
        """The server has noticed that the device of ``row`` is gone."""
        self.unnoticed -= bool(self.known[row])
        self.known[row] = False

    def release(self, row: int) -> None:
        """Nobody speaks of the device of ``row`` any more: another may have it."""
        self.used[row] = False
        self._free.append(row)

    def columns(self, figures: DeviceColumns) -> DeviceColumns:
        """Figures of all rows as the server knows them; ``figures`` are the fleet's."""
        return figures.take(self.like)

    def _grow(self) -> None:
        old = len(self)
        more = max(old // 4, 8)
        for name in ("like", "factor", "noticed_s", "until_s", "late", "alive", "known", "used", "born"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.factor[old:] = 1.0
        self._free += list(range(old + more - 1, old - 1, -1))
