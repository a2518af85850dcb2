r"""Lower bounds with inner splits: no tiling at all, whatever its pieces, can be faster.

One device, t = T - l seconds of work (planning.md section 2). Let A, B, C count the distinct elements of the two operands
and of the result that its pieces touch; a and b are bytes of an operand's element. A multiply-add (m, k, n) projects to
(m, k), (k, n) and (m, n), so by Loomis and Whitney, for any set of V multiply-adds,

    V <= sqrt(A*B*C) ,  V <= A*N ,  V <= B*M ,  V <= C*K
    a*A + b*B <= S = t*d        every operand element that is used was sent at least once
    C <= U = t*u/b_acc          every result element left at least once, in the accumulator's size where K is cut
    V <= t*F/2

With A = x*S/a, B = (1-x)*S/b, each of the first three is concave in x, so their minimum is greatest where x = 1/2 (the root's
peak) or where two of them cross: :func:`_cut_volume` takes the best of those points. For any fixed x every term over t is
constant or grows with t, hence V_cut(t)/t never falls; so it is for K*a(t), a(t) the area of whole depth
(:mod:`cleave_plan.planning.bounds`), whose result leaves in the storage's size. A device's tiles follow one another: if
those of whole depth take the time t_1, those that are cut t_2, t_1 + t_2 <= t, they do at most

    K*a(t_1) + V_cut(t_2)  <=  (t_1/t)*K*a(t) + (t_2/t)*V_cut(t)  <=  max(K*a(t), V_cut(t)) = V_i(T)

and T* = min{ T : sum_i V_i(T) + F_s*T/2 >= items*M*N*K }. The same argument, item by item, lets a device work on many items.

Server links: V <= sqrt(A*B*U) and a*A + b*B >= 2*sqrt(ab*A*B) give at most e = sqrt(U/ab)/2 multiply-adds for an operand
byte, less where A >= V/N or B >= V/M say more; pieces that take a share of the time have a smaller U and a smaller e. So of
E*T operand bytes x_i a device makes at most the concave hull of its two kinds' (V/e, V), and the most for all devices is a
fractional knapsack over the hulls' segments. Every element that is not made by the servers alone is received at least once.

What servers can add of partial sums limits devices together: :mod:`cleave_plan.planning.sums`.

Convolutions are never cut along K by this planner (their operands are regions that overlap): their bound is that of whole
depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.bounds import Links, capacity, covered, gemm_bound, tolerance
from cleave_plan.planning.roots import latest_short
from cleave_plan.planning.sums import Ways
from cleave_plan.planning.terms import Terms

Floats = NDArray[np.float64]

_TINY = 1e-300


def _cut_volume(terms: Terms, operand: Floats, results: Floats) -> Floats:
    """Most multiply-adds with ``operand`` bytes and ``results`` elements of C, by the four projections."""
    a, b = terms.row_bytes / terms.depth, terms.col_bytes / terms.depth
    m, n = float(terms.rows), float(terms.columns)
    crossings = (
        np.full_like(operand, 0.5),
        results * a / np.maximum(results * a + n * n * b, _TINY),  # sqrt(ABU) = A*N
        m * m * a / np.maximum(m * m * a + results * b, _TINY),  # sqrt(ABU) = B*M
        np.full_like(operand, m * a / (m * a + n * b)),  # A*N = B*M
    )
    best = np.zeros_like(operand)
    for x in crossings:
        of_a, of_b = x * operand / a, (1 - x) * operand / b
        best = np.maximum(best, np.minimum(np.minimum(np.sqrt(of_a * of_b * results), of_a * n), of_b * m))
    return np.minimum(best, results * terms.depth)


def _cut_efficiency(terms: Terms, results: Floats) -> Floats:
    """Most multiply-adds for an operand byte with at most ``results`` elements of C."""
    a, b = terms.row_bytes / terms.depth, terms.col_bytes / terms.depth
    of_a, of_b = 1.0 / terms.columns, 1.0 / terms.rows  # at least these of A and B for each multiply-add
    need = 1 / np.maximum(results, _TINY)  # and at least this product of the two
    chosen = np.maximum(np.sqrt(need * b / a), of_a)
    chosen = np.where(need / chosen < of_b, np.maximum(need / of_b, of_a), chosen)
    return 1 / (a * chosen + b * np.maximum(need / chosen, of_b))


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCapacity:
    """What every device can do by T: ``volume`` multiply-adds, at most ``efficiency`` of them for an operand byte, and
    ``hull``: columns of (volume, volume for a byte) of the segments that a knapsack over operand bytes fills; ``ways``: the same
    work by what it leaves to add."""

    volume: Callable[[float], Floats]
    efficiency: Callable[[float], Floats]
    hull: Callable[[float], tuple[Floats, Floats]]
    ways: Callable[[float], Ways]


def volume_capacity(terms: Terms, devices: DeviceColumns) -> VolumeCapacity:
    """The bound's capacity functions of all devices for a GEMM that may be cut along K (see the module's mathematics)."""
    plane = capacity(terms, devices)

    def kinds(T: float) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """(volume, efficiency) at whole depth, and cut."""
        t = np.maximum(T - devices.latency, 0.0)
        results = t * devices.uplink / terms.accumulator_bytes
        cut = np.minimum(_cut_volume(terms, t * devices.downlink, results), t * devices.best_rate / 2)
        whole = terms.depth * plane.area(T), terms.depth * plane.efficiency(T)
        return whole, (cut, _cut_efficiency(terms, results))

    def volume(T: float) -> Floats:
        (whole, _), (cut, _) = kinds(T)
        return np.maximum(whole, cut)

    def efficiency(T: float) -> Floats:
        (_, whole), (_, cut) = kinds(T)
        return np.maximum(whole, cut)

    def hull(T: float) -> tuple[Floats, Floats]:
        (whole, whole_rate), (cut, cut_rate) = kinds(T)
        frugal = whole_rate >= cut_rate
        first, first_rate = np.where(frugal, whole, cut), np.where(frugal, whole_rate, cut_rate)
        more = np.maximum(np.where(frugal, cut, whole) - first, 0.0)
        bytes_more = (first + more) / np.maximum(np.where(frugal, cut_rate, whole_rate), _TINY) - first / np.maximum(
            first_rate, _TINY
        )
        more_rate = np.where(more > 0, more / np.maximum(bytes_more, _TINY), 0.0)
        return np.concatenate([first, more]), np.concatenate([first_rate, np.minimum(more_rate, first_rate)])

    def ways(T: float) -> Ways:
        (whole, _), (cut, _) = kinds(T)
        t = np.maximum(T - devices.latency, 0.0)
        root = t * devices.downlink * terms.depth / (2 * np.sqrt(terms.row_bytes * terms.col_bytes))
        return Ways(whole=whole, cut=cut, root=root, results=t * devices.uplink / terms.accumulator_bytes)

    return VolumeCapacity(volume=volume, efficiency=efficiency, hull=hull, ways=ways)


def volume_bound(terms: Terms, devices: DeviceColumns, links: Links) -> float:
    """Seconds that one GEMM (all its items) takes at least, by ideal cost, however it is cut."""
    if terms.halo_bytes > 0:
        return gemm_bound(terms, devices, links)
    size = float(terms.items) * terms.area * terms.depth
    if size == 0:
        return 0.0
    able = volume_capacity(terms, devices)
    least_out = min(terms.out_bytes, terms.accumulator_bytes)

    def done(T: float) -> float:
        most = min(float(able.volume(T).sum()), links.ingress * T / least_out * terms.depth)
        if np.isfinite(links.egress):
            most = min(most, covered(*able.hull(T), links.egress * T))
        return (most + links.flop_per_s * T / 2) / size

    return latest_short(done, 1.0, tolerance(len(devices)))
