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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cleave_plan.simulation.crowd import NOBODY, Bools, Crowd, Floats, Ints
from cleave_plan.simulation.seatwork import SeatWork

WEIGHTY = 0.01
"""Share of the batch that a kind of level takes at the least to count."""

CHAIN = 16
WIDTH = 256
"""Rows that one step of the search for a chain looks at, by lot, always the same first: in a crowd of thousands these do."""

LADDER = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)
"""Ratios that are tried, from the cheapest; beyond the last one the tiles are better cut over many."""


class Seats:
    """``holder``: the row on each seat, or NOBODY; ``taken_s``: of shape (kinds, seats), what a level's seat takes its holder at
    factor 1; ``moves``: how often someone sat down."""

    def __init__(self, crowd: Crowd, kinds: Sequence[SeatWork], count: Ints) -> None:
        """``kinds`` of levels, and how many levels there are of each (``count``)."""
        self._crowd, self._kinds = crowd, kinds
        self.taken_s = np.stack([kind.own_seconds() for kind in kinds])
        self.used = self.taken_s.max(axis=0) > 0
        self.holder = np.where(self.used, np.arange(len(crowd)), NOBODY)
        self.seat_of = self.holder.copy()
        self._planned_s = np.array([kind.planned_s for kind in kinds])
        total = self._planned_s * count
        self._weighty = (self._planned_s > 0) & (total >= WEIGHTY * total.sum())
        self._lot = np.random.default_rng(0).permutation(len(crowd))
        self._rungs_like: dict[int, NDArray[np.uint8]] = {}
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
            if not len(idle) or not empty.any() or not self._seated(idle, empty):
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

    def _rungs(self, row: int) -> NDArray[np.uint8]:
        """For each seat the first rung of the ladder that is not below ``row``'s ratio on it; ``len(LADDER)`` where none is."""
        like = int(self._crowd.like[row])
        if like not in self._rungs_like:
            ratios = np.zeros(len(self.used))
            for place in np.flatnonzero(self._weighty).tolist():
                ratios = np.maximum(ratios, self._kinds[place].seconds_on(like) / self._planned_s[place])
            near = ratios.astype(np.float32)  # a ratio of 1 but for rounding is 1
            self._rungs_like[like] = np.searchsorted(np.array(LADDER, dtype=np.float32), near).astype(np.uint8)
        return self._rungs_like[like]

    def _own_ratios(self) -> Floats:
        """The ratio of each seat with its holder; 0 where there is none."""
        scaled = (self.taken_s[self._weighty] / self._planned_s[self._weighty, None]).max(axis=0, initial=0.0)
        return np.where(self.holder >= 0, scaled, 0.0)

    def _bettered(self, gain: float) -> bool:
        """Whether the worst seat could be given to someone else at a ratio that is lower by ``gain``."""
        ratios = self._own_ratios()
        worst = int(ratios.argmax())
        rungs = sum(step <= (1 - gain) * ratios[worst] for step in LADDER)
        idle = self._idle()
        if not rungs or ratios[worst] <= 1 or not len(idle):
            return False
        wanted = np.zeros_like(self.used)
        wanted[worst] = True
        return self._seated(idle, wanted, rungs)

    def _seated(self, idle: Ints, wanted: Bools, rungs: int = len(LADDER)) -> bool:
        """Fill one of the ``wanted`` seats by the cheapest chain that starts with one of ``idle``, of the lowest ``rungs``."""
        if not self._chain(idle, wanted, rungs - 1):  # what the highest does not reach no other does
            return False
        chain = next(found for found in (self._chain(idle, wanted, rung) for rung in range(rungs)) if found)
        for row, seat in chain:
            self._sit(row, seat)
        return True

    def _chain(self, idle: Ints, wanted: Bools, rung: int) -> list[tuple[int, int]]:
        """Who sits down where, so that one of ``wanted`` is filled and no ratio is above the ladder's ``rung``; empty when there
        is none. Breadth first; a seat is reached by the first row that fits."""
        unreached = self.used.copy()
        goals = np.flatnonzero(wanted & unreached)
        by = np.full(len(unreached), NOBODY)
        rows = self._drawn(idle)
        for _ in range(CHAIN):
            fits = np.stack([self._rungs(row)[goals] for row in rows]) <= rung
            at = np.flatnonzero(fits.any(axis=0))
            if len(at):
                by[goals[at[0]]] = rows[int(fits[:, at[0]].argmax())]
                return self._back(int(goals[at[0]]), by)
            before = unreached.copy()
            for row in rows:
                new = (self._rungs(row) <= rung) & unreached
                if new.any():
                    by[new] = row
                    unreached &= ~new
            holders = self.holder[before & ~unreached]
            holders = holders[holders >= 0]
            rows = self._drawn(holders[self._crowd.known[holders]])
            if not rows:
                return []
        return []

    def _drawn(self, rows: Ints) -> list[int]:
        """``rows``, or ``WIDTH`` of them: those like the first of the fleet's devices in the order of the lot."""
        if len(rows) > WIDTH:
            first = np.argpartition(self._lot[self._crowd.like[rows]], WIDTH)[:WIDTH]
            rows = rows[np.sort(first)]
        return [int(row) for row in rows]

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
        like = int(self._crowd.like[row])
        self.taken_s[:, seat] = [kind.seconds(seat, like) for kind in self._kinds]
        self.moves += 1
