r"""Where footprints lie: strips of groups over the plane, for groups that share the inner axis (see ``groups``).

In a slab of depth K' a group with operand bytes S and footprint limit q reaches, in a strip of width w,

    h(w) = min( (S/K' - b*w)/a ,  q/w )        rows (a, b: bytes of an element along the two sides)

so a strip of groups fills all M rows up to the width at which sum h(w) = M. Which consecutive groups (in falling order of
what they cover) make a strip is a dynamic programme: the widest cover of N by the first k groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.strips import GRID, usual_group, widest_cover
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_STEPS = 15

_LEAST = 1e-100
"""What stands for 0 among widths and depths."""


def log_root(value: Callable[[Floats], Floats], low: Floats, high: Floats, steps: int = _STEPS) -> Floats:
    """Where falling ``value`` (ratios) passes 1, for every column between ``low`` and ``high`` (both above 0).

    Regula falsi of Illinois on logarithms, in which heights, widths and depths are nearly straight lines, with a halving
    at every third step for the kinks. Where ``value`` never falls to 1 ``high`` is returned, where it is below 1 from the
    start 0.
    """

    def logs(x: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(value(np.exp(x)), 1e-9)))

    left, right = np.log(np.maximum(low, _LEAST)), np.log(np.maximum(high, _LEAST))
    above, below = logs(left), logs(right)
    side, never, always = np.zeros(len(left)), above < 0, below >= 0
    x = left
    for step in range(steps):
        part = above / np.maximum(above - below, 1e-30) if step % 3 else np.full(len(left), 0.5)
        x = left + (right - left) * np.clip(part, 0.01, 0.99)
        found = logs(x)
        keep = found >= 0
        below = np.where(keep & (side > 0), below / 2, below)
        above = np.where(~keep & (side < 0), above / 2, above)
        left, above = np.where(keep, x, left), np.where(keep, found, above)
        right, below = np.where(keep, right, x), np.where(keep, below, found)
        side = np.where(keep, 1.0, -1.0)
    return np.where(never, 0.0, np.where(always, high, np.exp(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One slab seen along its strips: they are ``rows`` long and lie beside each other over ``columns``.
    ``transposed``: they run along the columns of C.

    ``a``, ``b``: operand bytes of an element (row, inner) and (inner, column) of what is so called here."""

    rows: int
    columns: int
    a: float
    b: float
    transposed: bool

    @classmethod
    def of(cls, terms: Terms, transposed: bool) -> Plane:
        """The plane of C of one item; ``transposed``: strips run along its columns."""
        own = terms.transposed() if transposed else terms
        return cls(
            rows=own.rows, columns=own.columns, a=own.row_bytes / own.depth, b=own.col_bytes / own.depth, transposed=transposed
        )

    def heights(self, budget: Floats, limit: Floats, width: Floats) -> Floats:
        """Rows that groups with operand bytes ``budget`` for each step of the inner axis reach at ``width``."""
        return np.maximum(np.minimum((budget - self.b * width) / self.a, limit / width), 0.0)

    def widths(self, budget: Floats, limit: Floats, starts: Ints) -> Floats:
        """The widest width of each strip; its groups stand together from ``starts`` on."""
        strip = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(budget))))
        most = np.minimum(np.add.reduceat(limit, starts) / self.rows, np.maximum.reduceat(budget, starts) / self.b)

        def rows(width: Floats) -> Floats:
            return np.asarray(np.add.reduceat(self.heights(budget, limit, width[strip]), starts) / self.rows)

        return log_root(rows, most * 1e-3, most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strips:
    """Groups (``order``: their places in the caller's columns) in strips from ``starts`` on, of ``widths`` columns.

    ``share``: what the widths cover of the plane's columns; at least 1 when the slab can be done."""

    plane: Plane
    order: Ints
    starts: Ints
    widths: Floats
    share: float

    def slack(self, budget: Floats, limit: Floats) -> float:
        """Mean (h + w)/sqrt(hw) of the footprints, in bytes (2 for squares), weighted by what they cover."""
        strip = np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.order))))
        w = np.maximum(self.widths[strip], 1e-12)
        h = self.plane.heights(budget[self.order], limit[self.order], w)
        kept = h > 0
        h, w = h[kept], w[kept]
        around = (self.plane.a * h + self.plane.b * w) / np.sqrt(self.plane.a * self.plane.b * h * w)
        return float((around * h * w).sum() / max((h * w).sum(), 1e-300))


def best_strips(terms: Terms, budget: Floats, limit: Floats) -> Strips:
    """The strips, along either side, that cover most; ``budget``: operand bytes for each step of the inner axis."""
    found = [_strips(Plane.of(terms, transposed), budget, limit) for transposed in (False, True)]
    return max(found, key=lambda strips: strips.share)


def _strips(plane: Plane, budget: Floats, limit: Floats) -> Strips:
    square = np.minimum(limit, budget**2 / (4 * plane.a * plane.b))
    order = np.argsort(-square, kind="stable")
    count = len(order)
    grid = np.geomspace(max(plane.columns / (20.0 * count), 1e-3), plane.columns, GRID)
    height = plane.heights(budget[order], limit[order], grid[:, None])
    prefix = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(height, axis=1)], axis=1)
    longest = int(min(count, max(12, 4 * np.ceil(np.sqrt(count * max(1.0, plane.rows / plane.columns))))))
    usual = usual_group((plane.rows * plane.a, plane.columns * plane.b), count)
    edges, _, came = widest_cover(prefix, grid, plane.rows, longest, usual)
    bounds = [len(edges) - 1]
    while bounds[-1] > 0:
        bounds.append(int(came[bounds[-1]]))
    starts = edges[bounds[:0:-1]]
    widths = plane.widths(budget[order], limit[order], starts)
    return Strips(plane=plane, order=order, starts=starts, widths=widths, share=float(widths.sum()) / plane.columns)
