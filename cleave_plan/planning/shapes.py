r"""Shape curves: which rectangles a set of devices covers by time T when it may be cut by straight lines from edge to edge.

    rows_S(w)    = the most rows that the devices S cover at width w
    columns_S(h) = the most columns that they cover at height h                (the inverse function)

    rows_S(w)    >= rows_S1(w) + rows_S2(w)                 one part above the other
    columns_S(h) >= columns_S1(h) + columns_S2(h)           one part beside the other

over the pairs S1, S2 that a :class:`Family` allows: all subsets, or the runs of a sequence, or subsets of a few groups
(:mod:`cleave_plan.planning.slicing_search`). Each side of
the item is an :class:`Axis`. Sides of up to ``WHOLE_SIDE`` are taken at every integer, and curves along them are exact;
longer ones at geometric places, and between these a curve is a straight line, so that cuts found there are to be made
exact afterwards (:mod:`cleave_plan.planning.slicing_rounding`). One time T costs a few whole-array operations per layer
of the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.heights import heights
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WHOLE_SIDE = 256
"""Sides of up to this length are taken at every integer, unless the caller says otherwise."""

_PLACES = 64
"""Places along a longer side."""

_THINNEST = 6.0
"""The first place is this many times narrower than an even share of the side."""

_AMPLE = 8.0
"""Curves are cut off at this multiple of the side, so that they are finite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axis:
    """One side of the item: its length, the places at which curves are kept (the last is the length), all integers or not."""

    side: int
    places: Floats
    whole: bool


