r"""Middling fleets: bands of a few devices each, cut in straight lines as deep as they like.

Strips hold devices of about one size side by side. Where the shorter side of an item has room for two or three tiles
only, few sizes fit it, and strips stay a percent or two above the bound. Here the devices are dealt to *clusters* of up
to ``MEMBERS``, large and small ones to each; every cluster takes a band over the whole shorter side and cuts it as the
search of small fleets does (:mod:`cleave_plan.planning.slicing`): a large tile beside two small ones on top of each
other, and so on. The shape curves of all subsets of all clusters are made at once, so a look at all bands costs
milliseconds.

    cover(T) = sum over clusters of the rows of their band by time T / M

Devices of different clusters are exchanged, a random pair for every two clusters at a time, wherever that makes their
two bands higher, until the bands cover the item at ``AIM`` above the bound. Then the least T for these clusters is closed in
on, and all cuts are made integers jointly (:mod:`cleave_plan.planning.slicing_rounding`). The random numbers are always the
same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.boxes import Rectangles
from cleave_plan.planning.shapes import Curves, Family, Layer, axis_of, device_curves, set_curves, subsets
from cleave_plan.planning.slicing_item import Item, Tiling
from cleave_plan.planning.slicing_rounding import Node
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MEMBERS = 6
"""Devices of a cluster."""

ENOUGH = 1e-2
"""Tilings this near the bound are not looked for again."""

AIM = 8e-3
"""Exchanges end when the bands cover the item at this share above the bound."""

_TALLEST = 4
"""Bands are not expected to be more than so many times as high as if all were the same."""

ROUNDS, PATIENCE, GAIN = 120, 10, 1e-3
"""Rounds of exchanges at the most; they end after any ``PATIENCE`` of them that won less than this share of the item's rows."""

_NEAR, _TRIALS, _GROWTH = 3e-4, 12, 1.5
"""Of the least T: how near to it is near enough, times that are tried at the most, the power of time that cover grows with."""


