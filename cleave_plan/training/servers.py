"""The parameter servers as a run sees them: the first is the run's own process, every other one a process of its own.

A server is asked first and answers later, so that all of them work at the same time. What it holds beside the parameters'
values is nowhere else: when its process ends, the run does too, and goes on from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from cleave_plan.errors import ExecutionError
from cleave_plan.execution.cores import usable_cores
from cleave_plan.execution.engines.process import WorkerProcess
from cleave_plan.execution.engines.shared import SharedArrays
from cleave_plan.training.holding import Holding, Part
from cleave_plan.training.orders import Answer, Duty, Kind, Order, placed, replied, tell
from cleave_plan.training.serving import START, obey
from cleave_plan.training.settings import Settings

PATIENCE_S = 60.0
"""Seconds that a server may take to answer, beside those for the elements that it works on."""

SLOWEST_ELEMENTS_PER_S = 1e6
"""Elements of its parameters that a server gets through in a second at the very least; the usual is 100 times as many."""

CLOSING_S = 0.5
"""Seconds that a server whose line is closed may take to leave by itself."""


class Server(Protocol):
    """One parameter server. ``process``: its process id, None for the run's own."""

    name: str
    process: int | None

    def ask(self, order: Order) -> None:
        """Let it do something; its arrays are flat, whole, and where the server reaches them."""

    def answer(self) -> Answer:
        """What came of the last order; raises ExecutionError, with the server's name, when it is gone or could not do it."""

    def close(self) -> None:
        """End it."""


class OwnServer:
    """The server that the run's own process plays."""

    process: int | None = None

    def __init__(self, name: str, parts: Sequence[Part], settings: Settings, *, threads: int) -> None:
        self.name = name
        self._holding = Holding(parts, settings, threads=threads)
        self._order = Order(kind=Kind.REPORT)

    def ask(self, order: Order) -> None:
        """Keep the order; the others get theirs before this process is busy."""
        self._order = order

    def answer(self) -> Answer:
        """Do it."""
        order, self._order = self._order, Order(kind=Kind.REPORT)
        return obey(self._holding, order)

    def close(self) -> None:
        """End the threads."""
        self._holding.close()


class ProcessServer:
    """A server in a process of its own, number ``place``; ``room`` is the memory in which the parameters' values lie."""

    def __init__(
        self, name: str, place: int, parts: Sequence[Part], settings: Settings, *, threads: int, room: SharedArrays
    ) -> None:  # fmt: skip
        self.name, self._room = name, room
        self._work_s = sum(part.stop - part.start for part in parts) / SLOWEST_ELEMENTS_PER_S
        self._process = WorkerProcess.spawn(START, place, room.descriptor, role="parameter server")
        self.process: int | None = self._process.pid
        blocks = tuple((part.name, room.block(part.values), part.start, part.stop) for part in parts)
        self._tell(Duty(blocks, settings, threads))

    def ask(self, order: Order) -> None:
        """Send the order, with the places of its arrays."""
        self._tell(replace(order, arrays=placed(order.arrays, self._room.block)))

    def answer(self) -> Answer:
        """Wait for it."""
        limit_s = PATIENCE_S + self._work_s
        try:
            self._process.line.settimeout(limit_s)
            answer = replied(self._process.line)
        except OSError:
            self._process.kill()
            raise self._gone(f"has not answered for {limit_s:.0f} s and was ended") from None
        if answer is None:
            raise self._gone(self._process.end(CLOSING_S))
        if answer.fault:
            raise self._gone(f"could not do what it was asked ({answer.fault.strip().splitlines()[-1]})")
        return answer

    def close(self) -> None:
        """Close the line, on which the process leaves, or is ended."""
        self._process.line.close()
        self._process.end(CLOSING_S)

    def _tell(self, message: Duty | Order) -> None:
        try:
            tell(self._process.line, message)
        except OSError:  # it is gone, or reads nothing: the line says so when its answer is waited for
            self._process.kill()

    def _gone(self, how: str) -> ExecutionError:
        return ExecutionError(
            f"{how}, and with it went the optimizer state of its parameters",
            where=f"server {self.name!r} (process {self.process})",
            expected="servers that stay until the run is over",
            remedy="go on from the last checkpoint: the same command with --resume (--checkpoint DIR writes them)",
        )  # fmt: skip


def start_servers(parts: dict[str, list[Part]], settings: Settings, room: SharedArrays | None) -> tuple[Server, ...]:
    """The servers of ``parts`` (by name, in the plan's order, the first the run's own); ``room`` is asked for with several.

    Raises ExecutionError when one cannot be started, with none left.
    """
    threads = max(1, usable_cores() // len(parts))
    started: list[Server] = []
    others: list[Server] = []
    try:
        for place, (name, own) in enumerate(parts.items()):
            if not place:
                started.append(OwnServer(name, own, settings, threads=threads))
            else:
                assert room is not None
                others.append(ProcessServer(name, place, own, settings, threads=threads, room=room))
        for server in others:
            server.answer()
    except BaseException:
        for server in (*started, *others):
            server.close()
        raise
    return (*started, *others)
