"""From GEMM timings to a FLOP/s figure and the share of it that smaller tiles reach.

For one element type, let R(f) be the best median FLOP/s over the measured shapes of f FLOP. The curve is the least
non-decreasing function above R (its running maximum), divided by the largest R, which is the figure itself:

    figure = max R        share(f) = max over f' <= f of R(f') / figure

An envelope from above, because a lower bound computed from it must never promise less than the machine can do; dips
between sizes are the shapes' (thin ones) or noise. Timings themselves stay in the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cleave_plan.fleet.device import EfficiencyPoint
from cleave_plan.profiles.records import GemmMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """FLOP/s on the best tile, and the shares by FLOP (rising in both, the last share 1)."""

    flop_per_s: float
    points: tuple[EfficiencyPoint, ...]


def fit_curves(gemms: Iterable[GemmMeasurement]) -> dict[str, FittedCurve]:
    """One curve per element type that was measured, in order of its name."""
    best: dict[str, dict[int, float]] = {}
    for gemm in gemms:
        rates = best.setdefault(gemm.dtype, {})
        rates[gemm.flop] = max(gemm.flop_per_s, rates.get(gemm.flop, 0.0))
    return {dtype: _envelope(best[dtype]) for dtype in sorted(best)}


def _envelope(rates: dict[int, float]) -> FittedCurve:
    figure = max(rates.values())
    points, reached = [], 0.0
    for flop in sorted(rates):
        reached = max(reached, rates[flop])
        points.append(EfficiencyPoint(flop=float(flop), fraction=reached / figure))
    return FittedCurve(flop_per_s=figure, points=tuple(points))
