r"""Where footprints lie: strips of groups over the plane, for groups that share the inner axis (see ``groups``).

In a slab of depth K' a group with operand bytes S and footprint limit q reaches, in a strip of width w,

    h(w) = min( (S/K' - b*w)/a ,  q/w )        rows (a, b: bytes of an element along the two sides)

so a strip of groups fills all M rows up to the width at which sum h(w) = M. Which consecutive groups (in falling order of
what they cover) make a strip is a dynamic programme: the widest cover of N by the first k groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.groups import SQUARE
from cleave_plan.planning.roots import log_root
from cleave_plan.planning.strips import Sides, trace, widest_cover, width_grid
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
        """Mean (h + w)/sqrt(hw) of the footprints, in bytes (2 for squares), weighted by what they cover; 2 where none does."""
        strip = np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.order))))
        w = np.maximum(self.widths[strip], 1e-12)
        h = self.plane.heights(budget[self.order], limit[self.order], w)
        kept = h > 0
        h, w = h[kept], w[kept]
        if len(h) == 0:
            return SQUARE
        around = (self.plane.a * h + self.plane.b * w) / np.sqrt(self.plane.a * self.plane.b * h * w)
        return float((around * h * w).sum() / max((h * w).sum(), 1e-300))


def best_strips(terms: Terms, budget: Floats, limit: Floats) -> Strips:
    """The strips, along either side, that cover most; ``budget``: operand bytes for each step of the inner axis."""
    found = [_strips(Plane.of(terms, transposed), budget, limit) for transposed in (False, True)]
    return max(found, key=lambda strips: strips.share)


def _strips(plane: Plane, budget: Floats, limit: Floats) -> Strips:
    square = np.minimum(limit, budget**2 / (4 * plane.a * plane.b))
    order = np.argsort(-square, kind="stable")
    sides = Sides(rows=plane.rows, columns=plane.columns, row_bytes=plane.a, col_bytes=plane.b)
    grid = width_grid(sides, budget, limit)
    height = plane.heights(budget[order], limit[order], grid[:, None])
    edges, _, came = widest_cover(height, grid, sides)
    starts = edges[trace(came, len(edges) - 1)[:-1]]
    widths = plane.widths(budget[order], limit[order], starts)
    return Strips(plane=plane, order=order, starts=starts, widths=widths, share=float(widths.sum()) / plane.columns)
