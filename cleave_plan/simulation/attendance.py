"""Who is there, and what the server makes of it: devices join, go and become slow, are noticed to be gone, or are given up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cleave_plan.cost.lateness import PATIENCE
from cleave_plan.fleet.churn import Change, Event
from cleave_plan.simulation.crowd import Crowd, Floats
from cleave_plan.simulation.disturbed import Disturbed
from cleave_plan.simulation.seats import Seats


class Attendance:
    """Changes of a ``crowd`` and its ``seats``; ``place`` has the fleet's devices by name.

    ``excluded``: names of devices that are there and of which nobody expects anything; ``given_up``: how many were excluded so
    far; ``changed``: whether seats want settling.
    """

    def __init__(self, crowd: Crowd, seats: Seats, place: Mapping[str, int], detect_s: float) -> None:
        self._crowd, self._seats, self._place, self._detect_s = crowd, seats, place, detect_s
        self._gone: list[int] = []
        self.excluded: set[str] = set()
        self.given_up = 0
        self.changed = False

    def happen(self, event: Event, level: Disturbed | None) -> None:
        """``event``, inside a ``level`` or between two."""
        if event.device in self.excluded and event.change is not Change.JOIN:  # nobody expects anything of it any more
            if event.change is not Change.SLOW:
                self.excluded.discard(event.device)
            return
        self.changed = True
        crowd = self._crowd
        if event.change is Change.JOIN:
            self.excluded.discard(event.device)
            crowd.join(event.device, self._place[event.like])
            if level is not None:
                level.joined(event.time_s)
        elif event.change is Change.SLOW:
            row, factor = crowd.slow(event.device, event.factor)
            if level is not None:
                level.slow(row, factor, event.time_s)
        else:
            self._go(event, level)

    def _go(self, event: Event, level: Disturbed | None) -> None:
        """A device fails, which is noticed later, or leaves and says so."""
        late_s = self._detect_s if event.noticed_s is None else event.noticed_s
        noticed_s = event.time_s + (late_s if event.change is Change.FAIL else 0.0)
        row = self._crowd.go(event.device, noticed_s)
        self._gone.append(row)
        if event.change is Change.LEAVE:
            self._crowd.forget(row)
        if level is not None:
            level.lose(row, noticed_s, event.time_s)

    def notice(self, now_s: float) -> None:
        """Losses that are noticed by now without a level having waited for them; rows of noticed ones are free again."""
        crowd, left = self._crowd, []
        for row in self._gone:
            if crowd.known[row] and crowd.noticed_s[row] <= now_s:
                crowd.forget(row)
            if crowd.known[row]:
                left.append(row)
                continue
            self._seats.vacate(row)
            crowd.release(row)
            self.changed = True
        self._gone = left

    def excuse(self, busy: Floats, late: set[int], now_s: float) -> None:
        """After a level: who was in time again is forgiven; who was late in ``PATIENCE`` levels running is given up."""
        crowd = self._crowd
        helped = np.zeros(len(crowd), dtype=bool)
        helped[list(late)] = True
        crowd.late[: len(busy)][(busy > 0) & ~helped[: len(busy)]] = 0
        crowd.late[helped & crowd.alive] += 1
        for row in np.flatnonzero(crowd.alive & (crowd.late >= PATIENCE)).tolist():
            self.give_up(row, now_s)

    def give_up(self, row: int, now_s: float) -> None:
        """Nothing is expected any more of the device of ``row``, until it joins again."""
        self.excluded.add(self._crowd.exclude(row, now_s))
        self._gone.append(row)
        self.given_up += 1
