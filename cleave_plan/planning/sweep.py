"""Plans along one axis (devices, servers, or a dimension of the model), and where more of it stops paying.

The knee is the smallest value that comes within ``NEAR`` of the best point: of its time where the axis is devices or
servers, of its throughput (value / batch time) where it is a size of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cleave_plan.errors import InfeasibleError
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import LevelReport, Plan
from cleave_plan.progress import Progress, silent
from cleave_plan.workload.graph import Workload

NEAR = 0.1
"""A point is as good as the best one when it loses less than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One value of the axis and its plan; None, with the reason, where no plan exists."""

    value: int
    plan: Plan | None
    reason: str = ""

    @property
    def binds(self) -> str:
        """What the levels wait for that take most of the batch: "device", "egress NAME", ..."""
        if self.plan is None or not self.plan.predicted.levels:
            return ""
        seconds: dict[str, float] = {}
        for level in self.plan.predicted.levels:
            kind = _kind(level)
            seconds[kind] = seconds.get(kind, 0.0) + level.count * level.executed_s
        return max(seconds, key=lambda kind: seconds[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points in rising order of ``over``; ``knee`` is one of their values (None when no point has a plan).

    ``throughput``: whether more of the axis is more work, so that value / time is what counts.
    """

    over: str
    throughput: bool
    points: tuple[SweepPoint, ...]
    knee: int | None

    @property
    def knee_plan(self) -> Plan | None:
        """The plan at the knee."""
        return next((point.plan for point in self.points if point.value == self.knee), None)


def sweep(
    over: str,
    values: Sequence[int],
    case: Callable[[int], tuple[Workload, Fleet]],
    plan: Callable[[Workload, Fleet], Plan],
    *,
    throughput: bool,
    progress: Progress = silent,
) -> Sweep:
    """A plan for each of ``values``: ``case`` gives workload and fleet, ``plan`` plans them; infeasible points are kept."""
    points: list[SweepPoint] = []
    for place, value in enumerate(sorted(set(values))):
        progress(place, len(set(values)), f"{over} = {value}")
        workload, fleet = case(value)
        try:
            points.append(SweepPoint(value=value, plan=plan(workload, fleet)))
        except InfeasibleError as error:
            points.append(SweepPoint(value=value, plan=None, reason=error.sentence()))
    progress(len(points), len(points), over)
    return Sweep(over=over, throughput=throughput, points=tuple(points), knee=_knee(points, throughput))


def _knee(points: Sequence[SweepPoint], throughput: bool) -> int | None:
    costs = {
        point.value: point.plan.predicted.batch_s / (point.value if throughput else 1)
        for point in points
        if point.plan is not None
    }
    best = min(costs.values(), default=0.0)
    return next((value for value, cost in costs.items() if cost * (1 - NEAR) <= best), None)


def _kind(level: LevelReport) -> str:
    """Devices are one kind: which of them binds is for the plan to say."""
    return "device" if level.binds.startswith("device ") else level.binds
