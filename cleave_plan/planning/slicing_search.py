r"""Fleets with too many devices for all subsets: large steps from one tiling by straight cuts to a better one.

The first tiling cuts runs of the devices in order of ability. Then, again and again, devices that stand in one row or
column of the tiling are joined at random until ``GROUPS`` groups are left, and all subsets of these are tried at once;
the cuts inside a group are free to turn. Steps are judged by the cover at the time to beat: larger ones are taken, and
early on slightly smaller ones too. The least T is then found for the family of the largest cover. The number of steps
and the seed are fixed: the same input gives the same tiling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.planning.shapes import Family, Layer, runs, subsets
from cleave_plan.planning.slicing_item import Item, Tiling, fastest
from cleave_plan.planning.slicing_rounding import Node

Ints = NDArray[np.int64]

GROUPS = 8
"""Groups that are rearranged at once."""

STEPS, PATIENCE = 60, 12
"""Rearrangements that are tried at the most, and in a row without a larger cover."""

LENIENCE = 2e-3
"""Share of its cover that a step may lose at first; the allowance shrinks to nothing."""


def searched(item: Item, beat_s: float, floor_s: float) -> Tiling | None:
    """A tiling of ``item`` that takes less than ``beat_s`` seconds, when the search finds one."""
    rng = np.random.default_rng(0)
    count, T = len(item.devices), beat_s * (1 - item.worth)
    best_family = family = runs(count)
    curves = item.curves(family, T)
    best = cover = item.cover(curves, family)
    tree, last = item.tree(curves, family, T), 0
    for step in range(STEPS):
        if step - last > PATIENCE:
            break
        family = regrouped(tree, count, rng)
        curves = item.curves(family, T)
        new = item.cover(curves, family)
        if new > cover * (1 - LENIENCE * (1 - step / STEPS)):
            cover, tree = new, item.tree(curves, family, T)
        if new > best:
            best, best_family, last = new, family, step
    return fastest(item, best_family, beat_s, floor_s)


@dataclass(slots=True, eq=False)
class _Line:
    """Parts that stand in one row or column: sets by number, or lines that run the other way."""

    parts: list[int | _Line]

    def sets(self) -> list[int]:
        """Numbers of the sets that stand in this line itself."""
        return [part for part in self.parts if isinstance(part, int)]

    def lines(self) -> Iterator[_Line]:
        """This line and all lines in it."""
        yield self
        for part in self.parts:
            if isinstance(part, _Line):
                yield from part.lines()

    def join(self, one: int, two: int, joined: int) -> None:
        """Let ``joined`` stand for the sets ``one`` and ``two`` of this line."""
        self.parts = [part for part in self.parts if part not in (one, two)] + [joined]

    def straighten(self) -> None:
        """Put the set that is alone in a line in the place of the line."""
        for place, part in enumerate(self.parts):
            if isinstance(part, _Line):
                part.straighten()
                if len(part.parts) == 1:
                    self.parts[place] = part.parts[0]


def regrouped(tree: Node, devices: int, rng: np.random.Generator) -> Family:
    """All subsets of ``GROUPS`` groups of ``devices`` devices, joined at random from what stands in one line of ``tree``."""
    top = _Line([_line(tree)] if tree.parts else [tree.device])
    top.parts += sorted(set(range(devices)) - set(_members(tree)))  # those that the tiling leaves out
    pairs: list[tuple[int, int]] = []
    while devices - len(pairs) > GROUPS:
        top.straighten()
        lines = [line for line in top.lines() if len(line.sets()) > 1]
        line = lines[rng.integers(len(lines))]
        one, two = sorted(rng.choice(line.sets(), size=2, replace=False).tolist())
        line.join(one, two, devices + len(pairs))
        pairs.append((one, two))
    top.straighten()
    return _family(devices, pairs, [number for line in top.lines() for number in line.sets()])


def _line(tree: Node) -> _Line:
    """The row or column that a node with parts is, parts of parts in the same direction included."""
    parts: list[int | _Line] = []
    for part in tree.parts:
        if not part.parts:
            parts.append(part.device)
        elif part.above == tree.above:
            parts += _line(part).parts
        else:
            parts.append(_line(part))
    return _Line(parts)


def _members(tree: Node) -> Iterator[int]:
    """Devices of a tree."""
    if not tree.parts:
        yield tree.device
    for part in tree.parts:
        yield from _members(part)


def _family(devices: int, pairs: list[tuple[int, int]], groups: list[int]) -> Family:
    """Single devices, the joined ``pairs`` (numbered from ``devices`` on), and all subsets of ``groups``."""
    layers = [
        Layer(sets=np.array([devices + place]), left=np.array([[one]]), right=np.array([[two]]))
        for place, (one, two) in enumerate(pairs)
    ]
    every = subsets(len(groups))
    number = np.arange(every.count) + devices + len(pairs)
    number[every.atoms] = groups
    layers += [Layer(sets=number[layer.sets], left=number[layer.left], right=number[layer.right]) for layer in every.layers]
    return Family(count=devices + len(pairs) + every.count, atoms=np.arange(devices), layers=tuple(layers))