def clustered(terms: Terms, devices: DeviceColumns, order: Ints, beat_s: float, floor_s: float) -> Rectangles | None:
    """One item's tiling by bands of clusters of the devices ``order`` (ablest first), in the orientation of ``terms``.

    ``floor_s``: a time that no tiling beats (the lower bound). None unless it takes less than ``beat_s`` seconds on the
    slowest device, or where ``beat_s`` is near the bound.
    """
    if terms.columns > terms.rows:
        turned = clustered(terms.transposed(), devices, order, beat_s, floor_s)
        return None if turned is None else turned[:, [0, 3, 4, 1, 2]]
    if beat_s <= floor_s * (1 + ENOUGH):
        return None
    seconds, boxes = _Bands.of(terms, devices.take(order)).tiling(floor_s)
    return np.column_stack([order[boxes[:, 0]], boxes[:, 1:]]) if seconds < beat_s else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bands:
    """An item and its clusters: ``sizes[c]`` devices each, whose subsets make up ``family``; ``tops[c]`` is all of cluster c."""

    item: Item
    sizes: Ints
    family: Family
    tops: Ints

    @classmethod
    def of(cls, terms: Terms, devices: DeviceColumns) -> _Bands:
        """As many clusters as hold all devices, of nearly the same sizes."""
        count = -(-len(devices) // MEMBERS)
        ends = np.linspace(0, len(devices), count + 1).round().astype(np.int64)
        sizes = ends[1:] - ends[:-1]
        family, tops = _side_by_side(tuple(sizes.tolist()))
        tall = min(terms.rows, _TALLEST * terms.rows // count)
        down, across = axis_of(tall, _TALLEST * MEMBERS), axis_of(terms.columns, MEMBERS)
        return cls(item=Item(terms=terms, devices=devices, down=down, across=across), sizes=sizes, family=family, tops=tops)

    def tiling(self, floor_s: float) -> Tiling:
        """The tiling that the search ends with."""
        seat = self._exchanged(self._dealt(), floor_s * (1 + AIM))
        T = self._least(seat, floor_s)
        return self.item.tiling(self._tree(seat, T), T)

    def _dealt(self) -> Ints:
        """``seat[p]``: the device at place p, clusters one after the other; dealt to and fro, the ablest first."""
        place = np.arange(len(self.item.devices))
        turn, cluster = np.divmod(place, len(self.sizes))
        cluster = np.where(turn % 2 == 0, cluster, len(self.sizes) - 1 - cluster)
        by_cluster = np.argsort(cluster, kind="stable")
        return np.asarray(by_cluster)

    def _single(self, T: float) -> Curves:
        return device_curves(self.item.terms, self.item.devices, T, self.item.down, self.item.across)

    def _curves(self, single: Curves, seat: Ints) -> Curves:
        """Curves of all subsets of all clusters, from those of single devices."""
        return set_curves(replace(single, rows=single.rows[seat], columns=single.columns[seat]), self.family, whole=True)

    def _heights(self, single: Curves, seat: Ints) -> Floats:
        """Rows of each cluster's band."""
        return np.asarray(self._curves(single, seat).rows[self.tops, -1])

    def _exchanged(self, seat: Ints, T: float) -> Ints:
        """``seat`` after exchanges that make bands higher at time T."""
        rng, count, rows = np.random.default_rng(0), len(self.sizes), self.item.terms.rows
        first, single = np.cumsum(self.sizes) - self.sizes, self._single(T)
        height = self._heights(single, seat)
        covers = [float(height.sum())]
        while covers[-1] < rows and len(covers) <= ROUNDS:
            if len(covers) > PATIENCE and covers[-1] - covers[-1 - PATIENCE] < GAIN * rows:
                break
            pairs = rng.permutation(count)[: count // 2 * 2].reshape(-1, 2)
            one, two = (first[side] + rng.integers(self.sizes[side]) for side in pairs.T)
            other = seat.copy()
            other[one], other[two] = seat[two], seat[one]
            changed = self._heights(single, other)
            better = changed[pairs].sum(axis=1) > height[pairs].sum(axis=1)
            kept = np.concatenate([one[better], two[better]])
            seat[kept], moved = other[kept], pairs[better].ravel()
            height[moved] = changed[moved]
            covers.append(float(height.sum()))
        return seat

    def _least(self, seat: Ints, floor_s: float) -> float:
        """The least T at which the bands cover the item, about: guesses from how far the last cover was off."""
        low, high, trial = floor_s, np.inf, floor_s * (1 + AIM)
        for _ in range(_TRIALS):
            off = (float(self._heights(self._single(trial), seat).sum()) / self.item.terms.rows) ** (1 / _GROWTH)
            low, high = (low, trial) if off >= 1 else (trial, high)
            if high - low <= _NEAR * low or 1 <= off < 1 + _NEAR:
                break
            guess = trial / np.clip(off, 0.5, 2.0) * (1 + _NEAR / 2)
            trial = float(guess) if low < guess < high else (low + min(high, 2 * low)) / 2
        return high if np.isfinite(high) else 2 * trial

    def _tree(self, seat: Ints, T: float) -> Node:
        """The bands one above the other, as a tree of few levels."""
        curves = self._curves(self._single(T), seat)
        seated = replace(self.item, devices=self.item.devices.take(seat))
        heights, width = curves.rows[self.tops, -1], float(self.item.terms.columns)
        bands = [
            _of_devices(seated.cut(curves, self.family, T, int(top), float(height), width), seat)
            for top, height in zip(self.tops, heights, strict=True)
            if height > 0
        ]
        while len(bands) > 1:
            pairs = [Node(width=width, above=True, parts=(one, two)) for one, two in zip(bands[::2], bands[1::2], strict=False)]
            bands = pairs + bands[len(pairs) * 2 :]
        return bands[0]


def _of_devices(node: Node, seat: Ints) -> Node:
    """The tree with the devices that sit at its leaves' places."""
    if node.parts:
        return replace(node, parts=tuple(_of_devices(part, seat) for part in node.parts))
    return replace(node, device=int(seat[node.device]))


@cache
def _side_by_side(sizes: tuple[int, ...]) -> tuple[Family, Ints]:
    """All subsets of clusters of these sizes as one family (its layers by the number of members), and each whole cluster."""
    atoms, tops, start = [], [], 0
    layers: dict[int, list[Layer]] = {}
    for size in sizes:
        own = subsets(size)
        atoms.append(own.atoms + start)
        for place, layer in enumerate(own.layers):
            moved = Layer(sets=layer.sets + start, left=layer.left + start, right=layer.right + start)
            layers.setdefault(place, []).append(moved)
        tops.append(start + own.everything)
        start += own.count
    merged = [
        Layer(
            sets=np.concatenate([layer.sets for layer in same]), left=np.concatenate([layer.left for layer in same]),
            right=np.concatenate([layer.right for layer in same]),
        )
        for _, same in sorted(layers.items())
    ]  # fmt: skip
    return Family(count=start, atoms=np.concatenate(atoms), layers=tuple(merged)), np.array(tops)
