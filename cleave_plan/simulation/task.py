"""A tile that a device computes in the simulation of devices that come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleave_plan.cost.tile import BOX, Tiles
from cleave_plan.simulation.crowd import Floats

Box = tuple[int, ...]
"""A tile's eight numbers, in the order of :data:`~cleave_plan.cost.tile.BOX`."""


@dataclass(slots=True, kw_only=True)
class Task:
    """A tile of the level's product ``part`` on a row: its box, its seconds at factor 1."""

    part: int
    box: Box
    seconds: float

    @property
    def macs(self) -> float:
        """Multiply-adds of the box, a whole number."""
        return float(np.prod([self.box[i + 1] - self.box[i] for i in (0, 2, 4, 6)], dtype=float))


def tasks_of(part: int, tiles: Tiles, seconds: Floats) -> list[Task]:
    """A task for each of ``tiles``, which take ``seconds`` at factor 1."""
    boxes = np.stack([tiles.column(name) for name in BOX], axis=1).tolist()
    return [Task(part=part, box=tuple(box), seconds=s) for box, s in zip(boxes, seconds.tolist(), strict=True)]
