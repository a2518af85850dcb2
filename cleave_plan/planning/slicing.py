r"""Small fleets: the best tiling by straight cuts from edge to edge (guillotine cuts), found by dynamic programming.

Strips are two levels of cuts; with few devices that is too coarse, and they stay percents above the bound. Here the
cuts may nest as deep as they like: the item is cut across or lengthwise, and so are the parts, until each part has one
device. At a trial T the shape curves of all subsets of devices (:mod:`cleave_plan.planning.shapes`) tell whether T can
be done, T is bisected, the cuts are read off the curves from the top, and their widths are made integers jointly
(:mod:`cleave_plan.planning.slicing_rounding`).

The columns are the shorter side. On items of up to ``EXACT_SIDE`` rows and columns and with up to ``EVERY_SUBSET``
devices the tiling is exact: no other one by straight cuts is faster. With more devices the subsets are those of a few
groups that are drawn again and again (:mod:`cleave_plan.planning.slicing_search`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.boxes import Rectangles
from cleave_plan.planning.shapes import WHOLE_SIDE, axis_of, subsets
from cleave_plan.planning.slicing_item import EXACT_SIDE, Item, fastest
from cleave_plan.planning.slicing_search import searched
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]

EVERY_SUBSET = 10
"""Up to this many devices all subsets are tried."""

MOST = 16
"""Up to this many devices a search is made; strips do well with more."""


def slicing_tilings(terms: Terms, devices: DeviceColumns, order: Ints, beat_s: float, floor_s: float) -> Rectangles | None:
    """One item's tiling by straight cuts over devices ``order`` (ablest first), in the orientation of ``terms``.

    ``floor_s``: a time that no tiling beats (the lower bound). None unless it takes less than ``beat_s`` seconds on the
    slowest device.
    """
    if terms.columns > terms.rows:
        turned = slicing_tilings(terms.transposed(), devices, order, beat_s, floor_s)
        return None if turned is None else turned[:, [0, 3, 4, 1, 2]]
    few = len(order) <= EVERY_SUBSET
    down, across = (axis_of(side, len(order), WHOLE_SIDE if few else EXACT_SIDE) for side in (terms.rows, terms.columns))
    item = Item(terms=terms, devices=devices.take(order), down=down, across=across)
    if beat_s <= floor_s * (1 + item.worth) or terms.columns == 1:
        return None
    found = fastest(item, subsets(len(order)), beat_s, floor_s) if few else searched(item, beat_s, floor_s)
    if found is None or found[0] >= beat_s:
        return None
    return np.column_stack([order[found[1][:, 0]], found[1][:, 1:]])
