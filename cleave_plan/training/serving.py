"""The process of a parameter server: it holds its ranges of the parameters until its run closes the line.

It is started with :data:`START` and four numbers: the inherited descriptors of the line and of the shared memory, its place
among the servers, and the run's process id. The first message is its :class:`~cleave_plan.training.orders.Duty`.
"""

from __future__ import annotations

import resource
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cleave_plan.execution.engines.memory import Arena
from cleave_plan.training.holding import Holding, Part
from cleave_plan.training.orders import Answer, Duty, Kind, Memory, Order, heard, placed, reply

START = ("-P", "-c", "from cleave_plan.training.serving import main; main()")
"""Arguments of the interpreter: nothing from the working folder, and this module under its own name."""


def obey(holding: Holding, order: Order) -> Answer:
    """Do what an order says, with its arrays at hand."""
    sums: list[list[float]] = []
    if order.kind is Kind.SQUARES:
        sums = holding.squares(order.arrays)
    elif order.kind is Kind.UPDATE:
        holding.update(order.arrays, step=order.step, share=order.share, factor=order.factor)
    elif order.kind is Kind.GIVE:
        holding.give(order.slot, order.arrays)
    elif order.kind is Kind.TAKE:
        holding.take(order.slot, order.arrays)
    return Answer(sums=sums, memory=memory_of(holding))


def memory_of(holding: Holding) -> Memory:
    """What this process has, ``holding`` among it."""
    return Memory(holding.parameter_bytes, holding.optimizer_bytes, most_resident_bytes())


def most_resident_bytes() -> int:
    """The most memory that this process has had so far, pages that it shares and has touched among it."""
    status = Path("/proc/self/status")
    if status.exists():  # the other figure is, in a process that is young, the one of the process that started it
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) << 10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def serve(line: socket.socket, arena: Arena) -> None:
    """Take up the duty, and answer orders until the line is closed."""
    duty = heard(line)
    if not isinstance(duty, Duty):
        return
    parts = [Part(name, arena.view(block), start, stop) for name, block, start, stop in duty.parts]
    holding = Holding(parts, duty.settings, threads=duty.threads)
    with suppress(ConnectionError):  # the run is gone, and nobody is left to hear of it
        reply(line, Answer(memory=memory_of(holding)))
        while (order := heard(line)) is not None:
            try:
                answer = obey(holding, replace(order, arrays=placed(order.arrays, arena.view)))
            except Exception:  # whatever it is, the run must hear of it
                answer = Answer(memory=memory_of(holding), fault=traceback.format_exc())
            reply(line, answer)


def main() -> None:
    """Entry point of the process."""
    line_descriptor, arena_descriptor, _, _ = map(int, sys.argv[1:])
    serve(socket.socket(fileno=line_descriptor), Arena(arena_descriptor))
