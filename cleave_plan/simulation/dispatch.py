"""Dynamic dispatch: near the end of a level a late tile is also given to a device that has nothing to do.

The server expects each tile when the plan says. One that is still missing after ``PATIENCE`` of that time is given, beside its
own device, to the idle device that would finish it first, if that is earlier than its own device will; the first answer counts.
Latest tiles go first, and a tile is given away once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.simulation.level import LevelRun
from cleave_plan.simulation.work import LevelWork, Links

Floats = NDArray[np.float64]

PATIENCE = 1.2
"""Multiple of a tile's planned end at which it counts as late."""


def redispatched(work: LevelWork, run: LevelRun, planned: LevelRun, links: Links) -> tuple[LevelRun, int]:
    """``run`` with its late tiles given to idle devices as well, and how many were; ``planned`` is the level without jitter."""
    if run.binds != "device" or not len(work.tile):
        return run, 0
    tiles = int(work.tile.max()) + 1
    stop, due, owner = np.zeros(tiles), np.zeros(tiles), np.zeros(tiles, dtype=np.int64)
    np.maximum.at(stop, work.tile, run.stop_s)
    np.maximum.at(due, work.tile, planned.stop_s)
    owner[work.tile] = work.device
    idle_from = np.zeros(len(links))
    idle_from[work.active] = run.done_s
    moved = 0
    for tile in np.argsort(-stop, kind="stable").tolist():
        deadline = PATIENCE * due[tile]
        if stop[tile] <= deadline:
            break
        ends = np.maximum(idle_from, deadline) + _seconds_on_all(work, tile, links)
        ends[owner[tile]] = np.inf
        helper = int(ends.argmin())
        if ends[helper] >= stop[tile]:
            break
        stop[tile] = idle_from[helper] = ends[helper]
        moved += 1
    return replace(run, seconds=max(float(stop.max()), run.servers_s)), moved


def _seconds_on_all(work: LevelWork, tile: int, links: Links) -> Floats:
    """What the tile takes on each device of the fleet, in the same phases as on its own."""
    mine = np.flatnonzero(work.tile == tile)
    flop = float(work.flop[mine].sum())
    rate = work.columns[int(work.gemm[mine[0]])].rate(np.full(len(links), flop))
    phases = np.maximum(
        np.maximum(work.down_bytes[mine, None] / links.downlink, work.flop[mine, None] / rate),
        work.up_bytes[mine, None] / links.uplink,
    )
    seconds: Floats = links.latency + phases.sum(axis=0)
    return seconds
