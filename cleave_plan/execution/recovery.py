"""What a run does about tiles whose device is gone: cut anew over those that are left, by the planner's own code.

Where a run knows its fleet's figures, pieces are shared out by them. A run on this machine knows no links: devices then count as
equally fast and are told apart by what they have still to do.
Only the boxes of lost devices move, and K is never cut again: every element stays the same partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import Tiles
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.reproducible import is_empty, snapped_box
from cleave_plan.execution.watch import FLOP_PER_S, OVERHEAD_S, work_of
from cleave_plan.kernels.grid import Grid
from cleave_plan.kernels.tile import Box
from cleave_plan.planning.recut import Recut, recut
from cleave_plan.workload.gemm import Gemm

_AMPLE = 1e15
"""Bytes, and bytes a second, that never bind."""


class Figures(Protocol):
    """What a run knows of its fleet."""

    def seconds(self, task: Task) -> float:
        """What a tile takes on its device."""

    def columns(self, gemm: Gemm, devices: Sequence[str]) -> DeviceColumns:
        """The figures of ``devices``, in that order, for the element type of ``gemm``."""


def cut_anew(
    gemm: Gemm, boxes: Sequence[Box], devices: Sequence[str], waiting: Iterable[Task], *, grid: Grid | None = None,
    figures: Figures | None = None,
) -> list[tuple[int, str, Box]]:  # fmt: skip
    """``boxes`` of ``gemm`` over ``devices``, which have ``waiting`` to do: (place among the boxes, device, piece).

    ``figures``: the fleet's; without any, or where some box fits no device by them, all devices count as alike. With a ``grid``,
    on which boxes are, pieces are snapped to it. Raises ExecutionError when no device is left.
    """
    if not devices:
        raise ExecutionError(
            f"no device is left to compute {len(boxes)} tiles of {gemm.name!r}",
            expected="one device at least that lives until the run is over",
            remedy="run again; if it happens again, look for what ends the devices (the system log, when memory runs out)",
        )  # fmt: skip
    place = {device: number for number, device in enumerate(devices)}
    tasks = [task for task in waiting if task.device in place]

    def over(columns: DeviceColumns, work: Callable[[Task], float]) -> Recut:
        busy = np.zeros(len(devices))
        for task in tasks:
            busy[place[task.device]] += work(task)
        return recut(gemm, Tiles.of((0, *box) for box in boxes), columns, busy)

    found = None if figures is None else over(figures.columns(gemm, devices), figures.seconds)
    if found is None or found.left:
        found = over(_alike(len(devices)), work_of)
    if found.left:  # nothing but memory could forbid it, and memory is ample
        raise AssertionError(f"{len(found.left)} boxes of {gemm.name!r} fit no device")
    columns = np.stack([found.tiles.column(name) for name in _COLUMNS], axis=1).tolist()
    owners = found.tiles.device.tolist()
    pieces = [
        (origin, devices[owner], Box(*row)) for origin, owner, row in zip(found.origin.tolist(), owners, columns, strict=True)
    ]
    if grid is None:
        return pieces
    whole = [(origin, device, snapped_box(piece, grid)) for origin, device, piece in pieces]
    return [piece for piece in whole if not is_empty(piece[2])]


_COLUMNS = Box._fields


def _alike(count: int) -> DeviceColumns:
    return DeviceColumns(
        flop_per_s=np.full(count, FLOP_PER_S), downlink=np.full(count, _AMPLE), uplink=np.full(count, _AMPLE),
        latency=np.full(count, OVERHEAD_S), memory=np.full(count, _AMPLE), curve=np.full(count, -1, dtype=np.int64), curves=(),
    )  # fmt: skip
