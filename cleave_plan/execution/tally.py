"""What a batch did, as it goes: tiles, bytes and seconds, when each tile was there, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cleave_plan.execution.engines.base import Finished
from cleave_plan.execution.incidents import Journal


class TileTime(NamedTuple):
    """A tile of ``gemm`` that ``device`` returned in ``level`` (from 0), used or not. From ``start_s`` (it had been sent, and the
    device's tile before it was there) to ``stop_s``, seconds since the batch began; ``multiply_s`` of them by the device's own
    clock. Bytes as a link carries them."""

    device: str
    gemm: str
    level: int
    start_s: float
    stop_s: float
    multiply_s: float
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTiming:
    """How long a level took from its first tile's leaving: ``seconds`` until all results were put together, ``device_s`` until
    the last result of each device was there. A level that the server does alone has no devices and takes what its GEMMs take.
    ``start_s``: when it began, seconds since the batch did.
    """

    seconds: float
    device_s: Mapping[str, float]
    start_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was done so far: tiles of devices, tiles of the server, bytes down and up, seconds by device, and what went wrong.

    ``began``: when the batch did, by time.perf_counter().
    """

    tiles: int = 0
    at_home: int = 0
    down: int = 0
    up: int = 0
    device_s: dict[str, float] = field(default_factory=dict)
    tile_times: list[TileTime] = field(default_factory=list)
    journal: Journal = field(default_factory=Journal)
    began: float = field(default_factory=time.perf_counter)

    def count(self, finished: Finished) -> None:
        """Add a tile of a device."""
        self.tiles, self.down, self.up = self.tiles + 1, self.down + finished.bytes_down, self.up + finished.bytes_up
        device = finished.task.device
        self.device_s[device] = self.device_s.get(device, 0.0) + finished.seconds
