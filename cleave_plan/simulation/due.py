"""When work that a row was sent will be there, and when it is late (:mod:`cleave_plan.cost.lateness`): by the least spread that a
run assumes."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from cleave_plan.cost.lateness import margin
from cleave_plan.simulation.crowd import Crowd, Floats

MARGIN = margin()

Seconds = TypeVar("Seconds", float, Floats)
"""Of one row, or of all of them."""


def due(sent_s: float, seconds: Seconds, grace_s: float, level: float = 1.0) -> Seconds:
    """When work of ``seconds`` (at factor 1) that was sent at ``sent_s`` is late; ``level``: the factor of its level."""
    return sent_s + level * MARGIN * seconds + grace_s


def expected(crowd: Crowd, start_s: float, busy_s: Floats, grace_s: float) -> tuple[Floats, Floats]:
    """When each row will be done with ``busy_s`` seconds (at factor 1) of work sent at ``start_s``, and when it is late; 0 for
    those that have none."""
    given = busy_s > 0
    done = np.where(given, np.maximum(start_s, crowd.until_s) + busy_s * crowd.factor, 0.0)
    return done, np.where(given, due(start_s, busy_s, grace_s), 0.0)
