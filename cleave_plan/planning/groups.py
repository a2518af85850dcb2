r"""Groups of devices that share a footprint by splitting the inner axis: who works with whom.

At a trial time T, t = T - l, a device brings S bytes of operands and tolerates a footprint of p elements (a, b: bytes of
an element of A and B, m' = 0.9*m, F at the tile size that T allows):

    S = t*d        p = t*u/b_acc        (alone, over the whole depth: p_1 = min(t*u/b_out, t*F/(2K)))

It takes depth k = S/(a*r + b*c) of a footprint r x c. Arithmetic allows k <= t*F/(2rc), and since a*r + b*c >=
2*sqrt(ab*rc) it never binds on footprints up to p_F = (2*sqrt(ab)*t*F/(2S))^2, beyond which a larger one is of no use: p is
cut to p_F (never below t*F/(2K), the footprint that it fills at whole depth; S is cut instead). The memory holds the block
of C, p*b_acc <= m', or the smaller operand, which is at most half of S: S <= 2m'; the better of the two cuts is taken.

A group can cover any r x c with (a*r + b*c)*K <= sum S and r*c <= q, q = min p. Its worth is the smaller of q and of
Q = (sum S/(eta*sqrt(ab)*K))^2, eta = 2 for squares (a layout tells its own eta). Groups are filled in order of p here and
then improved by moves and swaps (:mod:`cleave_plan.planning.regroup`). A sharp minimum has no gains to follow while a group
is short of both, so there is a smooth one too, (q^-8 + Q^-8)^(-1/8).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.strips import LARGE
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SQUARE = 2.0
"""(h + w)/sqrt(h*w) of a square footprint."""

WINDOW = 96
"""Devices in a window of :func:`dealt`."""

DEALT = 4.0
"""Mean devices of a group up to which fleets that are not large are dealt into groups too."""

_ROUNDING = 0.998
"""Share of the memory that real sizes may fill, so that whole rows and columns still fit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abilities:
    """What devices bring by some T: ``operand`` bytes S, ``cut`` elements p of a shared footprint, ``alone`` p_1.

    ``side``: sqrt(ab), bytes; ``depth``: K of what the groups cover."""

    operand: Floats
    cut: Floats
    alone: Floats
    side: float
    depth: float

    def __len__(self) -> int:
        return len(self.operand)

    def take(self, index: Ints) -> Abilities:
        """The abilities of the devices ``index``, in that order."""
        return Abilities(
            operand=self.operand[index], cut=self.cut[index], alone=self.alone[index], side=self.side, depth=self.depth
        )

    def worth(self, operand: Floats, limit: Floats, eta: float, *, smooth: bool = False) -> Floats:
        """Elements that groups with ``operand`` bytes and smallest ``limit`` cover, by the smooth minimum if wanted."""
        square = operand / (eta * self.side * self.depth)
        square = square * square
        least = np.minimum(square, limit)
        if not smooth:
            return least
        ratio = least / np.maximum(np.maximum(square, limit), 1e-300)
        for _ in range(3):
            ratio = ratio * ratio
        return np.asarray(least / np.sqrt(np.sqrt(np.sqrt(1 + ratio))))


