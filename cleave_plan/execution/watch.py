r"""How long devices may take: deadlines from predicted time, and from how well predictions have held.

A tile's predicted time is that of :func:`work_of`, or what the fleet's figures say where a run knows them. The *pace* of a
device is how many times as long its tiles took: the median of its last levels, or that of all devices as long as it has none of
its own. What a pace has been off by before gives the spread s (of the logarithm, from the median absolute deviation) of the rule
in :mod:`cleave_plan.cost.lateness`: a device that was sent work of w seconds is due after

    pace * w * exp(4 s) + GRACE_S

A busy machine or network slows all devices of a level down at once, which says nothing of one that is still out. So when half of
a level's devices have done their work, of which three at least have a pace, their median factor f over what was expected of them
is taken as the level's, s is the spread of devices around the factors of their levels, and the deadline

    f * pace * w * exp(4 s) + GRACE_S

Without any pace there is no deadline: an engine sees by itself that a device is gone, and the local one that it hangs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import median

from cleave_plan.cost.lateness import GRACE_S, LEAST_DONE, PATIENCE, level_factor, margin
from cleave_plan.execution.engines.base import Task

FLOP_PER_S = 1e10
"""Arithmetic of a device whose figures are not known; only its ratio to the overhead matters."""

OVERHEAD_S = 1e-4
"""Seconds that every tile costs beside its arithmetic."""

OWN_LEVELS, ALL_LEVELS = 8, 200
"""Levels that are remembered of each device and of all."""


def work_of(task: Task) -> float:
    """Predicted seconds of a tile, on a device of :data:`FLOP_PER_S`."""
    g, r, c = task.box.result_shape
    return OVERHEAD_S + 2.0 * g * r * c * (task.box.k_stop - task.box.k_start) / FLOP_PER_S


@dataclass(slots=True)
class _Row:
    """What a device has to do in this level: tasks, their work when the last was sent, and when that was.

    ``off``: the logarithm of how many times as long as expected it took, when it is done.
    """

    tasks: int = 0
    work: float = 0.0
    load: float = 0.0
    sent_s: float = 0.0
    heard_s: float = 0.0
    off: float | None = None


class Watch:
    """Deadlines of devices, over all levels and batches of a session. Times are those of one clock, in seconds.

    ``work``: predicted seconds of a tile on its device, in any unit that is the same for all.
    """

    def __init__(self, work: Callable[[Task], float] = work_of) -> None:
        self._work_of = work
        self._rows: dict[str, _Row] = {}
        self._own: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=ALL_LEVELS)
        self._off, self._off_level = deque[float](maxlen=ALL_LEVELS), deque[float](maxlen=ALL_LEVELS)
        # exp(4 s) for both, until the spreads are known anew: the server asks for it with every event.
        self._margins: tuple[float, float] | None = None
        self._overtaken: dict[str, int] = {}

    def begin(self) -> None:
        """A level begins: nobody has anything to do."""
        offs = self._offs()
        if len(offs) >= LEAST_DONE:
            self._off_level.extend(abs(off - median(offs)) for off in offs)
            self._margins = None
        self._rows.clear()

    def sent(self, task: Task, now_s: float) -> None:
        """A tile has gone to its device."""
        row = self._rows.setdefault(task.device, _Row(heard_s=now_s))
        row.tasks, row.work = row.tasks + 1, row.work + self._work_of(task)
        row.load, row.sent_s = row.work, now_s

    def answered(self, task: Task, now_s: float) -> None:
        """A device has answered; when it has nothing left, its pace is known."""
        row = self._rows.get(task.device)
        if row is None:  # its loss was told before
            return
        row.tasks, row.work, row.heard_s = row.tasks - 1, max(0.0, row.work - self._work_of(task)), now_s
        if row.tasks:
            return
        ratio = max(now_s - row.sent_s, 1e-6) / row.load
        expected = self._pace(task.device)
        if expected is not None:
            row.off = math.log(ratio / expected)
            self._off.append(abs(row.off))
            self._margins = None
        self._own.setdefault(task.device, deque(maxlen=OWN_LEVELS)).append(ratio)
        self._all.append(ratio)
        row.work = 0.0

    def gone(self, device: str) -> None:
        """A device is lost, or nothing is expected of it in this level any more."""
        self._rows.pop(device, None)

    def due_s(self, device: str) -> float:
        """When everything that was sent to a device should be there; infinite when nothing is, or nobody knows."""
        row, pace = self._rows.get(device), self._pace(device)
        if row is None or not row.tasks or pace is None:
            return math.inf
        if self._margins is None:
            self._margins = _margin(self._off), _margin(self._off_level)
        factor = level_factor(self._offs(), len(self._rows))
        expected = pace * row.load * (self._margins[0] if factor is None else factor * self._margins[1])
        return row.sent_s + expected + GRACE_S

    def silent_s(self, device: str, now_s: float) -> float:
        """How long ago a device was heard of in this level, or sent its first tile."""
        row = self._rows.get(device)
        return 0.0 if row is None else now_s - row.heard_s

    def overtaken(self, device: str) -> bool:
        """Others have to help a device in this level; whether that has been so for too long to go on with it."""
        self._overtaken[device] = self._overtaken.get(device, 0) + 1
        return self._overtaken[device] >= PATIENCE and device in self._own

    def in_time(self, device: str) -> None:
        """A device has done all of its tiles in a level."""
        self._overtaken.pop(device, None)

    def forgive(self) -> None:
        """A device was given up: others may have waited for the same process."""
        self._overtaken.clear()

    def _offs(self) -> list[float]:
        """How far those devices are off that are done with this level."""
        return [row.off for row in self._rows.values() if row.off is not None]

    def _pace(self, device: str) -> float | None:
        own = self._own.get(device)
        return median(own) if own else median(self._all) if self._all else None


def _margin(offs: Collection[float]) -> float:
    """The margin for the spread of logarithms, by their median absolute deviation."""
    return margin(1.4826 * median(offs) if offs else 0.0)
