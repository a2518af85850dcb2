r"""When a device is late: the rule that a run goes by and that the simulator plays.

Predicted times hold up to a spread s (of their logarithm). A device that was sent work of w predicted seconds at t is late at

    t + w * exp(4 s) + GRACE_S

In a run w is scaled by the device's pace so far, and by that of the level's other devices, and s is what these were off by before
(:mod:`cleave_plan.execution.watch`); the simulator knows no better than the least spread.
"""

from __future__ import annotations

import math

LEAST_SPREAD, MOST_SPREAD = 0.25, 0.75
"""Of predictions that always held, and of those that never did."""

DEVIATIONS = 4.0
"""Spreads by which a device may be off before it is late."""

GRACE_S = 0.25
"""Seconds that nobody minds: what a busy machine may take to let a process run."""

PATIENCE = 3
"""Levels running in which others have to help a device before it is given up."""


def margin(spread: float = LEAST_SPREAD) -> float:
    """The multiple of its predicted time that a device may take, where predictions hold up to ``spread``."""
    return math.exp(DEVIATIONS * min(max(spread, LEAST_SPREAD), MOST_SPREAD))