def abilities(terms: Terms, devices: DeviceColumns, T: float, depth: float | None = None) -> Abilities:
    """What ``devices`` bring by ``T`` to a slab of ``depth`` of the inner axis (default: all of it)."""
    whole = depth is None or depth >= terms.depth
    t = np.maximum(T - devices.latency, 0.0)
    side = np.sqrt(terms.row_bytes * terms.col_bytes) / terms.depth
    volume = t * devices.rate(np.broadcast_to(np.asarray(T * devices.flop_per_s), (len(devices),))) / 2
    operand, cut = t * devices.downlink, t * devices.uplink / terms.accumulator_bytes
    useful = (2 * side * volume / np.maximum(operand, 1e-300)) ** 2
    cut = np.minimum(cut, np.maximum(useful, volume / terms.depth))
    operand = np.minimum(operand, 2 * side * volume / np.sqrt(np.maximum(cut, 1e-300)))
    kept = (1 - STREAM_SHARE) * devices.memory * _ROUNDING
    small_c, small_operand = np.minimum(cut, kept / terms.accumulator_bytes), np.minimum(operand, 2 * kept)
    keep_c = operand**2 * small_c >= small_operand**2 * cut
    operand, cut = np.where(keep_c, operand, small_operand), np.where(keep_c, small_c, cut)
    alone = np.minimum(t * devices.uplink / terms.out_bytes, volume / terms.depth) if whole else cut
    alone = np.where(keep_c, np.minimum(alone, kept / terms.accumulator_bytes), alone)
    return Abilities(
        operand=operand, cut=cut, alone=alone, side=float(side), depth=float(terms.depth if depth is None else depth)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """Columns over groups: summed ``operand``, ``size``, and the devices with the ``least`` and the ``second`` least p
    (-1: none)."""

    operand: Floats
    size: Ints
    least: Ints
    second: Ints

    def limit(self, able: Abilities) -> Floats:
        """q of every group; infinite where it is empty."""
        return np.where(self.size == 1, able.alone[self.least], np.where(self.size > 1, able.cut[self.least], np.inf))


def members(able: Abilities, group: Ints, count: int) -> Members:
    """What the ``count`` groups consist of; ``group``: the label of every device."""
    size = np.bincount(group, minlength=count)
    order = np.lexsort((able.cut, group))
    start = np.concatenate([[0], np.cumsum(size)[:-1]])
    least, second = np.full(count, -1), np.full(count, -1)
    least[size > 0] = order[start[size > 0]]
    second[size > 1] = order[start[size > 1] + 1]
    return Members(operand=np.bincount(group, able.operand, minlength=count).astype(float), size=size, least=least, second=second)


def filled(able: Abilities, eta: float = SQUARE) -> tuple[Ints, int]:
    """Labels of groups filled in falling order of p, and how many there are.

    A group ends at the device with which the operands brought so far come nearest to those needed so far."""
    group = np.zeros(len(able), dtype=np.int64)
    count, have, first = 0, 0.0, True
    order = np.argsort(-able.cut, kind="stable")
    need = eta * able.side * able.depth * np.sqrt(np.stack([able.cut[order], able.alone[order]]))
    for place, operand, shared, single in zip(order.tolist(), able.operand[order].tolist(), *need.tolist(), strict=True):
        group[place] = count
        have += operand
        needed = single if first else shared
        first = have >= needed - operand / 2
        if first:
            count, have = count + 1, have - needed
    return group, count + (not first)


def deals(able: Abilities, eta: float = SQUARE) -> bool:
    """Whether groups are dealt from the start: in large fleets, and where groups are of few devices, which filling in order
    leaves far from full."""
    needed = eta * able.side * able.depth * float(np.sqrt(able.cut).mean())
    return len(able) >= LARGE or (len(able) >= WINDOW and needed < DEALT * float(able.operand.mean()))


def started(able: Abilities, eta: float = SQUARE) -> Ints:
    """Labels of groups to start from."""
    return dealt(able, eta) if deals(able, eta) else filled(able, eta)[0]


def dealt(able: Abilities, eta: float = SQUARE) -> Ints:
    """Labels of groups in windows of devices with nearly the same p, in each of which groups bring nearly the same.

    A window has as many groups as its devices' operands suffice for; its devices, largest first, each join the group that has
    least (Graham's rule: with several devices to a group they end within a small part of one device of each other)."""
    order = np.argsort(-able.cut, kind="stable")
    need = eta * able.side * able.depth * np.sqrt(able.cut[order])
    useful = np.minimum(able.operand[order], need)
    brought = np.concatenate([[0.0], np.cumsum(useful)])
    group = np.empty(len(able), dtype=np.int64)
    start, first, full = 0, 0, 0.0  # full: operand bytes that the groups so far are meant to have
    while start < len(able):
        stop = min(start + WINDOW, len(able))
        wanted = float(need[(start + stop - 1) // 2])
        count = max(1, round((float(brought[stop]) - full) / wanted))
        full += count * wanted
        if stop < len(able):  # end where that many groups are full
            stop = min(max(int(np.abs(brought[start:] - full).argmin()) + start, start + 1), len(able))
        mine = order[start:stop]
        group[mine] = first + _shared_out(able.operand[mine], count)
        start, first = stop, first + count
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def _shared_out(sizes: Floats, count: int) -> Ints:
    """Which of ``count`` heaps each of ``sizes`` goes to, largest first, each to the lowest."""
    label = np.empty(len(sizes), dtype=np.int64)
    heaps = [(0.0, number) for number in range(count)]
    order = np.argsort(-sizes, kind="stable")
    chosen = []
    for size in sizes[order].tolist():
        least, number = heaps[0]
        heapq.heapreplace(heaps, (least + size, number))
        chosen.append(number)
    label[order] = chosen
    return label
