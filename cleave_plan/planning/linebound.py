r"""A tighter lower bound for exact tilings, by integrating along lines; it helps where few boxes fit along a side.

Take lines along one axis of the M x N x K block, of length L. An exact tiling cuts every line in lengths x_1 + x_2 + ... = L.
So if g >= 0 has

    g(x_1) + g(x_2) + ... >= 1     whenever x_1 + x_2 + ... = L                                   (1)

then integrating over all lines gives, with f the area of a box's face across the axis,

    sum over boxes of g(x)*f  >=  area of the block's face.

A box of length x that takes t seconds of device i has f <= f_i(x, t) below, and f_i(x, t)/t never falls with t; tiles follow
one another, so all of a device's boxes add at most W_i(T) = max_x g(x)*f_i(x, T - l), and the servers' work at most
V_s*max_x g(x)/x with V_s = F_s*T/2. T is impossible while sum_i W_i(T) + V_s*max g(x)/x < items * face. (The volume bound is
g(x) = x/L, which knows no lengths; where only a few boxes fit along a side, their lengths cannot all be the best one.)

Faces, with S = t*d, U = t*u/b_acc, P = t*F/2 (a, b: bytes of an element of A and B):

    along K   f = min(U, P/x, plane(S/x)),  plane(s): most r*c with a*r + b*c <= s, r <= M, c <= N, and past a full plane
              in proportion to s;  a box of whole depth also has K's own area a(t), by the storage's size, at g = 1
    along M   f = min(S*c/(a*x + b*c), P/x, K*U/x),  c = min(N, U/x)         (c*k, with k <= S/(a*x + b*c)); U by the smaller
    along N   the same with rows and columns exchanged                       of the two sizes of a result element

g is linear between the points j*L/n, g(0) = 0. Then (1) need only hold for lengths at those points: with two lengths off
them, one can grow as the other shrinks without raising the sum (linear), until at most one is off them, and then none is.
That is an unbounded knapsack, solved exactly. f falls with x and x^2*f grows, so between points x' < x'' we have
f <= min(f', f''*(x''/x)^2), and the maximum of g times that over the interval is known in closed form.

g is chosen by a linear program, minimising sum W_i at a T with (1) as knapsack cuts, over a sample of devices; whatever it
answers is scaled to satisfy (1) and evaluated for all devices, so the bound does not depend on the program being solved well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bounds import Links, bisect_infeasible, capacity
from cleave_plan.planning.terms import Terms
from cleave_plan.planning.volume import volume_bound

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POINTS = 96
"""Lengths along an axis between which g is linear."""

SAMPLE = 40
"""Devices that the linear program looks at."""

_CUT_ROUNDS, _ROUNDS = 40, 3
"""Programs solved with ever more cuts, and times at which g is chosen."""

_GAIN, _SHORT, _NEVER = 1e-5, 1e-4, 1e29
"""Gain worth another choice of g, how far short of 1 a sum is let pass (scaling mends it), seconds that mean "never"."""

_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """``faces(T)``: f of every device (rows) at the POINTS + 1 lengths; ``whole(T)``: faces of boxes that count 1."""

    lengths: Floats
    face: float
    faces: Callable[[float], Floats]
    whole: Callable[[float], Floats]


def line_bound(terms: Terms, devices: DeviceColumns, links: Links) -> float:
    """Seconds that one GEMM takes at least, by ideal cost, however it is cut: the best of lines along K, M and N.

    Never below :func:`~cleave_plan.planning.volume.volume_bound`; above it where few boxes fit along a side (64 devices on
    long K, whole-depth tiles beside bars). Takes seconds, so it is for reports, not for the search.
    """
    best = volume_bound(terms, devices, links)
    if terms.halo_bytes > 0 or best == 0 or best > _NEVER:
        return best
    for axis in (_along_k(terms, devices), _along_m(terms, devices), _along_m(terms.transposed(), devices)):
        for _ in range(_ROUNDS):
            found = _least_time(axis, _chosen(axis, devices, best, links), links, best)
            if found <= best * (1 + _GAIN):
                break
            best = found
    return best


def _least_time(axis: _Axis, g: Floats, links: Links, start: float) -> float:
    """The largest T that ``g`` shows to be impossible."""
    return bisect_infeasible(lambda T: _reached(axis, g, T, links) >= axis.face, start, 1e-7)


def _along_k(terms: Terms, devices: DeviceColumns) -> _Axis:
    lengths = np.linspace(0.0, terms.depth, POINTS + 1)
    a, b = terms.row_bytes / terms.depth, terms.col_bytes / terms.depth
    m, n = float(terms.rows), float(terms.columns)

    def faces(T: float) -> Floats:
        t, x = np.maximum(T - devices.latency, 0.0)[:, None], lengths[1:]
        s = t * devices.downlink[:, None] / x
        r = np.minimum(s / (2 * a), m)
        c = np.minimum((s - a * r) / b, n)
        r = np.minimum((s - b * c) / a, m)
        plane = np.where(s > a * m + b * n, m * n / (a * m + b * n) * s, r * c)
        results = t * devices.uplink[:, None] / terms.accumulator_bytes
        f = np.minimum(np.minimum(plane, results), t * devices.best_rate[:, None] / 2 / x)
        return np.concatenate([results, f], axis=1)

    return _Axis(lengths=lengths, face=float(terms.items) * m * n, faces=faces, whole=capacity(terms, devices).area)


def _along_m(terms: Terms, devices: DeviceColumns) -> _Axis:
    lengths = np.linspace(0.0, terms.rows, POINTS + 1)
    a, b = terms.row_bytes / terms.depth, terms.col_bytes / terms.depth
    size = min(terms.out_bytes, terms.accumulator_bytes)

    def faces(T: float) -> Floats:
        t, x = np.maximum(T - devices.latency, 0.0)[:, None], lengths[1:]
        results = t * devices.uplink[:, None] / size
        operand = t * devices.downlink[:, None]
        c = np.minimum(float(terms.columns), results / x)
        sent = operand * (c / (a * x + b * c))
        f = np.minimum(sent, np.minimum(t * devices.best_rate[:, None] / 2, terms.depth * results) / x)
        return np.concatenate([operand / b, f], axis=1)

    face = float(terms.items) * terms.columns * terms.depth
    return _Axis(lengths=lengths, face=face, faces=faces, whole=lambda T: np.zeros(len(devices)))


def _reached(axis: _Axis, g: Floats, T: float, links: Links) -> float:
    """sum_i W_i(T) and the servers' share; ``g`` at the points, g[0] = 0."""
    f, x = axis.faces(T), axis.lengths
    near, far, x0, x1 = f[:, :-1], f[:, 1:], x[:-1], x[1:]
    slope = np.diff(g) / np.diff(x)
    start = g[:-1] - slope * x0
    # Where the two limits of f meet; any other place between the points would do too.
    turn = np.clip(x1 * np.sqrt(far / np.maximum(near, _TINY)), np.maximum(x0, 1e-6 * x1), x1)
    level = near * np.maximum(g[:-1], start + slope * turn)
    beyond = far * (x1 / turn) ** 2 * (start + slope * turn)
    # g(x)/x^2 is largest beyond the turn at an end, or where its slope changes from up to down.
    peak = np.clip(np.where((slope > 0) & (start < 0), -2 * start / np.where(slope > 0, slope, 1.0), x1), turn, x1)
    beyond = np.maximum(beyond, far * (x1 / peak) ** 2 * (start + slope * peak))
    beyond = np.maximum(beyond, far * g[1:])
    best = np.maximum(np.maximum(level, beyond).max(axis=1), axis.whole(T))
    server = links.flop_per_s * T / 2 * float(np.max(g[1:] / x[1:]))
    return float(best.sum()) + server


