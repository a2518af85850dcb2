r"""Who computes what the plan gives to a device that is no longer there: seats and who sits on them.

A *seat* is what the plan gives to one of the fleet's devices, in all levels. Where its device is gone, somebody else sits on it,
and takes ``ratio`` times as long as the plan's levels take (the most over kinds of levels of ``WEIGHTY`` of the batch):

    ratio(device, seat) = max over kinds of   seconds of the seat's tiles on the device / seconds of the level

An empty seat is filled by someone without one, or through a chain: he takes a seat whose holder takes the next, up to ``CHAIN``
moves, the costliest of them as cheap as can be (the ``LADDER`` of ratios, breadth first on each). Where no chain is cheap
enough the seat stays empty, and its tiles are cut over the others for each level. Nothing is kept on devices between levels, so
a move costs nothing but its planning; still, who sits well stays (``gain``): the worst seat is changed only if its ratio falls by
that share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cleave_plan.simulation.crowd import NOBODY, Bools, Crowd, Floats, Ints

WEIGHTY = 0.01
"""Share of the batch that a kind of level takes at the least to count."""

CHAIN = 16
LADDER = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)
"""Ratios that are tried, from the cheapest; beyond the last one the tiles are better cut over many."""


class Seats:
    """``holder``: the row on each seat, or NOBODY; ``taken_s``: of shape (kinds, seats), what a level's seat takes its holder at
    factor 1; ``moves``: how often someone sat down."""

    def __init__(self, crowd: Crowd, times: Callable[[int], Floats], planned_s: Floats, count: Ints) -> None:
        """``times(like)``: seconds of each seat on a device, of shape (kinds, seats); ``planned_s``, ``count``: of each kind."""
        self._crowd, self._times = crowd, times
        own = np.stack([times(like)[:, like] for like in range(len(crowd))], axis=1)
        self.taken_s = own.copy()
        self.used = own.max(axis=0) > 0
        self.holder = np.where(self.used, np.arange(len(crowd)), NOBODY)
        self.seat_of = self.holder.copy()
        total = planned_s * count
        self._weighty = (planned_s > 0) & (total >= WEIGHTY * total.sum())
        self._planned_s = planned_s
        self._ratio_like: dict[int, NDArray[np.float32]] = {}
        self.moves = 0

    @property
    def empty(self) -> Ints:
        """Seats with work that nobody sits on."""
        return np.flatnonzero(self.used & (self.holder == NOBODY))

    def vacate(self, row: int) -> None:
        """The device of ``row`` is gone, or better without a seat."""
        self._fit()
        seat = int(self.seat_of[row])
        if seat != NOBODY:
            self.holder[seat] = NOBODY
            self.taken_s[:, seat] = 0.0
            self.seat_of[row] = NOBODY

    def settle(self, gain: float) -> int:
        """Take seats from those who are too slow for them, fill empty ones while someone has none, then better the worst ones by
        ``gain``; how many sat down."""
        self._fit()
        before = self.moves
        for seat in np.flatnonzero(self._own_ratios() > LADDER[-1]).tolist():
            self.vacate(int(self.holder[seat]))
        for _ in range(len(self.empty)):
            idle = self._idle()
            empty = self.used & (self.holder == NOBODY)
            if not len(idle) or not empty.any() or not self._seated(idle, empty, LADDER):
                break
        for _ in range(4):
            if not self._bettered(gain):
                break
        return self.moves - before

    def _fit(self) -> None:
        """As many entries as the crowd has rows."""
        short = len(self._crowd) - len(self.seat_of)
        if short > 0:
            self.seat_of = np.concatenate([self.seat_of, np.full(short, NOBODY)])

    def _idle(self) -> Ints:
        """Rows without a seat, the first of each kind of device: the others fit no other seats."""
        crowd = self._crowd
        rows = np.flatnonzero(crowd.used & crowd.known & (self.seat_of == NOBODY))
        return rows[np.sort(np.unique(crowd.like[rows], return_index=True)[1])]

    def _ratios(self, rows: Ints) -> Floats:
        """Ratios of ``rows`` on all seats, of shape (rows, seats)."""
        likes = self._crowd.like[rows].tolist()
        for like in likes:
            if like not in self._ratio_like:
                scaled = self._times(like)[self._weighty] / self._planned_s[self._weighty, None]
                self._ratio_like[like] = scaled.max(axis=0, initial=0.0).astype(np.float32)
        return np.stack([self._ratio_like[like] for like in likes])

    def _own_ratios(self) -> Floats:
        """The ratio of each seat with its holder; 0 where there is none."""
        scaled = (self.taken_s[self._weighty] / self._planned_s[self._weighty, None]).max(axis=0, initial=0.0)
        return np.where(self.holder >= 0, scaled, 0.0)

    def _bettered(self, gain: float) -> bool:
        """Whether the worst seat could be given to someone else at a ratio that is lower by ``gain``."""
        ratios = self._own_ratios()
        worst = int(ratios.argmax())
        steps = [step for step in LADDER if step <= (1 - gain) * ratios[worst]]
        idle = self._idle()
        if not steps or ratios[worst] <= 1 or not len(idle):
            return False
        wanted = np.zeros_like(self.used)
        wanted[worst] = True
        return self._seated(idle, wanted, steps)

    def _seated(self, idle: Ints, wanted: Bools, steps: tuple[float, ...] | list[float]) -> bool:
        """Fill one of the ``wanted`` seats by the cheapest chain that starts with one of ``idle``."""
        for most in steps:
            chain = self._chain(idle, wanted, most)
            if chain:
                for row, seat in chain:
                    self._sit(row, seat)
                return True
        return False

    def _chain(self, idle: Ints, wanted: Bools, most: float) -> list[tuple[int, int]]:
        """Who sits down where, so that one of ``wanted`` is filled and no ratio is above ``most``; empty when there is none."""
        reached = ~self.used
        by = np.full(len(self.used), NOBODY)
        rows = idle
        for _ in range(CHAIN):
            open_seats = np.flatnonzero(~reached)
            fits = self._ratios(rows)[:, open_seats] <= most
            found = fits.any(axis=0)
            new = open_seats[found]
            by[new] = rows[fits[:, found].argmax(axis=0)]
            reached[new] = True
            goals = new[wanted[new]]
            if len(goals):
                return self._back(int(goals[0]), by)
            rows = self.holder[new]
            rows = rows[(rows >= 0)]
            rows = rows[self._crowd.known[rows]]
            if not len(rows):
                return []
        return []

    def _back(self, seat: int, by: Ints) -> list[tuple[int, int]]:
        chain = []
        while True:
            row = int(by[seat])
            chain.append((row, seat))
            seat = int(self.seat_of[row])
            if seat == NOBODY:
                return chain

    def _sit(self, row: int, seat: int) -> None:
        """``row`` leaves its seat, if it has one, and takes ``seat`` from whoever has it."""
        left, before = int(self.seat_of[row]), int(self.holder[seat])
        if left != NOBODY and self.holder[left] == row:
            self.holder[left] = NOBODY
            self.taken_s[:, left] = 0.0
        if before != NOBODY and self.seat_of[before] == seat:
            self.seat_of[before] = NOBODY
        self.holder[seat], self.seat_of[row] = row, seat
        self.taken_s[:, seat] = self._times(int(self._crowd.like[row]))[:, seat]
        self.moves += 1
