"""What levels lost or had late, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave_plan.simulation.task import Task


@dataclass(slots=True, kw_only=True)
class Losses:
    """``tiles`` that were lost or late, ``pieces`` in their place, multiply-adds of ``redone`` work, and of what is ``missing``
    (0 at a level's end)."""

    tiles: int = 0
    pieces: int = 0
    redone: float = 0.0
    missing: float = 0.0

    def gone(self, tasks: Sequence[Task]) -> None:
        """``tasks`` are missing."""
        self.missing += sum(task.macs for task in tasks)

    def given_out(self, task: Task) -> None:
        """A piece of what was missing is somebody's."""
        self.pieces += 1
        macs = task.macs
        self.missing, self.redone = self.missing - macs, self.redone + macs

    def copied(self, task: Task) -> None:
        """Somebody else computes a late tile, too."""
        self.tiles, self.pieces, self.redone = self.tiles + 1, self.pieces + 1, self.redone + task.macs
