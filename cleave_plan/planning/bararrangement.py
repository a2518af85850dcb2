r"""Slabs, strips, bars and devices as one value, fitted in real numbers and made exact in integers.

An arrangement says who stands where: slabs cut the inner axis, each slab's plane is cut in strips (along either side),
a strip in bars, and a bar's devices share its depth. At a time T slab s then reaches the depth kappa_s at which the
widths of its strips add up to its plane (:mod:`cleave_plan.planning.barlayout`); the least T has sum kappa_s = K. Every
number so found is rounded by largest remainders, from the slabs down: depths to K, widths to a plane's columns, heights
to its rows, and a bar's depth over its devices in proportion to the operand bytes that they bring. The boxes cover
exactly by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.barlayout import Plane
from cleave_plan.planning.boxes import Boxes, before_in_run, cut_in_parts, rounded, rounded_runs, run_of
from cleave_plan.planning.groups import Abilities, abilities
from cleave_plan.planning.roots import log_root
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_POWER, _CORRECTIONS, _PRECISION = 0.7, 40, 2e-5
"""What is covered grows with T to the power of 1 (limits), 1.5 or 2 (operands): T is corrected by a power between, and
halved in wherever that leaves what is known (a slab covers nothing until its limits allow it)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrangement:
    """``devices`` (indices) in order; ``bars`` start at places in it, ``strips`` at bars, ``slabs`` at strips.

    ``transposed``: for each slab, whether its strips run along the columns of C."""

    devices: Ints
    bars: Ints
    strips: Ints
    slabs: Ints
    transposed: Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Real sizes at ``seconds``: ``depth`` of slabs, ``width`` of strips, ``height`` of bars."""

    seconds: float
    depth: Floats
    width: Floats
    height: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Frame:
    """The arrangement's runs and its planes' sides, spread over strips and bars."""

    terms: Terms
    able: Callable[[float], Abilities]
    place: Arrangement
    bar_of: Ints
    strip_of: Ints
    slab_of: Ints
    rows: Floats  # of each strip
    columns: Floats  # of each slab
    a: Floats  # of each bar
    b: Floats

    def brought(self, T: float) -> tuple[Floats, Floats]:
        """Operand bytes and footprint limit of every bar."""
        able = self.able(T)
        size = np.diff(np.append(self.place.bars, len(self.place.devices)))
        limit = np.minimum.reduceat(able.cut, self.place.bars)
        limit = np.where(size == 1, able.alone[self.place.bars], limit)
        return np.add.reduceat(able.operand, self.place.bars), limit

    def heights(self, operand: Floats, limit: Floats, depth: Floats, width: Floats) -> Floats:
        """Rows of every bar at its slab's ``depth`` and its strip's ``width``."""
        w = np.maximum(width, 1e-12)[self.strip_of]
        budget = operand / np.maximum(depth, 1e-12)[self.slab_of[self.strip_of]]
        return np.maximum(np.minimum((budget - self.b * w) / self.a, limit / w), 0.0)

    def widths(self, operand: Floats, limit: Floats, depth: Floats) -> Floats:
        """The widest width of every strip."""
        starts = self.place.strips
        budget = operand / np.maximum(depth, 1e-12)[self.slab_of[self.strip_of]] / self.b
        most = np.maximum(np.minimum(np.add.reduceat(limit, starts) / self.rows, np.maximum.reduceat(budget, starts)), 1e-9)

        def rows(width: Floats) -> Floats:
            return np.asarray(np.add.reduceat(self.heights(operand, limit, depth, width), starts) / self.rows)

        return log_root(rows, most * 1e-3, most)

    def cover(self, operand: Floats, limit: Floats, depth: Floats) -> Floats:
        """Share of its columns that every slab's strips reach at ``depth``."""
        return np.asarray(np.add.reduceat(self.widths(operand, limit, depth), self.place.slabs) / self.columns)

    def depths(self, T: float) -> Floats:
        """The depth that every slab reaches by ``T`` (next to none where its limits never cover the plane)."""
        operand, limit = self.brought(T)
        volume = np.add.reduceat(np.add.reduceat(operand * np.sqrt(limit), self.place.strips), self.place.slabs)
        guess = volume / (2 * np.sqrt(self.terms.row_bytes * self.terms.col_bytes) / self.terms.depth * self.terms.area)
        return log_root(lambda depth: self.cover(operand, limit, depth), guess * 0.25, guess * 1.5)

    def share(self, T: float) -> float:
        """What of the inner axis (one slab: of the plane, at whole depth) is reached by ``T``."""
        if len(self.columns) == 1:
            operand, limit = self.brought(T)
            return float(self.cover(operand, limit, np.array([float(self.terms.depth)]))[0])
        return float(self.depths(T).sum()) / self.terms.depth