def axis_of(side: int, parts: int, whole_side: int = WHOLE_SIDE) -> Axis:
    """The axis of a side that is shared by up to ``parts`` devices, at every integer up to ``whole_side``."""
    if side <= whole_side:
        return Axis(side=side, places=np.arange(1.0, side + 1), whole=True)
    places = np.rint(np.geomspace(max(side / (_THINNEST * parts), 1.0), side, _PLACES))
    return Axis(side=side, places=np.unique(places), whole=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """Sets that are made in one step: ``sets[i]`` from ``left[i, s]`` and ``right[i, s]`` for every s."""

    sets: Ints
    left: Ints
    right: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Sets of devices by number: ``atoms[i]`` is device i alone, ``layers`` make the others, the last of them all devices."""

    count: int
    atoms: Ints
    layers: tuple[Layer, ...]

    @property
    def everything(self) -> int:
        """The set of all devices."""
        return int(self.layers[-1].sets[-1]) if self.layers else int(self.atoms[0])

    def device_of(self, number: int) -> int | None:
        """The device that set ``number`` consists of; None when it has several."""
        place = np.flatnonzero(self.atoms == number)
        return int(place[0]) if len(place) else None

    def halves(self, number: int) -> tuple[Ints, Ints]:
        """All pairs that set ``number`` is made from."""
        for layer in self.layers:
            place = np.flatnonzero(layer.sets == number)
            if len(place):
                return layer.left[place[0]], layer.right[place[0]]
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


@cache
def subsets(atoms: int) -> Family:
    """All non-empty subsets; a set's number is its bit mask."""
    masks = np.arange(2**atoms, dtype=np.int64)
    bits = (masks[:, None] >> np.arange(atoms)) & 1
    layers = []
    for size in range(2, atoms + 1):
        sets = masks[bits.sum(axis=1) == size]
        members = np.array([np.flatnonzero(bits[number]) for number in sets])
        # The left part holds the lowest member and any but all of the others.
        others = bits[: 2 ** (size - 1) - 1, : size - 1]
        left = (1 << members[:, :1]) + (1 << members[:, 1:]) @ others.T
        layers.append(Layer(sets=sets, left=left, right=sets[:, None] - left))
    return Family(count=2**atoms, atoms=1 << np.arange(atoms, dtype=np.int64), layers=tuple(layers))


@cache
def runs(atoms: int) -> Family:
    """Runs of consecutive atoms; those of one length are numbered by where they start."""
    first = np.cumsum([0, *range(atoms, 0, -1)])  # number of the first run of each length, less one
    layers = []
    for size in range(2, atoms + 1):
        start, cut = np.arange(atoms - size + 1)[:, None], np.arange(1, size)
        layers.append(
            Layer(sets=first[size - 1] + start[:, 0], left=first[cut - 1] + start, right=first[size - cut - 1] + start + cut)
        )
    return Family(count=int(first[-1]), atoms=np.arange(atoms, dtype=np.int64), layers=tuple(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A set made of two ``parts``, one ``above`` the other or side by side: the share of what was asked that they
    ``cover``, and how many rows or columns of it the ``first`` takes."""

    cover: float
    above: bool
    first: float
    parts: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curves:
    """``rows[S, i]`` at width ``across.places[i]``, ``columns[S, i]`` at height ``down.places[i]``."""

    down: Axis
    across: Axis
    rows: Floats
    columns: Floats

    def rows_at(self, sets: Ints, width: float) -> Floats:
        """Rows of each of ``sets`` at any width."""
        return _at(self.rows, self.across, sets, width)

    def columns_at(self, sets: Ints, height: float) -> Floats:
        """Columns of each of ``sets`` at any height."""
        return _at(self.columns, self.down, sets, height)

    def best_cut(self, family: Family, number: int, height: float, width: float) -> Cut:
        """How set ``number`` covers most of ``height`` by ``width``, by any of the pairs it is made from."""
        left, right = family.halves(number)
        rows, columns = self.rows_at(left, width), self.columns_at(left, height)
        above = (rows + self.rows_at(right, width)) / height
        beside = (columns + self.columns_at(right, height)) / width
        is_above = bool(above.max() >= beside.max())
        cover = above if is_above else beside
        best = int(cover.argmax())
        first = min(float(rows[best]), height) if is_above else min(float(columns[best]), width)
        return Cut(cover=float(cover[best]), above=is_above, first=first, parts=(int(left[best]), int(right[best])))

    def agree(self, sets: Ints) -> None:
        """Let each of ``sets`` have, in both curves, what either one allows."""
        rows, columns = self.rows[sets], self.columns[sets]
        self.rows[sets] = np.maximum(rows, _inverse(columns, self.down, self.across))
        self.columns[sets] = np.maximum(columns, _inverse(rows, self.across, self.down))


def device_curves(terms: Terms, devices: DeviceColumns, T: float, down: Axis, across: Axis) -> Curves:
    """Curves of single devices; one that needs several passes may make them along either side."""
    rows = heights(terms, devices, T, across.places[:, None], whole=True).T
    columns = heights(terms.transposed(), devices, T, down.places[:, None], whole=True).T
    curves = Curves(
        down=down, across=across, rows=np.minimum(rows, _AMPLE * down.side), columns=np.minimum(columns, _AMPLE * across.side)
    )
    curves.agree(np.arange(len(devices)))
    return curves


def set_curves(atoms: Curves, family: Family, *, whole: bool = False) -> Curves:
    """Curves of every set of ``family``; those of the last layer only if ``whole`` (of the set of all devices
    :meth:`Curves.best_cut` is all that is ever asked)."""
    down, across = atoms.down, atoms.across
    curves = Curves(
        down=down, across=across, rows=np.zeros((family.count, len(across.places))),
        columns=np.zeros((family.count, len(down.places))),
    )  # fmt: skip
    curves.rows[family.atoms], curves.columns[family.atoms] = atoms.rows, atoms.columns
    for layer in family.layers if whole else family.layers[:-1]:
        curves.rows[layer.sets] = _best_sum(curves.rows, layer, _AMPLE * down.side)
        curves.columns[layer.sets] = _best_sum(curves.columns, layer, _AMPLE * across.side)
        curves.agree(layer.sets)
    return curves


def _best_sum(curve: Floats, layer: Layer, most: float) -> Floats:
    best = np.zeros((len(layer.sets), curve.shape[1]))
    for left, right in zip(layer.left.T, layer.right.T, strict=True):
        np.maximum(best, curve[left] + curve[right], out=best)
    return np.minimum(best, most)


def _inverse(curve: Floats, axis: Axis, other: Axis) -> Floats:
    """For each place of ``other`` the furthest point of ``axis`` at which the falling ``curve[S]`` still reaches it."""
    sets, places = curve.shape
    # One search for all sets: each is lifted above the one before, and read from its end.
    lift = np.arange(sets)[:, None] * (_AMPLE * other.side + 1.0)
    rising = (curve[:, ::-1] + lift).ravel()
    short = np.searchsorted(rising, (other.places + lift).ravel()).reshape(sets, -1) - np.arange(sets)[:, None] * places
    reached = places - short
    answer = axis.places[np.maximum(reached - 1, 0)]
    if not axis.whole:
        inner = np.clip(reached, 1, places - 1)
        above = np.take_along_axis(curve, inner - 1, axis=1)
        below = np.take_along_axis(curve, inner, axis=1)
        part = np.clip((above - other.places) / np.maximum(above - below, 1e-300), 0.0, 1.0)
        answer = np.where(reached < places, answer + part * (axis.places[inner] - axis.places[inner - 1]), answer)
    return np.asarray(np.where(reached > 0, answer, 0.0))


def _at(curve: Floats, axis: Axis, sets: Ints, point: float) -> Floats:
    after = int(np.clip(np.searchsorted(axis.places, point), 0, len(axis.places) - 1))
    if after == 0 or axis.places[after] == point:
        return np.asarray(curve[sets, after])
    part = (point - axis.places[after - 1]) / (axis.places[after] - axis.places[after - 1])
    return np.asarray((1 - part) * curve[sets, after - 1] + part * curve[sets, after])
