"""Tiles that one process computes as one: neighbours whose union is a box.

A convolution's tile reads more than its share of the input (its windows overlap those of its neighbours) and begins in the middle
of an image, which has to be copied. Tiles of one process that are sent together need neither between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cleave_plan.kernels.tile import Box


@lru_cache(maxsize=1 << 12)
def rectangles(boxes: tuple[Box, ...]) -> tuple[tuple[int, ...], ...]:
    """The places of disjoint ``boxes`` in groups whose union is a box; each place is in one group.

    Two groups at a time are joined, the first that can be, until there are none: the same groups for the same boxes, not always
    the fewest.
    """
    groups: list[tuple[tuple[int, ...], Box]] = [((place,), box) for place, box in enumerate(boxes)]
    joined = True
    while joined:
        joined = False
        for one in range(len(groups)):
            for other in range(one + 1, len(groups)):
                if touch(groups[one][1], groups[other][1]):
                    places, box = groups.pop(other)
                    groups[one] = (*groups[one][0], *places), hull((groups[one][1], box))
                    joined = True
                    break
            if joined:
                break
    return tuple(places for places, _ in groups)


def touch(one: Box, other: Box) -> bool:
    """Whether two boxes differ along one axis, on which one ends where the other begins."""
    sides = [(one[axis : axis + 2], other[axis : axis + 2]) for axis in range(0, 8, 2)]
    apart = [(mine, others) for mine, others in sides if mine != others]
    return len(apart) == 1 and (apart[0][0][1] == apart[0][1][0] or apart[0][1][1] == apart[0][0][0])


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box that holds all of ``boxes``."""
    if len(boxes) == 1:
        return boxes[0]
    ends = [(min, max)[axis % 2](box[axis] for box in boxes) for axis in range(8)]
    return Box(*ends)
