"""Rows that are late in a level are helped: idle ones compute what they owe, too, and the first answer counts.

A row is late by the rule of runs (:mod:`cleave_plan.cost.lateness`). Copies of its tiles go whole to rows that have nothing to
do; it goes on itself with what others have done by then, in the next level too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cleave_plan.cost.lateness import level_factor
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.simulation.crowd import Columns, Crowd
from cleave_plan.simulation.due import due
from cleave_plan.simulation.inhand import InHand, Timed
from cleave_plan.simulation.losses import Losses
from cleave_plan.simulation.notices import Notices
from cleave_plan.workload.gemm import Gemm


@dataclass(kw_only=True)
class Latecomers:
    """``helped``: the rows of a level that others had to help."""

    crowd: Crowd
    parts: Sequence[Gemm]
    columns: Columns
    grace_s: float
    hand: InHand
    notices: Notices
    losses: Losses
    helped: set[int] = field(default_factory=set)
    _alone: set[int] = field(default_factory=set)

    def watch(self, row: int, now_s: float) -> None:
        """A row that will not be done when it is due is late then."""
        late_s = self.hand.late_s(row)
        if row not in self.helped and self.hand.done_s[row] > late_s:
            self.notices.look_at(row, max(late_s, now_s))

    def look_at(self, row: int, now_s: float) -> None:
        """What ``row`` owes at ``now_s`` is given to idle rows, too, as soon as there are any; the first answer counts."""
        crowd, hand = self.crowd, self.hand
        if row in self.helped or hand.until(row) <= now_s:
            return
        self._alone.discard(row)
        late_s = self._late_s(row, now_s)
        if now_s < late_s:  # it was sent more since, or the level takes most devices longer
            self.notices.look_at(row, late_s)
            return
        able = np.flatnonzero(crowd.used & crowd.known & crowd.alive & (np.arange(len(crowd)) != row))
        free_s = hand.free_s()[able]
        idle = able[free_s <= now_s].tolist()
        if not idle:
            self._alone.add(row)
            if len(able):
                self.notices.look_at(row, float(free_s.min()))
            return
        self.helped.add(row)
        work = hand.tasks(row, float(crowd.factor[row]))
        owed = [(end, task) for end, task in work if end > now_s]
        kept = [*((end, task) for end, task in work if end <= now_s), *self._copied(owed, idle, now_s)]
        hand.replace(row, kept, max((end for end, _ in kept), default=now_s))
        crowd.until_s[row] = max(end for end, _ in owed)

    def joined(self, now_s: float) -> None:
        """Somebody has come, who has nothing to do: rows that are late, and that nobody could help, are looked at again."""
        for row in sorted(self._alone):
            if self.crowd.alive[row]:
                self.notices.look_at(row, now_s)

    def _late_s(self, row: int, now_s: float) -> float:
        """When ``row`` is late, by what the level takes those who are done by ``now_s``."""
        hand = self.hand
        given = (hand.load_s > 0) & self.crowd.known[: len(hand.load_s)]
        done = given & (hand.done_s <= now_s) & (hand.done_s > hand.sent_s)
        done[[*self.helped, *self.notices.lost]] = False  # others were in their place, or nobody was
        offs = np.log((hand.done_s[done] - hand.sent_s[done]) / hand.load_s[done])
        factor = level_factor(offs.tolist(), int(np.count_nonzero(given)))
        return hand.late_s(row, factor or 1.0)

    def _copied(self, owed: Sequence[Timed], idle: Sequence[int], now_s: float) -> list[Timed]:
        """Copies of ``owed`` tiles, with when they will be there, go to the ``idle`` row with the least of them each; those that
        the copies will not be faster with."""
        crowd, hand, kept = self.crowd, self.hand, []
        load, sent_s, end_s = dict.fromkeys(idle, 0.0), dict.fromkeys(idle, 0.0), dict.fromkeys(idle, now_s)
        given: dict[int, list[tuple[float, Timed]]] = {}
        for own_s, task in owed:
            row, gemm = min(load, key=lambda one: load[one]), self.parts[task.part]
            copy = Tiles.of([(row, *task.box)])
            seconds = float(price(gemm, copy, self.columns(gemm.dtype)).executed_s[0])
            load[row], sent_s[row] = load[row] + task.macs, sent_s[row] + seconds
            end_s[row] += seconds * float(crowd.factor[row])
            given.setdefault(row, []).append((own_s, (end_s[row], replace(task, seconds=seconds))))
            self.losses.copied(task)
        for row, copies in given.items():
            due_s = due(now_s, sent_s[row], self.grace_s)
            mine = hand.tasks(row, float(crowd.factor[row]))
            for own_s, (copy_s, task) in copies:
                if own_s <= min(copy_s, due_s):
                    kept.append((own_s, task))
                else:
                    mine.append((copy_s, task))
                    hand.done_s[row] = max(hand.done_s[row], copy_s)
            hand.sent_s[row], hand.load_s[row] = now_s, sent_s[row]
            self.watch(row, now_s)
        return kept
