r"""When a device is late: the rule that a run goes by and that the simulator plays.

Predicted times hold up to a spread s (of their logarithm). A device that was sent work of w predicted seconds at t is late at

    t + f * w * exp(4 s) + GRACE_S

The factor f is how many times as long as predicted the level takes its devices: 1 until half of them are done, ``LEAST_DONE`` at
the least, then the lower median over all of them (:func:`level_factor`). What slows most of a level down says nothing of one
that is still out.

In a run w is scaled by the device's pace so far, and s is what these figures were off by before
(:mod:`cleave_plan.execution.watch`). The simulator (:mod:`cleave_plan.simulation.disturbed`) knows predicted times only, and the
least spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_SPREAD, MOST_SPREAD = 0.25, 0.75
"""Of predictions that always held, and of those that never did."""

DEVIATIONS = 4.0
"""Spreads by which a device may be off before it is late."""

GRACE_S = 0.25
"""Seconds that nobody minds: what a busy machine may take to let a process run."""

LEAST_DONE = 3
"""Devices of a level that say how fast it goes."""

PATIENCE = 3
"""Levels running in which others have to help a device before it is given up."""


def margin(spread: float = LEAST_SPREAD) -> float:
    """The multiple of its predicted time that a device may take, where predictions hold up to ``spread``."""
    return math.exp(DEVIATIONS * min(max(spread, LEAST_SPREAD), MOST_SPREAD))


def level_factor(offs: Sequence[float], devices: int) -> float | None:
    """How many times as long as expected a level takes its ``devices``, by the lower median over all of them, done or not.

    ``offs``: the logarithm of that for each device that is done. None as long as too few are.
    """
    middle = (devices - 1) // 2
    return math.exp(sorted(offs)[middle]) if len(offs) >= max(LEAST_DONE, middle + 1) else None
