"""What came out of batches during which devices came and went, and how it is counted on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cleave_plan.fleet.churn import Change
from cleave_plan.simulation.losses import Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRun:
    """What happened. ``seconds`` of virtual time that the whole ``batch_s`` took; ``planned_batch_s``: without churn.

    ``events``: how many of each kind; ``tiles`` were lost or late and became ``pieces``; ``redone``: share of all multiply-adds
    that these were; ``settled``: how often seats were settled, and ``moves`` how often someone sat down; ``empty``: mean
    number of seats that nobody sat on; ``unfinished``: levels that ended with anything missing (there are none); ``excluded``:
    devices that were late in level after level; ``waited_s``: seconds in which tiles waited for somebody who could take them.
    """

    batch_s: tuple[float, ...]
    planned_batch_s: float
    events: dict[str, int]
    tiles: int
    pieces: int
    redone: float
    settled: int
    moves: int
    empty: float
    unfinished: int
    excluded: int
    waited_s: float

    @property
    def seconds(self) -> float:
        """Virtual seconds of all batches."""
        return sum(self.batch_s)

    @property
    def efficiency(self) -> float:
        """Share of the pace without churn that was kept."""
        return len(self.batch_s) * self.planned_batch_s / self.seconds if self.batch_s and self.seconds else 0.0


@dataclass(slots=True)
class Tally:
    """Sums over all levels so far: of their multiply-adds, their losses, their empty seats."""

    events: Counter[str] = field(default_factory=Counter)
    losses: Losses = field(default_factory=Losses)
    macs: float = 0.0
    levels: int = 0
    empty: float = 0.0
    settled: int = 0
    unfinished: int = 0
    waited_s: float = 0.0

    def level(self, macs: float, empty: int) -> None:
        """A level of so many multiply-adds begins with so many ``empty`` seats."""
        self.levels, self.empty, self.macs = self.levels + 1, self.empty + empty, self.macs + macs

    def disturbed(self, losses: Losses, waited_s: float) -> None:
        """A level was disturbed, and has ended."""
        self.losses.tiles += losses.tiles
        self.losses.pieces += losses.pieces
        self.losses.redone += losses.redone
        self.waited_s += waited_s
        self.unfinished += losses.missing != 0

    def told(self, batch_s: tuple[float, ...], planned_batch_s: float, *, moves: int, excluded: int) -> ChurnRun:
        """All counts."""
        return ChurnRun(
            batch_s=batch_s, planned_batch_s=planned_batch_s, events={str(change): self.events[change] for change in Change},
            tiles=self.losses.tiles, pieces=self.losses.pieces, redone=self.losses.redone / self.macs if self.macs else 0.0,
            settled=self.settled, moves=moves, empty=self.empty / max(self.levels, 1), unfinished=self.unfinished,
            excluded=excluded, waited_s=self.waited_s,
        )  # fmt: skip
