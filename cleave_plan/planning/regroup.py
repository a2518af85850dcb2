"""Groups of devices (:mod:`cleave_plan.planning.groups`) improved by moves and swaps.

Devices stand in order of their limit p, and each looks at some that stand near it: a group is only as good as its least p,
so those far off have nothing to offer. In one sweep every such pair is tried (either moves to the other's group, or they
change places), all gains at once on arrays, and the best are made wherever both groups are still untouched. The work of a
sweep is the number of devices times ``PARTNERS`` (less in huge fleets), whatever the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.groups import Abilities, Members, deals, members
from cleave_plan.planning.strips import LARGE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PARTNERS, PAIRS, LEAST_PARTNERS = 24, 240_000, 4
"""Distances, in places, at which partners are looked for in one sweep (drawn anew for each); fewer, down to the last, where that
makes more pairs than the second."""

_NEAR, _GROUPS = 48, 4
"""How far partners stand at the most: so many places, or mean groups."""

_FEW_SWEEPS = 2
"""Sweeps of a large fleet."""

_LEAST_GAIN = 1e-9
"""Of the mean p: gains below are none."""


def improved(able: Abilities, group: Ints, eta: float, sweeps: int, seed: int, *, smooth: bool) -> Ints:
    """Labels after moves and swaps; the same for the same ``seed``. At most ``sweeps`` sweeps, and with ``smooth`` as many
    before them by the smooth minimum, unless the groups were dealt: those are near their best. Large fleets have few sweeps."""
    if deals(able, eta):
        smooth, sweeps = False, min(sweeps, _FEW_SWEEPS) if len(able) >= LARGE else sweeps
    order = np.argsort(-able.cut, kind="stable")
    own, label, rng = able.take(order), group[order], np.random.default_rng(seed)
    for kind in (True, False) if smooth else (False,):
        for _ in range(sweeps):
            changed = _sweep(own, label, eta, rng, smooth=kind)
            if changed is None:
                break
            label = changed
    result = np.empty_like(group)
    result[order] = label
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Left:
    """Every device's group without it: operand bytes, smallest p of those who stay, and the worth that is left."""

    operand: Floats
    cut: Floats
    worth: Floats
    single: NDArray[np.bool_]


def _without(able: Abilities, group: Ints, now: Members, eta: float, *, smooth: bool) -> _Left:
    own, least, second, size = np.arange(len(able)), now.least[group], now.second[group], now.size[group]
    stays = np.where(least == own, second, least)  # the device that then limits the group
    cut = np.where(size > 1, able.cut[stays], np.inf)
    limit = np.where(size == 2, able.alone[stays], cut)
    operand = now.operand[group] - able.operand
    worth = np.where(size > 1, able.worth(operand, np.where(size > 1, limit, 1.0), eta, smooth=smooth), 0.0)
    return _Left(operand=operand, cut=cut, worth=worth, single=size == 1)


def _sweep(able: Abilities, group: Ints, eta: float, rng: np.random.Generator, *, smooth: bool) -> Ints | None:
    """One round of the best moves and swaps on groups that no better one has touched; None when nothing gains."""
    devices = len(able)
    now = members(able, group, int(group.max()) + 1)
    worth = np.where(now.size > 0, able.worth(now.operand, np.where(now.size > 0, now.limit(able), 1.0), eta, smooth=smooth), 0.0)
    left = _without(able, group, now, eta, smooth=smooth)
    reach = min(devices - 1, max(_NEAR, _GROUPS * devices // len(worth)))
    if reach < 1:
        return None
    apart = rng.choice(reach, min(reach, PARTNERS, max(PAIRS // devices, LEAST_PARTNERS)), replace=False) + 1
    one = np.arange(devices)[:, None]
    other = np.minimum(one + apart, devices - 1)
    pair = group[one] != group[other]
    here, there = group[one], group[other]

    def moved(who: Ints, into: Ints) -> Floats:
        """Gain when ``who`` joins the groups ``into``."""
        limit = np.minimum(able.cut[now.least[into]], able.cut[who])
        joined = able.worth(now.operand[into] + able.operand[who], limit, eta, smooth=smooth)
        return joined - worth[into] + left.worth[who] - worth[group[who]]

    def replaced(out: Ints, into: Ints) -> Floats:
        """Worth of the groups of ``out`` with ``into`` in their place."""
        limit = np.where(left.single[out], able.alone[into], np.minimum(left.cut[out], able.cut[into]))
        return able.worth(left.operand[out] + able.operand[into], limit, eta, smooth=smooth)

    gains = np.stack(
        [moved(one, there), moved(other, here), replaced(one, other) + replaced(other, one) - worth[here] - worth[there]]
    )
    gains = np.where(pair, gains, -np.inf).transpose(1, 0, 2).reshape(devices, -1)
    best = gains.argmax(axis=1)
    gain = gains[np.arange(devices), best]
    kind, place = np.divmod(best, len(apart))
    return _applied(group, other[np.arange(devices), place], kind, gain, _LEAST_GAIN * float(able.cut.mean()))


def _applied(group: Ints, other: Ints, kind: Ints, gain: Floats, least: float) -> Ints | None:
    """Labels after the changes of most gain: ``kind`` 0 moves a device to ``other``'s group, 1 moves that one here, 2 swaps."""
    order: Ints = np.argsort(-gain, kind="stable")
    order = order[gain[order] > least]
    if len(order) == 0:
        return None
    changed, touched = group.copy(), np.zeros(int(group.max()) + 1, dtype=np.bool_)
    columns = (order, other[order], kind[order], group[order], group[other[order]])
    for one, two, what, here, there in zip(*(column.tolist() for column in columns), strict=True):
        if not (touched[here] or touched[there]):
            if what != 1:
                changed[one] = there
            if what != 0:
                changed[two] = here
            touched[here] = touched[there] = True
    return changed
