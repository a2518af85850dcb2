"""What the server will notice in a level, in order of time: losses, and devices that may be late."""

from __future__ import annotations

import heapq

import numpy as np

from cleave_plan.simulation.task import Task


class Notices:
    """A queue of notices. What one row loses until it is noticed is one notice."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, int, int, list[Task]]] = []
        self._lost: dict[int, tuple[float, list[Task]]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def next_s(self) -> float:
        """When the server notices the next loss; infinite when there is none."""
        return self._pending[0][0] if self._pending else np.inf

    @property
    def lost(self) -> list[int]:
        """Rows whose losses nobody has noticed so far."""
        return list(self._lost)

    def look_at(self, row: int, when_s: float) -> None:
        """The server will look at ``when_s`` whether ``row`` is late."""
        self._push(when_s, row, [])

    def lose(self, row: int, when_s: float, tasks: list[Task]) -> None:
        """``row`` has lost ``tasks``, which the server will notice at ``when_s``: all that it has by then at once."""
        noticed_s, lost = self._lost.get(row, (when_s, []))
        if lost and noticed_s == when_s:
            lost += tasks
            return
        lost = list(tasks)
        self._lost[row] = when_s, lost
        self._push(when_s, row, lost)

    def pop(self) -> tuple[float, int, list[Task]]:
        """The next notice: when, whose, and what was lost."""
        when_s, _, row, tasks = heapq.heappop(self._pending)
        return when_s, row, tasks

    def settle(self, row: int) -> None:
        """The losses of ``row`` are noticed."""
        self._lost.pop(row, None)

    def _push(self, when_s: float, row: int, tasks: list[Task]) -> None:
        self._number += 1
        heapq.heappush(self._pending, (when_s, self._number, row, tasks))
