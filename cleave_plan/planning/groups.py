r"""Groups of devices that share a footprint by splitting the inner axis: who works with whom.

At a trial time T, t = T - l, a device brings S bytes of operands and tolerates a footprint of p elements (a, b: bytes of
an element of A and B, m' = 0.9*m, F at the tile size that T allows):

    S = t*d        p = t*u/b_acc        (alone, over the whole depth: p_1 = min(t*u/b_out, t*F/(2K)))

It takes depth k = S/(a*r + b*c) of a footprint r x c. Arithmetic allows k <= t*F/(2rc), and since a*r + b*c >=
2*sqrt(ab*rc) it never binds on footprints up to p_F = (2*sqrt(ab)*t*F/(2S))^2, beyond which a larger one is of no use: p is
cut to p_F (never below t*F/(2K), the footprint that it fills at whole depth; S is cut instead). The memory holds the block
of C, p*b_acc <= m', or the smaller operand, which is at most half of S: S <= 2m'; the better of the two cuts is taken.

A group can cover any r x c with (a*r + b*c)*K <= sum S and r*c <= q, q = min p. Its worth is the smaller of q and of
Q = (sum S/(eta*sqrt(ab)*K))^2, eta = 2 for squares (a layout tells its own eta). Groups are filled in order of p and then
improved by moves and swaps of devices: all gains at once on arrays, the best of them applied wherever groups are still
untouched. A sharp minimum has no gains to follow while a group is short of both, so it is first a smooth one,
(q^-beta + Q^-beta)^(-1/beta), tightened in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SQUARE = 2.0
"""(h + w)/sqrt(h*w) of a square footprint."""

PARTNERS = 160
"""Devices and groups that every device is tried with in one sweep (drawn anew for each)."""

BLOCK = 1536
"""Devices, in order of p, that are improved together; more are done block by block."""


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

    def worth(self, operand: Floats, limit: Floats, eta: float, beta: float) -> Floats:
        """Elements that groups with ``operand`` bytes and smallest ``limit`` cover; smooth unless ``beta`` is infinite."""
        square = (operand / (eta * self.side * self.depth)) ** 2
        least = np.minimum(square, limit)
        if np.isinf(beta):
            return least
        ratio = least / np.maximum(np.maximum(square, limit), 1e-300)
        return np.asarray(least * (1 + ratio**beta) ** (-1 / beta))


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


def improved(able: Abilities, group: Ints, eta: float, betas: tuple[float, ...], sweeps: int, seed: int) -> Ints:
    """Labels after moves and swaps; the same for the same ``seed``. At most ``sweeps`` sweeps for each of ``betas``."""
    if len(able) > BLOCK:
        return _by_blocks(able, group, eta, betas, sweeps, seed)
    rng = np.random.default_rng(seed)
    count = int(group.max()) + 1
    for beta in betas:
        for _ in range(sweeps):
            changed = _sweep(able, group, count, eta, beta, rng)
            if changed is None:
                break
            group = changed
    return group


def _by_blocks(able: Abilities, group: Ints, eta: float, betas: tuple[float, ...], sweeps: int, seed: int) -> Ints:
    """Blocks of whole groups that lie next to each other in p, each improved by itself."""
    result = group.copy()
    count = int(group.max()) + 1
    limit = members(able, group, count).limit(able)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(-np.where(np.isinf(limit), 0.0, limit), kind="stable")] = np.arange(count)
    order = np.argsort(rank[group], kind="stable")
    ends = np.flatnonzero(np.diff(group[order], append=-1)) + 1
    start = 0
    while start < len(order):
        stop = int(ends[min(int(np.searchsorted(ends, start + BLOCK * 2 // 3)), len(ends) - 1)])
        mine = order[start:stop]
        labels, local = np.unique(group[mine], return_inverse=True)
        if len(mine) <= BLOCK:
            result[mine] = labels[improved(able.take(mine), local.astype(np.int64), eta, betas, sweeps, seed)]
        start = stop
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Left:
    """Every device's group without it: operand bytes, smallest p of those who stay, and the worth that is left."""

    operand: Floats
    cut: Floats
    worth: Floats
    single: NDArray[np.bool_]