def _frame(terms: Terms, devices: DeviceColumns, place: Arrangement) -> _Frame:
    own = devices.take(place.devices)
    depth = None if len(place.slabs) == 1 else terms.depth / 2.0
    planes = [Plane.of(terms, bool(transposed)) for transposed in place.transposed]
    strip_of, slab_of = run_of(place.strips, len(place.bars)), run_of(place.slabs, len(place.strips))
    slab_of_bar = slab_of[strip_of]
    return _Frame(
        terms=terms, able=lambda T: abilities(terms, own, T, depth), place=place, bar_of=run_of(place.bars, len(place.devices)),
        strip_of=strip_of, slab_of=slab_of, rows=np.array([float(plane.rows) for plane in planes])[slab_of],
        columns=np.array([float(plane.columns) for plane in planes]),
        a=np.array([plane.a for plane in planes])[slab_of_bar], b=np.array([plane.b for plane in planes])[slab_of_bar],
    )  # fmt: skip


def fitted(terms: Terms, devices: DeviceColumns, place: Arrangement, near_s: float, limit_s: float = np.inf) -> Fit | None:
    """The least time of ``place``, looked for from ``near_s``, and its sizes; None when it is over ``limit_s`` or not
    within a factor of 1000 of ``near_s``."""
    frame = _frame(terms, devices, place)
    short, enough, trial = 0.0, np.inf, near_s
    for _ in range(_CORRECTIONS):
        share = frame.share(trial)
        short, enough = (short, trial) if share >= 1 else (trial, enough)
        if short >= limit_s:
            return None
        if 1 <= share < 1 + _PRECISION or enough < short * (1 + _PRECISION) or not 1e-3 < trial / near_s < 1e3:
            break
        trial *= float(np.clip(max(share, 1e-9) ** -_POWER, 0.5, 1.05)) * (1 + _PRECISION / 2)
        if not short < trial < enough:
            trial = float(np.sqrt(short * enough))
        trial = min(trial, max(limit_s, short * (1 + _PRECISION)))
    if np.isinf(enough):
        return None
    seconds = enough
    operand, limit = frame.brought(seconds)
    depth = frame.depths(seconds) if len(frame.columns) > 1 else np.array([float(terms.depth)])
    width = frame.widths(operand, limit, depth)
    return Fit(seconds=seconds, depth=depth, width=width, height=frame.heights(operand, limit, depth, width))


def boxes_of(terms: Terms, devices: DeviceColumns, place: Arrangement, fit: Fit) -> Boxes:
    """Integer boxes of one item (number 0), exact by construction.

    A bar's depth is shared in proportion to the operand bytes that its devices bring. (Arithmetic never binds on footprints
    within their limits: see ``groups``.)"""
    frame = _frame(terms, devices, place)
    operand, limit = frame.brought(fit.seconds)
    depth = rounded(fit.depth, terms.depth)
    width = rounded_runs(fit.width, frame.slab_of, frame.columns.astype(np.int64))
    height = frame.heights(operand, limit, depth.astype(float), width.astype(float))
    tall = rounded_runs(height, frame.strip_of, frame.rows.astype(np.int64))
    slab_of_bar = frame.slab_of[frame.strip_of]
    deep = rounded_runs(frame.able(fit.seconds).operand, frame.bar_of, depth[slab_of_bar])
    column, row = before_in_run(width, frame.slab_of), before_in_run(tall, frame.strip_of)
    k = (np.cumsum(depth) - depth)[slab_of_bar][frame.bar_of] + before_in_run(deep, frame.bar_of)
    wide = width[frame.strip_of]
    used = np.flatnonzero((deep > 0) & ((wide > 0) & (tall > 0))[frame.bar_of])
    bar = frame.bar_of[used]
    sides = np.stack([column[frame.strip_of], column[frame.strip_of] + wide, row, row + tall])[:, bar]
    across = np.where(place.transposed[slab_of_bar[bar]], sides, sides[[2, 3, 0, 1]])
    own = place.devices[used]
    passes = _passes(terms, devices.memory[own], across[1] - across[0], across[3] - across[2], deep[used])
    of, top, bottom = cut_in_parts(across[0], across[1], passes)
    k = k[used][of]
    return np.stack([own[of], top, bottom, across[2][of], across[3][of], k, k + deep[used][of], 0 * of, 0 * of + 1], axis=1)


def _passes(terms: Terms, memory: Floats, tall: Ints, wide: Ints, deep: Ints) -> Ints:
    """In how many parts each box's rows are done so that the smallest of its operands fits the memory (small boxes may not,
    once rounded)."""
    kept = (1 - STREAM_SHARE) * memory
    row_bytes = np.minimum(terms.row_bytes / terms.depth * deep, wide * terms.accumulator_bytes)
    rows = np.minimum(np.floor(kept / row_bytes), tall).astype(np.int64)
    fits = terms.col_bytes / terms.depth * deep * wide <= kept
    return np.where(fits, 1, -(-tall // np.maximum(rows, 1)))
