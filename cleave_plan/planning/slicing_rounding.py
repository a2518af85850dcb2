r"""From a slicing tree to integer tiles: the least makespan of a given tree of straight cuts.

For a trial T every node of the tree has its most rows at each integer width of a window around the width it was found
at:

    leaf                  whole rows of its device (:func:`cleave_plan.planning.heights.heights`)
    one above the other   rows_1(w) + rows_2(w)
    one beside the other  max over w1 of min(rows_1(w1), rows_2(w - w1))

so heights are exact and widths move together by up to ``REACH`` columns: a joint rounding. Many T are tried at once, and
the least at which the root has all rows is narrowed down to ``PRECISION``; on sides within ``REACH`` it is the tree's
optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.boxes import Rectangles, table
from cleave_plan.planning.heights import heights, pass_cap
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_Rectangle = tuple[int, ...]
"""One row of :data:`~cleave_plan.planning.boxes.Rectangles`"""

REACH = 16
"""Columns by which a width may move from where it was found, either way; on narrower items any width is tried."""

THIN = 64
"""Parts found at no more columns than this may have any fewer."""

PRECISION = 1e-10
"""Relative width of the bracket in which the least T is left."""

_TRIALS = 12
"""Times that are tried at once."""

_NO_WIDTH = 1e15
"""Rows of nothing: a part of no width is no obstacle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """A rectangle about ``width`` wide: of ``device`` alone, or two ``parts`` one ``above`` the other or side by side.

    ``lengthwise``: the device's passes, where it needs several, are cut along the rows' axis into columns."""

    width: float
    device: int = -1
    lengthwise: bool = False
    above: bool = False
    parts: tuple[Node, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class _Windowed:
    """A node with the widths ``low..high`` that it may have, and its rows at these for each trial T (rows: trials)."""

    node: Node
    low: int
    high: int
    parts: list[_Windowed] = field(default_factory=list)
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def at(self, width: int) -> int:
        """Rows at ``width`` for the first trial."""
        return int(self.rows[0, width - self.low])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tree:
    terms: Terms
    devices: DeviceColumns
    root: _Windowed
    leaves: list[_Windowed]

    def evaluate(self, T: Floats) -> Floats:
        """Rows of the root at the whole width for each T; all nodes' rows are left in place."""
        self._leaf_rows(T)
        _combine(self.root)
        return np.asarray(self.root.rows[:, 0])

    def _leaf_rows(self, T: Floats) -> None:
        """All leaves at all widths and times in one call (and one more for those whose passes run lengthwise)."""
        for lengthwise in (False, True):
            leaves = [leaf for leaf in self.leaves if leaf.node.lengthwise is lengthwise]
            if not leaves:
                continue
            sizes = [leaf.high - leaf.low + 1 for leaf in leaves]
            width = np.concatenate([np.arange(leaf.low, leaf.high + 1) for leaf in leaves]).astype(float)
            place = np.repeat([leaf.node.device for leaf in leaves], sizes)
            owners = self.devices.take(np.tile(place, len(T)))
            times, widths = np.repeat(T, len(width)), np.tile(np.maximum(width, 1.0), len(T))
            if lengthwise:
                rows = _rows_lengthwise(self.terms, owners, times, widths)
            else:
                rows = heights(self.terms, owners, times, widths, whole=True)
            rows = np.where(width > 0, np.minimum(rows.reshape(len(T), -1), self.terms.rows), _NO_WIDTH)
            for leaf, own in zip(leaves, np.split(rows, np.cumsum(sizes)[:-1], axis=1), strict=True):
                leaf.rows = own


def _rows_lengthwise(terms: Terms, owners: DeviceColumns, T: Floats, width: Floats) -> Floats:
    """The most rows at which passes along the other side still give ``width`` columns, by bisection."""
    turned = terms.transposed()
    low, high = np.zeros(len(T)), np.full(len(T), float(terms.rows + 1))
    while bool((high - low > 1).any()):
        middle = np.floor((low + high) / 2)
        enough = heights(turned, owners, T, np.maximum(middle, 1.0), whole=True) >= width
        low, high = np.where(enough, np.maximum(middle, low), low), np.where(enough, high, np.maximum(middle, low + 1))
    return low


def _combine(part: _Windowed) -> None:
    if not part.parts:
        return
    first, second = part.parts
    _combine(first)
    _combine(second)
    part.rows = first.rows + second.rows if part.node.above else _beside(part)[0]


def _beside(part: _Windowed) -> tuple[Floats, Ints]:
    """Rows of two parts side by side at each width, and the first part's width (as a place in its window)."""
    first, second = part.parts
    width = np.arange(part.low, part.high + 1)[:, None]
    left = width - np.arange(first.low, first.high + 1) - second.low  # place in the second's window
    inside = (left >= 0) & (left <= second.high - second.low)
    rows = np.minimum(first.rows[:, None, :], second.rows[:, np.clip(left, 0, second.high - second.low)])
    rows = np.where(inside, rows, 0.0)
    best = rows.argmax(axis=2)
    return np.take_along_axis(rows, best[..., None], axis=2)[..., 0], best


def _windowed(node: Node, low: int, high: int, reach: int, leaves: list[_Windowed]) -> _Windowed:
    part = _Windowed(node=node, low=low, high=high)
    if not node.parts:
        leaves.append(part)
    thin = round(min((child.width for child in node.parts), default=0.0))
    own = thin if reach < thin <= THIN else reach  # it may vanish: what it was to take may be too much for it
    for child in node.parts:
        near = max(0, round(child.width) - own), min(high, round(child.width) + own)
        part.parts.append(_windowed(child, *((low, high) if node.above else near), reach, leaves))
    return part


def round_tree(terms: Terms, devices: DeviceColumns, root: Node, near_s: float) -> Rectangles:
    """Rectangles of the least T at which ``root`` covers the item in integers, looked for near ``near_s``.

    Empty when ``near_s`` is so far too small that ten times as much does not do.
    """
    leaves: list[_Windowed] = []
    reach = REACH if terms.columns > 2 * REACH else terms.columns
    tree = _Tree(terms=terms, devices=devices, leaves=leaves, root=_windowed(root, terms.columns, terms.columns, reach, leaves))
    low, high = near_s * 0.97, near_s * 1.03
    while tree.evaluate(np.array([high]))[0] < terms.rows:
        low, high = high, high * 1.5
        if high > 10 * near_s:
            return table([], 5)
    while tree.evaluate(np.array([low]))[0] >= terms.rows:
        low, high = low / 2, low
        if high < 1e-30:
            break
    while high - low > PRECISION * high:
        times = np.linspace(low, high, _TRIALS + 2)
        enough = tree.evaluate(times[1:-1]) >= terms.rows
        first = int(enough.argmax()) if bool(enough.any()) else _TRIALS
        low, high = float(times[first]), float(times[first + 1])
    tree.evaluate(np.array([high]))
    boxes: list[_Rectangle] = []
    _place(tree, tree.root, (0, terms.rows), (0, terms.columns), boxes)
    return table(boxes, 5)


def _place(tree: _Tree, part: _Windowed, rows: tuple[int, int], columns: tuple[int, int], boxes: list[_Rectangle]) -> None:
    """Boxes of ``part`` in the given ranges of rows and columns, which its rows at that width cover."""
    (top, bottom), (left, right) = rows, columns
    if bottom == top or right == left:
        return
    if not part.parts:
        boxes.extend(_passes(tree, part.node, rows, columns))
        return
    first, second = part.parts
    if part.node.above:
        own, other, height = first.at(right - left), second.at(right - left), bottom - top
        share = min(max(round(height * own / (own + other)), height - other), own)
        _place(tree, first, (top, top + share), columns, boxes)
        _place(tree, second, (top + share, bottom), columns, boxes)
        return
    cut = left + first.low + int(_beside(part)[1][0, right - left - part.low])
    _place(tree, first, rows, (left, cut), boxes)
    _place(tree, second, rows, (cut, right), boxes)


def _passes(tree: _Tree, leaf: Node, rows: tuple[int, int], columns: tuple[int, int]) -> list[_Rectangle]:
    """The boxes of one device: one, or several passes where its memory wants them."""
    terms = tree.terms.transposed() if leaf.lengthwise else tree.terms
    (start, stop), (low, high) = (columns, rows) if leaf.lengthwise else (rows, columns)
    own = tree.devices.take(np.array([leaf.device]))
    most = max(float(np.floor(pass_cap(terms, own, float(high - low))[0])), 1.0)
    boxes: list[_Rectangle] = []
    while start < stop:
        end = int(min(stop, start + most))
        boxes.append((leaf.device, low, high, start, end) if leaf.lengthwise else (leaf.device, start, end, low, high))
        start = end
    return boxes
