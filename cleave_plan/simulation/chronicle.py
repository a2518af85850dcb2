"""What happened when in a simulation of devices that come and go: the first entries of it, for a trace.

A day of a thousand devices has hundreds of thousands of levels, changes and recoveries; memory must not grow with them. So the
first ``MOST_ENTRIES`` are kept, and of the later ones their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_ENTRIES = 100_000

BATCHES, LEVELS, OPERATORS, RECOVERIES, SETTLED = "batches", "levels", "server operators", "recoveries", "settled"
"""Tracks; each kind of change has one of its own besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What lasted from ``start_s`` to ``stop_s`` (None: it happened at once), its track in a trace, and its details."""

    track: str
    name: str
    start_s: float
    stop_s: float | None
    details: Mapping[str, float | str] = field(default_factory=dict)


class Chronicle:
    """The first ``most`` entries, and how many were ``left_out`` after them."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self.entries: list[Span] = []
        self.left_out = 0

    def add(self, track: str, name: str, start_s: float, stop_s: float | None = None, **details: float | str) -> None:
        """Something happened."""
        if len(self.entries) < self._most:
            self.entries.append(Span(track=track, name=name, start_s=start_s, stop_s=stop_s, details=details))
        else:
            self.left_out += 1
