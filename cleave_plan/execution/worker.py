"""A worker process: it holds device identities and multiplies tiles, until its server closes the line.

The local engine starts it with :data:`START` and five numbers: the inherited descriptors of the line, the arena and the
heartbeats, its place among the workers, and the server's process id. Orders and answers are small tuples; operands and
results lie in the arena.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

from cleave_plan.dtypes import DType
from cleave_plan.execution.engines.memory import Arena, Block
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box

START = ("-P", "-c", "from cleave_plan.execution.worker import main; main()")
"""Arguments of the interpreter: nothing from the working folder, and this module under its own name (its tuples are pickled)."""

BEAT_S = 0.25
"""Seconds between two heartbeats."""


class Order(NamedTuple):
    """One tile: where its operands lie and where its result goes."""

    job: int
    tile: int
    box: Box
    work: Work
    operands: tuple[Block | None, ...]
    result: Block


class Answer(NamedTuple):
    """A tile that is done, or ``fault``: the traceback of what went wrong."""

    job: int
    tile: int
    bytes_down: int
    bytes_up: int
    seconds: float
    fault: str = ""


def compute(order: Order, arena: Arena) -> Answer:
    """Compute one tile in place; the bytes are those of its pieces and its result."""
    begin = time.perf_counter()
    operands = [None if block is None else arena.view(block) for block in order.operands]
    nbytes, result = order.work.run(operands, order.box)
    arena.view(order.result)[...] = result
    return Answer(order.job, order.tile, nbytes, result.nbytes, time.perf_counter() - begin)


def _beat(beats: Array, place: int, parent: int) -> None:
    """Show that the process runs, and end it when the server is gone in the middle of a long tile."""
    while True:
        beats[place] += 1
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(BEAT_S)


def serve(line: Connection, arena: Arena) -> None:
    """Answer orders until the server sends None or closes the line."""
    while True:
        try:
            order: Order | None = line.recv()
        except (EOFError, ConnectionError):
            return
        if order is None:
            return
        try:
            answer = compute(order, arena)
        except Exception:  # whatever it is, the server must hear of it
            answer = Answer(order.job, order.tile, 0, 0, 0.0, traceback.format_exc())
        try:
            line.send(answer)
        except (BrokenPipeError, ConnectionError):
            return


def main() -> None:
    """Entry point of the process."""
    line_descriptor, arena_descriptor, beats_descriptor, place, parent = map(int, sys.argv[1:])
    beats = Arena(beats_descriptor).view(Block(0, (place + 1,), DType.INT64))
    threading.Thread(target=_beat, args=(beats, place, parent), daemon=True).start()
    serve(Connection(line_descriptor), Arena(arena_descriptor))
