r"""Lower bounds: no tiling without inner splits can be faster, whatever its geometry.

One GEMM, one device (planning.md section 2). A device that works t seconds (latency already taken off) on one tile of
r rows and c columns has

    r*R + c*Q <= S = t*d         (R, Q bytes of a row and a column)
    r*c <= U = t*min(u/b_out, F/(2K))
    r <= M, c <= N, and one operand fits the memory:  r*R <= m'  or  c*Q <= m'  or  r*c*b_acc <= m'   (m' = 0.9*m)

Each of the three memory cases is a box r <= R_j, c <= C_j (the third an area cap), and in it the largest area is the
square (in bytes) or the strip along the side that is hit: :func:`_box_area`. As a function of t each is convex and then
constant, so area per second is greatest at the moment tau_j when the case is full, and for any number of tiles

    a(t) = max( max_j A_j(t),  max_{j: tau_j <= t} t * A_j(tau_j) / tau_j )

is an upper bound of the area that the device covers (all latencies but the first left out). ``T* = min{T : sum_i
a_i(T - l_i) + server(T) >= items*M*N}`` follows by bisection, and the returned end of the bracket is the infeasible one.

Items that cannot be cut (one row, one column, whole depth: a chain without rows) are done whole: floor(a_i), one GEMM by itself.

Server links: area per operand byte of a tile grows with the tile, so a device that covers x <= a_i takes at least
x / e_i bytes, e_i = A / (least bytes for A) of its largest tile. The most area for E*T bytes of egress is a fractional
knapsack by e_i; the results received are at least b_out bytes an element.

Levels with several GEMMs: :mod:`cleave_plan.planning.level`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.bands import HUGE
from cleave_plan.planning.roots import latest_short
from cleave_plan.planning.terms import Terms

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What the servers offer together: bytes/s out and in, FLOP/s for GEMMs (0 where they may not compute), and partial sums/s
    that they can add (infinite where nobody asks)."""

    egress: float
    ingress: float
    flop_per_s: float
    sums_per_s: float = np.inf


FREE = Links(egress=np.inf, ingress=np.inf, flop_per_s=0.0)
"""Servers whose links hold nobody up, and that compute nothing."""


def _box_area(terms: Terms, operand: Floats, rows: Floats, columns: Floats) -> Floats:
    """Largest r*c with r*R + c*Q <= operand, r <= rows, c <= columns."""
    row, col = terms.bound_row_bytes, terms.col_bytes
    r = np.minimum(operand / (2 * row), rows)
    c = np.minimum((operand - r * row) / col, columns)
    r = np.minimum((operand - c * col) / row, rows)
    area: Floats = np.maximum(r * c, 0.0)
    return area


def _least_operand(terms: Terms, area: Floats, rows: Floats, columns: Floats) -> Floats:
    """Least r*R + c*Q with r*c = area, r <= rows, c <= columns."""
    row, col = terms.bound_row_bytes, terms.col_bytes
    r = np.clip(np.sqrt(area * col / row), area / np.maximum(columns, 1e-300), rows)
    return np.where(area > 0, r * row + area / np.maximum(r, 1e-300) * col, 0.0)


