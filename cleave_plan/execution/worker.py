"""A worker process: it holds device identities and multiplies tiles, until its server closes the line.

The local engine starts it with :data:`START` and four numbers: the inherited descriptors of the line and the arena, its place
among the workers, and the server's process id. Messages are those of :mod:`cleave_plan.execution.engines.wire`; operands,
results and heartbeats lie in the arena.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.memory import Arena, Block
from cleave_plan.execution.engines.pieces import pieces_of
from cleave_plan.execution.engines.together import hull
from cleave_plan.execution.engines.wire import HELLO, IN_PLACE, Answer, Job, Order, answer, read_order
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.per_tile import PerTile
from cleave_plan.kernels.tile import Box, Product

if TYPE_CHECKING:
    from cleave_plan.onnx_io.conv_kernel import Convolver

START = ("-P", "-c", "from cleave_plan.execution.worker import main; main()")
"""Arguments of the interpreter: nothing from the working folder, and this module under its own name."""

BEAT_S = 0.25
"""Seconds between two heartbeats."""

BEATS = Block.contiguous(0, (1 << 12,), DType.INT64)
"""Where heartbeats are counted: one number for each worker that an engine starts in its life."""


class Bench:
    """The jobs that a worker knows, and how it computes a tile of one."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._jobs: dict[int, tuple[Job, list[Array | None], Array]] = {}
        self._convolver: Convolver | None = None
        self._read: PerTile[int] = PerTile()

    def open(self, job: Job) -> None:
        """Make a job's arrays ready."""
        operands = [None if block is None else self._arena.view(block) for block in job.operands]
        self._jobs[job.number] = (job, operands, self._arena.view(job.result))
        for block in (*job.operands, job.result):
            if block is not None:
                self._arena.prepare(block)

    def close(self, number: int) -> None:
        """Forget a job."""
        self._jobs.pop(number, None)

    def compute(self, order: Order) -> list[Answer]:
        """Compute tiles as one and leave them where they belong.

        The bytes of each are those of its pieces and its result, its seconds its share of the results.
        """
        begin = time.perf_counter()
        job, operands, whole = self._jobs[order.job]
        work, boxes = job.work, [box for _, box in order.tiles]
        box = hull(boxes)
        in_place = order.offset == IN_PLACE
        if not in_place:
            block = Block.contiguous(order.offset, work.result_shape(box), work.result_dtype(box))
            whole = self._arena.view(block)
        if not in_place:
            nbytes, _ = work.run(operands, box, whole)
        elif job.prepared and isinstance(work, Product):
            nbytes = self._by_onnxruntime().run_into(work, operands, box, whole, kernels=job.operands[1])
        else:
            nbytes = work.run_into(operands, box, whole)
        taken, shares = time.perf_counter() - begin, [work.result_bytes(each) for each in boxes]
        down = [nbytes]
        if len(boxes) > 1:
            down = [self._read.of(work, each, partial(_bytes_read, work, operands, each)) for each in boxes]
        return [
            Answer(order.job, tile, read, share, taken * share / max(1, sum(shares)))
            for (tile, _), read, share in zip(order.tiles, down, shares, strict=True)
        ]

    def _by_onnxruntime(self) -> Convolver:
        """What computes convolutions with onnxruntime, which is loaded when it is first needed."""
        from cleave_plan.onnx_io.conv_kernel import Convolver

        if self._convolver is None:
            self._convolver = Convolver()
        return self._convolver


def _bytes_read(work: Work, operands: list[Array | None], box: Box) -> int:
    """The bytes of a tile's pieces."""
    return pieces_of(work, operands, box).nbytes


def _beat(beats: Array, place: int, parent: int) -> None:
    """Show that the process runs, and end it when the server is gone in the middle of a long tile."""
    while True:
        beats[place] += 1
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(BEAT_S)


def serve(line: socket.socket, bench: Bench) -> None:
    """Answer orders until the server closes the line."""
    with suppress(ConnectionError):  # the server is gone, and nobody is left to hear of it
        line.sendall(answer(Answer(HELLO, 0)))
        while (order := read_order(line)) is not None:
            if isinstance(order, Job):
                bench.open(order)
            elif isinstance(order, int):
                bench.close(order)
            else:
                try:
                    given = bench.compute(order)
                except Exception:  # whatever it is, the server must hear of it
                    given = [Answer(order.job, tile, fault=traceback.format_exc()) for tile, _ in order.tiles]
                line.sendall(b"".join(map(answer, given)))


def main() -> None:
    """Entry point of the process."""
    line_descriptor, arena_descriptor, place, parent = map(int, sys.argv[1:])
    arena = Arena(arena_descriptor)
    threading.Thread(target=_beat, args=(arena.view(BEATS), place, parent), daemon=True).start()
    serve(socket.socket(fileno=line_descriptor), Bench(arena))
