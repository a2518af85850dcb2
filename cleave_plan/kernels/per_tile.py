"""What is worked out once for a tile, and is the same in every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box

Value = TypeVar("Value")

MOST_KNOWN = 1 << 14
"""Tiles of which something is kept; then all are forgotten."""


class PerTile(Generic[Value]):
    """Values by the work and the box of a tile; the work is kept with them, so that no other has its place."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Box], tuple[Work, Value]] = {}

    def of(self, work: Work, box: Box, make: Callable[[], Value]) -> Value:
        """The value of a tile, made where it is not known."""
        key = (id(work), box)
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = (work, make())
        return self._known[key][1]