def _memory_cases(terms: Terms, devices: DeviceColumns) -> list[tuple[Floats, Floats, Floats]]:
    """``(rows, columns, area)`` caps of the three cases: A kept, B kept, C kept."""
    kept = (1 - STREAM_SHARE) * devices.memory
    m, n = np.full(len(devices), float(terms.bound_rows)), np.full(len(devices), float(terms.columns))
    a_rows = np.minimum(m, kept / terms.bound_row_bytes)
    b_columns = np.minimum(n, kept / terms.col_bytes)
    return [(a_rows, n, a_rows * n), (m, b_columns, m * b_columns), (m, n, np.minimum(m * n, kept / terms.accumulator_bytes))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """``area(T)``, ``efficiency(T)`` (area per operand byte) and ``operand(T)`` (least bytes for one tile of that area)
    of every device, for one GEMM."""

    area: Callable[[float], Floats]
    efficiency: Callable[[float], Floats]
    operand: Callable[[float], Floats]


def capacity(terms: Terms, devices: DeviceColumns) -> Capacity:
    """The bound's capacity functions of all devices for ``terms`` (see the module's mathematics)."""
    cases = _memory_cases(terms, devices)
    per_second = np.minimum(devices.uplink / terms.out_bytes, devices.best_rate / terms.flop)
    full = [np.maximum(_least_operand(terms, cap, r, c) / devices.downlink, cap / per_second) for r, c, cap in cases]

    def single(t: Floats) -> list[Floats]:
        operand, limit = t * devices.downlink, t * per_second
        return [np.minimum(np.minimum(_box_area(terms, operand, r, c), cap), limit) for r, c, cap in cases]

    def area(T: float) -> Floats:
        t = np.maximum(T - devices.latency, 0.0)
        best = np.max(single(t), axis=0)
        for (_, _, cap), tau in zip(cases, full, strict=True):
            best = np.where(tau <= t, np.maximum(best, t * cap / np.maximum(tau, 1e-300)), best)
        return np.asarray(best)

    def least(T: float) -> tuple[list[Floats], list[Floats]]:
        reached = single(np.maximum(T - devices.latency, 0.0))
        return reached, [_least_operand(terms, own, r, c) for own, (r, c, _) in zip(reached, cases, strict=True)]

    def efficiency(T: float) -> Floats:
        return np.asarray(np.max([own / np.maximum(need, 1e-300) for own, need in zip(*least(T), strict=True)], axis=0))

    def operand(T: float) -> Floats:
        reached, need = (np.array(rows) for rows in least(T))
        return np.asarray(np.take_along_axis(need, reached.argmax(axis=0)[None], axis=0)[0])

    return Capacity(area=area, efficiency=efficiency, operand=operand)


def bisect_infeasible(feasible: Callable[[float], bool], start: float, tolerance: float = 1e-10) -> float:
    """The largest T known to be infeasible (relative ``tolerance``); ``start`` > 0 is any guess."""
    low, high = 0.0, start
    while not feasible(high):
        low, high = high, high * 2
        if high > 1e30:
            return high
    while high - low > tolerance * high:
        if low == 0.0 and high < 1e-30:
            return 0.0
        middle = high / 4 if low == 0.0 else (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return low


def gemm_bound(terms: Terms, devices: DeviceColumns, links: Links) -> float:
    """Seconds that one GEMM (all its items) takes at least, by ideal cost."""
    size = float(terms.items) * terms.bound_rows * terms.columns
    if size == 0:
        return 0.0
    able = capacity(terms, devices)

    uncut = terms.area == 1 and terms.whole_depth  # devices do whole items only

    def done(T: float) -> float:
        area = np.floor(able.area(T) * (1 + 1e-12)) if uncut else able.area(T)
        most = min(float(area.sum()), links.ingress * T / terms.out_bytes)
        if np.isfinite(links.egress):
            most = min(most, covered(area, able.efficiency(T), links.egress * T))
        return (most + links.flop_per_s * T / terms.flop) / size

    return latest_short(done, 1.0, tolerance(len(devices)))


def tolerance(devices: int) -> float:
    """What a bound may lose, relative; more in huge fleets, where each look at one T takes long."""
    return 1e-10 if devices < HUGE else 1e-5


def covered(area: Floats, efficiency: Floats, budget: float) -> float:
    """Fractional knapsack: the most area (or volume) that ``budget`` operand bytes buy."""
    order = np.argsort(-efficiency, kind="stable")
    own, ratio = area[order], np.maximum(efficiency[order], 1e-300)
    spent = np.cumsum(own / ratio)
    whole = int(np.searchsorted(spent, budget, side="right"))
    covered = float(own[:whole].sum())
    if whole < len(own):
        left = budget - (float(spent[whole - 1]) if whole else 0.0)
        covered += left * float(ratio[whole])
    return covered