def _without(able: Abilities, group: Ints, now: Members, eta: float, beta: float) -> _Left:
    own, least, second, size = np.arange(len(able)), now.least[group], now.second[group], now.size[group]
    stays = np.where(least == own, second, least)  # the device that then limits the group
    cut = np.where(size > 1, able.cut[stays], np.inf)
    limit = np.where(size == 2, able.alone[stays], cut)
    operand = now.operand[group] - able.operand
    worth = np.where(size > 1, able.worth(operand, np.where(size > 1, limit, 1.0), eta, beta), 0.0)
    return _Left(operand=operand, cut=cut, worth=worth, single=size == 1)


def _sweep(able: Abilities, group: Ints, count: int, eta: float, beta: float, rng: np.random.Generator) -> Ints | None:
    """One round of the best moves and swaps on groups that no better one has touched; None when nothing gains."""
    now = members(able, group, count)
    worth = np.where(now.size > 0, able.worth(now.operand, np.where(now.size > 0, now.limit(able), 1.0), eta, beta), 0.0)
    left = _without(able, group, now, eta, beta)
    into, move_gain = _moves(able, group, now, worth, left, eta, beta, rng)
    partner, swap_gain = _swaps(able, group, worth, left, eta, beta, rng)
    gain = np.maximum(move_gain, swap_gain)
    order: Ints = np.argsort(-gain, kind="stable")
    order = order[gain[order] > 1e-9 * float(able.cut.mean())]
    if len(order) == 0:
        return None
    changed, touched = group.copy(), np.zeros(count, dtype=np.bool_)
    for device in order.tolist():
        source, moves = group[device], move_gain[device] >= swap_gain[device]
        target = into[device] if moves else group[partner[device]]
        if not (touched[source] or touched[target]):
            changed[device] = target
            if not moves:
                changed[partner[device]] = source
            touched[source] = touched[target] = True
    return changed


def _drawn(count: int, rng: np.random.Generator) -> Ints:
    """All of ``count``, or ``PARTNERS`` of them."""
    return np.arange(count) if count <= PARTNERS else np.sort(rng.choice(count, PARTNERS, replace=False))


def _moves(
    able: Abilities, group: Ints, now: Members, worth: Floats, left: _Left, eta: float, beta: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """The best group for each device to move to, and what is gained."""
    targets = _drawn(len(worth), rng)
    shared = np.where(now.size > 0, able.cut[now.least], np.inf)[targets]
    limit = np.where(now.size[targets] == 0, able.alone[:, None], np.minimum(shared, able.cut[:, None]))
    gain = able.worth(now.operand[targets] + able.operand[:, None], limit, eta, beta) - worth[targets]
    gain += (left.worth - worth[group])[:, None]
    gain[group[:, None] == targets] = -np.inf
    best = gain.argmax(axis=1)
    return targets[best], gain[np.arange(len(able)), best]


def _swaps(
    able: Abilities, group: Ints, worth: Floats, left: _Left, eta: float, beta: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """The best device for each device to change places with, and what is gained."""
    others = _drawn(len(able), rng)

    def replaced(out: Ints, into: Ints) -> Floats:
        """Worth of the groups of ``out`` (rows) with ``into`` (columns) in their place."""
        limit = np.where(left.single[out, None], able.alone[into], np.minimum(left.cut[out, None], able.cut[into]))
        return able.worth(left.operand[out, None] + able.operand[into], limit, eta, beta)

    everyone = np.arange(len(able))
    gain = replaced(everyone, others) + replaced(others, everyone).T - worth[group][:, None] - worth[group[others]]
    gain[group[:, None] == group[others]] = -np.inf
    best = gain.argmax(axis=1)
    return others[best], gain[everyone, best]
