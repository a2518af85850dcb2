r"""Proof that boxes cover a GEMM's work exactly: every (batch, m, n, k) once, none twice, nothing outside.

Let f count for every point of the integer grid how many boxes hold it, minus 1 inside the whole box. The boxes are an
exact cover if and only if f is 0 everywhere. Differencing f along each axis gives a signed sum of the boxes' corners:

    D f = sum over boxes of  (x) over axes ( [start] - [stop] )      -  the same for the whole box

D is one to one on functions that vanish far away, so f = 0 exactly when the signs at every corner cancel. That needs
no volumes (which overflow) and no pairs of boxes: 16 corners a box, sorted. And if they do not cancel, the first corner p
(in lexicographic order) with a remainder is a witness: f(p) is the sum of the remainders at corners <= p on every
axis, all of those but p come before p, so f(p) is the remainder at p.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from cleave_plan.cost.tile import Ints, Tiles
from cleave_plan.workload.gemm import GemmShape

AXES = ("batch", "m", "n", "k")
"""The order of the axes in a :class:`Flaw`'s point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """A place where tiles do not cover exactly: ``point`` (along AXES) is held by ``tiles`` (their places; empty: a gap).

    ``outside`` says that the point lies outside the GEMM.
    """

    point: tuple[int, int, int, int]
    tiles: tuple[int, ...]
    outside: bool


def cover_flaw(tiles: Tiles, shape: GemmShape) -> Flaw | None:
    """The first flaw of ``tiles`` as a cover of ``shape``, or None when every multiply-add is done exactly once.

    Every tile must have start < stop on each axis. Time O(t log t), memory O(t) for t tiles, whatever the shape.
    """
    starts = np.stack([tiles.column(f"{axis}_start") for axis in AXES])
    stops = np.stack([tiles.column(f"{axis}_stop") for axis in AXES])
    sizes = np.array([[shape.batch], [shape.m], [shape.n], [shape.k]], dtype=np.int64)
    corners, signs = _corners(starts, stops)
    if sizes.all():  # an empty GEMM has no corners: any tile lies outside it
        own, own_signs = _corners(np.zeros_like(sizes), sizes)
        corners, signs = np.hstack([corners, own]), np.concatenate([signs, -own_signs])
    point = _first_remainder(corners, signs)
    if point is None:
        return None
    holds = ((starts <= point[:, None]) & (point[:, None] < stops)).all(axis=0)
    batch, m, n, k = (int(coordinate) for coordinate in point)
    outside = bool((point >= sizes[:, 0]).any() or (point < 0).any())
    return Flaw(point=(batch, m, n, k), tiles=tuple(np.flatnonzero(holds).tolist()), outside=outside)


def _corners(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """All corners of boxes (axes x boxes) as (axes x 16*boxes), with the sign of each: + for an even number of stops."""
    ends = (starts, stops)
    choices = list(product((0, 1), repeat=len(AXES)))
    corners = np.hstack([np.stack([ends[end][axis] for axis, end in enumerate(choice)]) for choice in choices])
    signs = np.repeat([(-1) ** sum(choice) for choice in choices], starts.shape[1])
    return corners, signs


def _first_remainder(corners: Ints, signs: Ints) -> Ints | None:
    """The lexicographically first corner at which the signs do not cancel."""
    if not signs.size:
        return None
    order = np.lexsort(corners[::-1])
    ordered = corners[:, order]
    new = np.ones(len(signs), dtype=bool)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    groups = np.flatnonzero(new)
    remainders = np.flatnonzero(np.add.reduceat(signs[order], groups))
    if not remainders.size:
        return None
    first: Ints = ordered[:, groups[remainders[0]]]
    return first
