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

from cleave_plan.fleet.device import EfficiencyPoint, Spread
from cleave_plan.profiles.records import GemmMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """FLOP/s on the best tile with the quartiles of its samples, and the shares by FLOP (rising in both, the last share 1)."""

    flop_per_s: float
    points: tuple[EfficiencyPoint, ...]
    spread: Spread


def fit_curves(gemms: Iterable[GemmMeasurement]) -> dict[str, FittedCurve]:
    """One curve per element type that was measured, in order of its name."""
    best: dict[str, dict[int, GemmMeasurement]] = {}
    for gemm in gemms:
        rates = best.setdefault(gemm.dtype, {})
        if gemm.flop not in rates or gemm.flop_per_s > rates[gemm.flop].flop_per_s:
            rates[gemm.flop] = gemm
    return {dtype: _envelope(best[dtype]) for dtype in sorted(best)}


def _envelope(rates: dict[int, GemmMeasurement]) -> FittedCurve:
    fastest = max(rates.values(), key=lambda gemm: gemm.flop_per_s)
    points, reached = [], 0.0
    for flop in sorted(rates):
        reached = max(reached, rates[flop].flop_per_s)
        points.append(EfficiencyPoint(flop=float(flop), fraction=reached / fastest.flop_per_s))
    spread = Spread(
        lower=fastest.flop / fastest.upper_quartile_s, upper=fastest.flop / fastest.lower_quartile_s, samples=fastest.repeats
    )
    return FittedCurve(flop_per_s=fastest.flop_per_s, points=tuple(points), spread=spread)
