"""What an engine is: it brings operands within reach of devices, sends tiles, and hands back their results.

The server drives it: ``start``; per GEMM or chain ``open``; ``send`` every tile; ``collect`` until all are back; ``close`` each
GEMM; ``stop`` at the end, whatever happened. An engine never decides what is computed where: a task names its device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box


class Task(NamedTuple):
    """Tile number ``tile`` of the opened GEMM ``job``, for the device identity ``device``."""

    job: int
    tile: int
    device: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A tile that is done: ``result`` [batch, rows, columns] is valid until its job is closed.

    ``bytes_down`` and ``bytes_up`` are what travelled (or, on one machine, what a link would have carried);
    ``seconds`` is the time that the device took.
    """

    task: Task
    result: Array
    bytes_down: int
    bytes_up: int
    seconds: float


class Engine(Protocol):
    """A way to run tiles on devices. Every method raises ExecutionError when a device is lost."""

    def start(self, load: Mapping[str, float]) -> None:
        """Make the device identities ready; ``load`` gives each one's share of the work, in any unit."""

    def open(self, job: int, work: Work, operands: Sequence[Array | None], boxes: Mapping[int, Box]) -> None:
        """Bring canonical operands (in the order of ``work.run``) within reach and make room for the results of ``boxes``."""

    def send(self, task: Task) -> None:
        """Hand a tile to its device; returns at once."""

    def collect(self) -> Finished:
        """Wait for the next tile of those sent."""

    def close(self, job: int) -> None:
        """Let go of a GEMM's operands and results."""

    def lost(self) -> tuple[str, ...]:
        """Device identities that are gone."""

    def stop(self) -> None:
        """End everything that was started; safe to call at any time, more than once."""