def _cheapest(g: Floats) -> tuple[Floats, Ints]:
    """Least sum of g over lengths (in points) that add up to each total, and the last length taken."""
    least, last = np.zeros(POINTS + 1), np.zeros(POINTS + 1, dtype=np.int64)
    for total in range(1, POINTS + 1):
        sums = least[total - 1 :: -1][:total] + g[1 : total + 1]
        last[total] = int(sums.argmin()) + 1
        least[total] = sums[last[total] - 1]
    return least, last


def _parts(last: Ints, first: int) -> tuple[int, ...]:
    """How often each length is taken (places 1..POINTS) in the cheapest way to fill a line that holds ``first``."""
    taken = [0] * POINTS
    taken[first - 1] = 1
    rest = POINTS - first
    while rest:
        taken[last[rest] - 1] += 1
        rest -= int(last[rest])
    return tuple(taken)


def _chosen(axis: _Axis, devices: DeviceColumns, T: float, links: Links) -> Floats:
    """g for ``T``: the linear program with knapsack cuts, scaled to satisfy (1)."""
    order = np.argsort(devices.downlink * np.sqrt(devices.uplink), kind="stable")
    count = min(SAMPLE, len(order))
    sample = order[(np.arange(count) * len(order)) // count]
    scale = len(order) / count / axis.face
    server = links.flop_per_s * T / 2 / axis.face / axis.lengths[1:]
    table = np.vstack([axis.faces(T)[sample, 1:] * scale, server])
    least = np.concatenate([np.zeros(POINTS), axis.whole(T)[sample] * scale, [0.0]])
    cuts: dict[tuple[int, ...], None] = {_equal(parts): None for parts in range(1, 7)}
    plain: Floats = axis.lengths / axis.lengths[-1]
    g = plain
    for _ in range(_CUT_ROUNDS):
        answer = _solved(table, least, np.array(list(cuts), dtype=float))
        if answer is None:
            break
        g = np.concatenate([[0.0], np.maximum(answer, 0.0)])
        cheapest, last = _cheapest(g)
        sums = g[1:] + cheapest[POINTS - np.arange(1, POINTS + 1)]
        short = np.flatnonzero(sums < 1 - _SHORT) + 1
        if len(short) == 0:
            break
        cuts |= {_parts(last, int(first)): None for first in short}
    total = float(_cheapest(g)[0][-1])
    return np.asarray(g / total) if total > 0 else plain


def _solved(table: Floats, least: Floats, cuts: Floats) -> Floats | None:
    """g_1..g_n >= 0 that minimise sum_i W_i with W_i >= table_ij*g_j, W_i >= least and cuts @ g >= 1; None without an answer."""
    devices = len(table)
    row = np.arange(devices * POINTS)
    places = np.concatenate([row % POINTS, POINTS + row // POINTS])
    values = np.concatenate([table.ravel(), np.full(devices * POINTS, -1.0)])
    faces = csr_array(coo_array((values, (np.tile(row, 2), places)), shape=(len(row), POINTS + devices)))
    wide = csr_array(np.hstack([cuts, np.zeros((len(cuts), devices))]))
    answer = milp(
        np.concatenate([np.zeros(POINTS), np.ones(devices)]),
        constraints=[LinearConstraint(faces, -np.inf, 0.0), LinearConstraint(wide, 1.0, np.inf)],
        bounds=Bounds(least, np.inf),
    )
    return np.asarray(answer.x[:POINTS]) if answer.status == 0 else None


def _equal(parts: int) -> tuple[int, ...]:
    """A line cut in ``parts`` lengths as equal as the points allow."""
    taken = [0] * POINTS
    for part in range(parts):
        taken[(part + 1) * POINTS // parts - part * POINTS // parts - 1] += 1
    return tuple(taken)
