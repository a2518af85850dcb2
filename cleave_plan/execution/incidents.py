"""What went wrong in a run, or came to help: noticed when, what moved, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

Key = tuple[int, int]
"""A tile: its job and its number."""


class Kind(StrEnum):
    """``LOST``: devices are gone; ``WRONG``: one returned a tile that is not right, and was excluded; ``LATE``: one is past its
    deadline, and others compute its tiles too; ``JOINED``: devices came late."""

    LOST = "lost"
    WRONG = "wrong"
    LATE = "late"
    JOINED = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that happened to devices in the middle of a run, and what became of their tiles.

    ``tiles`` unfinished (or wrong) ones were cut into ``pieces`` for ``takers`` other devices, which took ``replan_s`` seconds to
    decide; ``recovery_s`` after it was noticed the last of them was there (None: nothing moved). ``at_s``: when it was noticed,
    seconds since the batch began; ``silent_s``: how long before that the devices were last heard of in this level, or it began.
    ``level``: which level ran, from 0; ``where`` and ``reason``: what was seen.
    """

    kind: Kind
    devices: tuple[str, ...]
    level: int
    at_s: float
    silent_s: float = 0.0
    tiles: int = 0
    pieces: int = 0
    takers: int = 0
    replan_s: float = 0.0
    recovery_s: float | None = None
    where: str
    reason: str


class Journal:
    """The incidents of one batch; each is complete when all pieces that it moved are there."""

    def __init__(self) -> None:
        self._incidents: list[Incident] = []
        self._pending: list[set[Key]] = []

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """In the order in which they were noticed."""
        return tuple(self._incidents)

    def note(self, incident: Incident, pieces: Iterable[Key] = ()) -> None:
        """Write an incident down, whose ``pieces`` are to be computed."""
        self._incidents.append(incident)
        self._pending.append(set(pieces))

    def moved(self, tile: Key, pieces: Iterable[Key]) -> None:
        """Whoever waits for ``tile`` waits for its ``pieces`` now."""
        new = set(pieces)
        for pending in self._pending:
            if tile in pending:
                pending.remove(tile)
                pending |= new

    def done(self, tile: Key, at_s: float) -> None:
        """A tile is there, ``at_s`` seconds after the batch began."""
        for place, pending in enumerate(self._pending):
            if tile in pending:
                pending.remove(tile)
                if not pending:
                    incident = self._incidents[place]
                    self._incidents[place] = replace(incident, recovery_s=at_s - incident.at_s)
