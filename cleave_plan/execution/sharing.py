"""Which devices one process plays: so that processes are done with a level together, and that neighbours stay together.

For groups g of devices d, with w[d, l] the work of d in level l and t[d, e] what is spared where one process computes tiles of d
and e as one, the cost is

    sum over l of max over g of (sum over d in g of w[d, l])  -  sum over g of (sum over pairs d, e in g of t[d, e]) / groups

A tile of a convolution costs its multiply-adds and those of :data:`EDGE` images more, as it begins and ends within one; two that
touch spare that once. The search begins with even sums over all levels, and moves or exchanges devices as long as that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cleave_plan.execution.admission import Placed
from cleave_plan.execution.engines.process import share_out
from cleave_plan.execution.engines.together import touch
from cleave_plan.kernels.tile import Box

EDGE = 0.4
"""Images whose work a tile's two ends cost, as parts of images are copied. Measured on ResNet-50, batch 8, by onnxruntime's Conv:
the plan's tiles, 296 boxes of two processes, took 1.2 times as long as the 104 halves of its products."""

MOST_DEVICES = 64
"""Devices up to which groups are searched for: the search takes time with their square."""

PASSES = 8
"""Most rounds over all moves and exchanges."""

Floats = NDArray[np.float64]


def groups_of(placed: Iterable[Placed], load: dict[str, float], groups: int) -> list[tuple[str, ...]]:
    """The devices of ``load`` (each one's work over all levels) in ``groups`` groups, for processes that compute ``placed``."""
    groups = min(groups, len(load))
    begin = share_out(load, groups)
    if not 1 < groups < len(load) <= MOST_DEVICES:
        return begin
    names = sorted(load)
    work, spared = _work(list(placed), {name: place for place, name in enumerate(names)})
    owner = np.zeros(len(names), dtype=np.intp)
    for group, members in enumerate(begin):
        owner[[names.index(name) for name in members]] = group
    owner = _improved(owner, lambda owner: _cost(owner, groups, work, spared), groups)
    return [tuple(name for name, group in zip(names, owner, strict=True) if group == own) for own in range(groups)]


def _work(placed: Sequence[Placed], place: dict[str, int]) -> tuple[Floats, Floats]:
    """w [devices, levels] and t [devices, devices] of the module's formula, in multiply-adds."""
    work = np.zeros((len(place), 1 + max((own.gemm.level for own in placed), default=0)))
    spared = np.zeros((len(place), len(place)))
    for own in placed:
        window, depth = own.gemm.window, own.gemm.shape.k
        edge = 0.0 if window is None else EDGE * window.rows_per_image * depth
        tiles = [(place[device], box) for device, box in own.away.values()]
        for device, box in tiles:
            g, r, c = box.result_shape
            work[device, own.gemm.level] += g * c * (r * (box.k_stop - box.k_start) + edge)
        for (one, mine), (other, others) in combinations(tiles if edge else [], 2):
            if touch(mine, others):
                spared[one, other] += edge * _shared_columns(mine, others)
    return work, spared + spared.T


def _shared_columns(one: Box, other: Box) -> int:
    """Columns, over all groups of the convolution, that each of two tiles that touch computes anew."""
    return min(box.result_shape[0] * box.result_shape[2] for box in (one, other))


def _cost(owner: NDArray[np.intp], groups: int, work: Floats, spared: Floats) -> float:
    member = np.equal.outer(np.arange(groups), owner).astype(np.float64)
    together = np.einsum("gd,de,ge->", member, spared, member) / 2
    return float((member @ work).max(axis=0).sum() - together / groups)


def _improved(owner: NDArray[np.intp], cost: Callable[[NDArray[np.intp]], float], groups: int) -> NDArray[np.intp]:
    """``owner`` after the moves and exchanges that lower the cost, the first that does at a time."""
    least = cost(owner)
    for _ in range(PASSES):
        before = least
        for other in _neighbours(owner, groups):
            found = cost(other)
            if found < least * (1 - 1e-9):
                owner[:], least = other, found
        if least == before:
            break
    return owner


def _neighbours(owner: NDArray[np.intp], groups: int) -> Iterator[NDArray[np.intp]]:
    """What ``owner`` is, at each time, after one move or exchange; no group is left empty."""
    for device in range(len(owner)):
        for group in range(groups):
            if group != owner[device] and np.count_nonzero(owner == owner[device]) > 1:
                moved = owner.copy()
                moved[device] = group
                yield moved
    for one, other in combinations(range(len(owner)), 2):
        if owner[one] != owner[other]:
            exchanged = owner.copy()
            exchanged[[one, other]] = owner[[other, one]]
            yield exchanged
