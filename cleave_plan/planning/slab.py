"""The part of a GEMM that its server computes itself: a slab cut off the end of one axis, and what is left for devices.

With many batch items the slab is whole items; otherwise it is the same rows (or columns, whichever side is longer, so
that the cut is fine) of every item.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cleave_plan.planning.terms import Terms

MANY_ITEMS = 64
"""From this many batch items on, the slab is whole items; work that cannot be cut otherwise always is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """``box``: (row_start, row_stop, column_start, column_stop, k_start, k_stop, item_start, item_stop); ``rest``: terms of
    what is left; ``area``: elements of C in the slab."""

    box: tuple[int, ...]
    rest: Terms
    area: float


def slab_of(terms: Terms, area: float) -> Slab | None:
    """The slab nearest to ``area`` elements of C; None when that rounds to nothing or to everything."""
    rows, columns, items = terms.rows, terms.columns, terms.items
    deep = (0, terms.depth)
    if items >= MANY_ITEMS or terms.area == 1:
        count = round(area / terms.area)
        box, rest = (0, rows, 0, columns, *deep, items - count, items), replace(terms, items=items - count)
        whole, size = items, count * terms.area
    elif rows >= columns:
        count = round(area / (items * columns))
        box = (rows - count, rows, 0, columns, *deep, 0, items)
        rest = replace(terms, rows=rows - count, bound_rows=min(terms.bound_rows, rows - count))
        whole, size = rows, count * columns * items
    else:
        count = round(area / (items * rows))
        box, rest = (0, rows, columns - count, columns, *deep, 0, items), replace(terms, columns=columns - count)
        whole, size = columns, count * rows * items
    return Slab(box=box, rest=rest, area=float(size)) if 0 < count < whole else None
