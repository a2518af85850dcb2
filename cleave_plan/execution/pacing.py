"""When work would be done on a fleet: devices that take their phases one after another, over links that they share.

Time is the fleet's, in seconds, and comes from outside: :meth:`Pacer.advance` moves it on and says what was done by then, each
thing at its exact moment. In a phase a download, arithmetic and an upload run side by side (:mod:`cleave_plan.cost.phases`);
transfers of different devices share the servers' links max-min fairly (:mod:`cleave_plan.cost.sharing`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cleave_plan.cost.sharing import Floats, fair_rates

_NOTHING = 1e-12
"""What counts as nothing left (rounding): this share of what there was, or as many seconds."""


class Phase(NamedTuple):
    """Seconds of latency first; then bytes down, seconds of arithmetic and bytes up, side by side."""

    wait_s: float
    down_bytes: float
    flop_s: float
    up_bytes: float


class Rates(NamedTuple):
    """Bytes/s of a row's own link in both directions; infinite for what is held up by servers' links alone."""

    down: float
    up: float


class Done(NamedTuple):
    """What was added as ``key`` was done at ``at_s``."""

    key: Hashable
    at_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    """A device's work: what is left of its present phase (latency, down, arithmetic, up), and what comes after it.

    ``share``: the part of its bytes that each server carries. ``rates``: seconds, bytes/s, seconds, bytes/s at present.
    """

    link: Rates
    line: deque[tuple[Phase, Hashable | None, Floats]] = field(default_factory=deque)
    left: list[float] = field(default_factory=list)
    key: Hashable | None = None
    share: Floats = field(default_factory=lambda: np.empty(0))
    speed: list[float] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self.left)

    def begin_next(self) -> None:
        """Take up the next phase, if there is one."""
        if self.line:
            phase, self.key, self.share = self.line.popleft()
            self.left = list(phase)
        else:
            self.left, self.key = [], None


class Pacer:
    """Rows of work by name. ``egress`` and ``ingress`` are the servers' links in bytes/s (may be infinite), ``links`` those of
    the rows that have one; others are held up by the servers' links alone.
    """

    def __init__(self, links: Mapping[str, Rates], egress: Sequence[float], ingress: Sequence[float]) -> None:
        self._links = links
        self._egress, self._ingress = np.array(egress, dtype=float), np.array(ingress, dtype=float)
        self._rows: dict[str, _Row] = {}
        self._now, self._fresh = 0.0, True

    def add(self, row: str, key: Hashable, phases: Sequence[Phase], share: Sequence[float], now_s: float) -> None:
        """Give ``row`` something to do after what it has; it starts now if the row is idle.

        ``share``: the part of its bytes that each server carries. Nothing may have been left undone before ``now_s``:
        call :meth:`advance` first.
        """
        self._now = max(self._now, now_s)
        own = self._rows.setdefault(row, _Row(link=self._links.get(row, Rates(math.inf, math.inf))))
        weights = np.asarray(share, dtype=float)
        for place, phase in enumerate(phases):
            own.line.append((phase, key if place == len(phases) - 1 else None, weights))
        if not own.busy:
            own.begin_next()
            self._fresh = False

    def remove(self, row: str) -> None:
        """Forget a row with all that it had to do."""
        self._rows.pop(row, None)
        self._fresh = False

    def busy(self, row: str) -> bool:
        """Whether a row has something left to do."""
        return row in self._rows and self._rows[row].busy

    def next_s(self) -> float:
        """The next moment at which anything ends; infinite when there is nothing to do."""
        return self._now + self._step_s()

    def advance(self, now_s: float) -> list[Done]:
        """Let time pass until ``now_s``; what was done by then, in order."""
        done: list[Done] = []
        while self._now + (step_s := self._step_s()) <= now_s:
            self._pass(step_s)
            self._now += step_s
            for row in self._rows.values():
                while row.busy and not any(row.left):
                    if row.key is not None:
                        done.append(Done(row.key, self._now))
                    row.begin_next()
                    self._fresh = False
        if now_s > self._now:
            self._pass(now_s - self._now)
            self._now = now_s
        return done

    def _step_s(self) -> float:
        self._refresh()
        return min((self._until_event(row) for row in self._rows.values() if row.busy), default=math.inf)

    @staticmethod
    def _until_event(row: _Row) -> float:
        return min((left / speed for left, speed in zip(row.left, row.speed, strict=True) if left and speed), default=0.0)

    def _pass(self, seconds: float) -> None:
        """Let all rows work at their present rates; what ends sets rates anew."""
        for row in self._rows.values():
            if not row.busy:
                continue
            for place, speed in enumerate(row.speed):
                if row.left[place] and speed:
                    left = row.left[place] - speed * seconds
                    row.left[place] = left if left > _NOTHING * max(row.left[place], speed) else 0.0
                    self._fresh = self._fresh and row.left[place] > 0

    def _refresh(self) -> None:
        """Work out the rates of all rows, where something began or ended since."""
        if self._fresh:
            return
        working = [row for row in self._rows.values() if row.busy and not row.left[0]]
        for row in self._rows.values():
            row.speed = [1.0, 0.0, 0.0, 0.0] if row.busy and row.left[0] else [0.0, 0.0, 1.0, 0.0]
        for place, capacity in ((1, self._egress), (3, self._ingress)):
            moving = [row for row in working if row.left[place]]
            caps = np.array([row.link.down if place == 1 else row.link.up for row in moving])
            shares = np.array([row.share for row in moving]).reshape(len(moving), len(capacity))
            for row, rate in zip(moving, fair_rates(caps, shares, capacity).tolist(), strict=True):
                row.speed[place] = rate
        self._fresh = True
