"""What happened when, in virtual time or on a clock, for a trace: the first entries of it.

A day of a thousand simulated devices has hundreds of thousands of levels, changes and recoveries, and so have the tiles of a
training run; memory must not grow with them. So the first ``MOST_ENTRIES`` are kept, and of the later ones their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MOST_ENTRIES = 100_000

STEPS, BATCHES, LEVELS, OPERATORS, OPTIMIZER = "steps", "batches", "levels", "server operators", "optimizer"
RECOVERIES, SETTLED, REPLANS, CHECKPOINTS = "recoveries", "settled", "re-plans", "checkpoints"
"""Tracks; each device has one besides, or in a simulation of devices that come and go each kind of change."""

INCIDENT = "incident "
"""How the track of an incident begins: each has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What lasted from ``start_s`` to ``stop_s`` (None: it happened at once), its track in a trace, and its details."""

    track: str
    name: str
    start_s: float
    stop_s: float | None
    details: Mapping[str, float | str] = field(default_factory=dict)


class Chronicle:
    """The first ``most`` entries, and how many were ``left_out`` after them (not counted where nothing is kept)."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self.entries: list[Span] = []
        self.left_out = 0

    def add(self, track: str, name: str, start_s: float, stop_s: float | None = None, **details: float | str) -> None:
        """Something happened."""
        if self._most:
            self.take((Span(track=track, name=name, start_s=start_s, stop_s=stop_s, details=details),))

    def take(self, spans: Iterable[Span]) -> None:
        """All that happened in ``spans``; they are not even made where nothing is kept."""
        for span in spans if self._most else ():
            if len(self.entries) < self._most:
                self.entries.append(span)
            else:
                self.left_out += 1
