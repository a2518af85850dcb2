"""Levels that do not end: where devices live too short for what they are given, a simulation says so instead of going on.

Whoever fails with work in hand has it cut anew over others, who may fail too, or have failed already without anyone knowing. That
can go on without end where lives are short beside a level or beside the time until a failure is noticed. So each level (with the
time since the one before it) may ask for so much and no more:

    changes:              LEAST_CHANGES + 200 * devices     who joins, goes or becomes slow
    lost tiles cut anew:  LEAST_TILES + 4 * devices         with lives of 30 minutes and levels of a second: one
    gone unnoticed:       LEAST_UNNOTICED + 10 * devices    at a time: ten of eleven that a tile can be given to are not there

A level that nobody can go on with, and nobody will join, does not end either (:func:`nobody_can`).
"""

from __future__ import annotations

from cleave_plan.errors import InfeasibleError
from cleave_plan.units import Unit, count, format_value, plural
from cleave_plan.workload.gemm import Gemm

LEAST_CHANGES, CHANGES = 20_000, 200
LEAST_TILES, TILES = 2_000, 4
LEAST_UNNOTICED, UNNOTICED = 1_000, 10


def nobody_can(gemm: Gemm, tiles: int, whose: str) -> InfeasibleError:
    """What to say when ``tiles`` of ``gemm`` fit nobody who is there, and nobody joins any more."""
    return InfeasibleError(
        f"no device that is there can take {plural(tiles, 'tile')} of {whose}, and none joins later", where=f"GEMM {gemm.name}",
        facts={"gemm": gemm.name, "unit": "tile", "left": tiles}, remedy="plan for a fleet with a reserve, or let devices join",
    )  # fmt: skip


class Effort:
    """What a level has asked for so far; ``devices`` of the fleet."""

    def __init__(self, devices: int) -> None:
        self._most_changes, self._most_tiles = LEAST_CHANGES + CHANGES * devices, LEAST_TILES + TILES * devices
        self._most_unnoticed = LEAST_UNNOTICED + UNNOTICED * devices
        self._where, self._begun_s, self._planned_s = "", 0.0, 0.0
        self._changes = self._tiles = 0

    def begin(self, where: str, now_s: float, planned_s: float) -> None:
        """The time before a level, planned to take ``planned_s``, begins at ``now_s``."""
        self._where, self._begun_s, self._planned_s = where, now_s, planned_s
        self._changes = self._tiles = 0

    def change(self, now_s: float, unnoticed: int) -> None:
        """A device comes, goes or becomes slow; raises InfeasibleError when that is one too many, or when too many are gone
        ``unnoticed``."""
        self._changes += 1
        if unnoticed > self._most_unnoticed:
            raise self._hopeless(f"{count(unnoticed)} devices are gone without anyone having noticed", now_s)
        if self._changes > self._most_changes:
            raise self._hopeless(f"devices came, went or became slow {count(self._changes)} times in it", now_s)

    def loss(self, tiles: int, now_s: float) -> None:
        """So many ``tiles`` were lost and are cut anew; raises InfeasibleError when those are too many."""
        self._tiles += tiles
        if self._tiles > self._most_tiles:
            raise self._hopeless(f"{count(self._tiles)} tiles were lost in it, among them pieces of others", now_s)

    def _hopeless(self, what: str, now_s: float) -> InfeasibleError:
        took, planned = (format_value(seconds, Unit.SECONDS) for seconds in (now_s - self._begun_s, self._planned_s))
        facts: dict[str, object] = {
            "unit": "second", "planned_s": self._planned_s, "seconds": now_s - self._begun_s, "changes": self._changes,
            "tiles": self._tiles,
        }  # fmt: skip
        return InfeasibleError(
            f"a level planned to take {planned} is not done after {took}: {what}", where=self._where, facts=facts,
            expected="devices that live longer than a level takes, and longer than --detect",
            remedy="let fewer come and go, or notice failures earlier",
        )  # fmt: skip
