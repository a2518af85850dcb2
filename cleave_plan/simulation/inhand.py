"""What each row has in hand in one level: its tiles in their order, and when each of them is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from cleave_plan.simulation.crowd import Crowd, Floats
from cleave_plan.simulation.due import due, expected
from cleave_plan.simulation.task import Box, Task

Timed = tuple[float, Task]
"""A task and when it is done."""


class InHand:
    """Columns over the rows of ``crowd``, and the tiles of those to which something happened.

    ``done_s``: when a row is done with all that it has (0: it has nothing); ``load_s``: seconds, at factor 1, of what it had to
    do when it was last sent something, at ``sent_s``. Tiles are asked for (``tasks_of``) only where a row's own are needed one by
    one.
    """

    def __init__(
        self, crowd: Crowd, start_s: float, busy_s: Floats, tasks_of: Callable[[int], list[Task]], grace_s: float
    ) -> None:
        self._crowd, self._start_s, self._tasks_of, self._grace_s = crowd, start_s, tasks_of, grace_s
        self.done_s, due_s = expected(crowd, start_s, busy_s, grace_s)
        self.sent_s, self.load_s, self._busy_s = np.full(len(busy_s), start_s), busy_s.copy(), busy_s
        self._work: dict[int, list[Timed]] = {}
        self.gone = np.flatnonzero((busy_s > 0) & ~crowd.alive).tolist()
        """Rows that were sent something though their device is not there any more."""
        self.behind = np.flatnonzero((busy_s > 0) & crowd.alive & (self.done_s > due_s)).tolist()
        """Rows that will be late if nothing happens."""

    def fit(self) -> None:
        """As many entries as the crowd has rows; those that came in since the level began have nothing."""
        if len(self.done_s) < len(self._crowd):
            more = np.zeros(len(self._crowd) - len(self.done_s))
            for name in ("done_s", "sent_s", "load_s", "_busy_s"):
                setattr(self, name, np.concatenate([getattr(self, name), more]))

    def until(self, row: int) -> float:
        """When ``row`` is done with what it has."""
        self.fit()
        return float(self.done_s[row])

    def free_s(self) -> Floats:
        """When each row can begin with something else."""
        self.fit()
        return np.maximum(self.done_s, self._crowd.until_s)

    def late_s(self, row: int, level: float = 1.0) -> float:
        """When ``row`` is late with what it was sent last; ``level``: the factor of the level."""
        return due(float(self.sent_s[row]), float(self.load_s[row]), self._grace_s, level)

    def tasks(self, row: int, factor: float) -> list[Timed]:
        """What ``row`` does and when each tile is done; ``factor``: its own, where nothing has happened to it so far."""
        if row not in self._work:
            now, work = max(self._start_s, float(self._crowd.until_s[row])), []
            for task in self._tasks_of(row) if self._busy_s[row] > 0 else ():
                now += task.seconds * factor
                work.append((now, task))
            self._work[row] = work
        return self._work[row]

    def add(self, row: int, task: Task, now_s: float) -> None:
        """``row`` is sent one more tile."""
        factor = float(self._crowd.factor[row])
        work, end = self.tasks(row, factor), max(float(self.done_s[row]), now_s) + task.seconds * factor
        work.append((end, task))
        self.done_s[row] = end
        self.sent_s[row], self.load_s[row] = now_s, (end - now_s) / factor

    def take_back(self, row: int, now_s: float) -> list[Task]:
        """Take away from ``row`` what it has not done by ``now_s``."""
        work = self.tasks(row, float(self._crowd.factor[row]))
        self._work[row] = [(end, task) for end, task in work if end <= now_s]
        self.done_s[row] = min(self.done_s[row], now_s)
        return [task for end, task in work if end > now_s]

    def slow_down(self, row: int, factor: float, now_s: float) -> None:
        """``row``, whose factor has grown by ``factor`` already, does the rest of its work that much slower."""
        work = self.tasks(row, self._crowd.factor[row] / factor)
        self._work[row] = [(end if end <= now_s else now_s + (end - now_s) * factor, task) for end, task in work]
        self.done_s[row] = now_s + (self.done_s[row] - now_s) * factor

    def replace(self, row: int, work: list[Timed], done_s: float) -> None:
        """What ``row`` does from now on."""
        self._work[row] = work
        self.done_s[row] = done_s

    def computed(self) -> Iterable[tuple[int, Box]]:
        """Each tile that some row did, or will have done."""
        rows = {*np.flatnonzero(self._busy_s > 0).tolist(), *self._work}
        return [(task.part, task.box) for row in sorted(rows) for _, task in self.tasks(row, 1.0)]
