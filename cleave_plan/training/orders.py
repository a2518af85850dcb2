"""What a run says to its parameter servers, and what they answer; over a socket, one after the other.

An order is pickled (a server does what its run says in any case); an answer is JSON, and never a pickle. Both are preceded by
their length. Arrays do not travel: they lie in shared memory, and an order has their places.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from cleave_plan.execution.engines.memory import Block
from cleave_plan.execution.engines.wire import exactly
from cleave_plan.kernels.arrays import Array
from cleave_plan.training.settings import Settings

_LENGTH = struct.Struct("<Q")

MOST_TEXT = 4096
"""Characters of a fault that are told."""


class Kind(Enum):
    """SQUARES: add up the squares of gradients. UPDATE: one optimizer step. GIVE and TAKE: copy a slot out of the server's
    ranges or into them. REPORT: only the answer's memory is asked for.
    """

    SQUARES = auto()
    UPDATE = auto()
    GIVE = auto()
    TAKE = auto()
    REPORT = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """``arrays``: flat and whole, by parameter (on the line: their places). ``step``, ``share`` and ``factor`` are those of
    :meth:`~cleave_plan.training.holding.Holding.update`, ``slot`` is that of ``give`` and ``take``.
    """

    kind: Kind
    arrays: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    share: float = 0.0
    factor: float = 1.0
    slot: str = ""


class Memory(NamedTuple):
    """Bytes that a server holds, and the most that its process has had in memory so far."""

    parameter_bytes: int
    optimizer_bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``sums``: of each part, those of :meth:`~cleave_plan.training.holding.Holding.squares`. ``fault``: what went wrong."""

    memory: Memory
    sums: list[list[float]] = field(default_factory=list)
    fault: str = ""


class Duty(NamedTuple):
    """What a server process is told first: its parts (parameter, place of its whole values, start, stop)."""

    parts: tuple[tuple[str, Block, int, int], ...]
    settings: Settings
    threads: int


def tell(line: socket.socket, message: Duty | Order) -> None:
    """Send what a server reads with :func:`heard`."""
    body = pickle.dumps(message)
    line.sendall(_LENGTH.pack(len(body)) + body)


def heard(line: socket.socket) -> Any:
    """The run's next message; None when the line is closed."""
    body = _message(line)
    return None if body is None else pickle.loads(body)


def reply(line: socket.socket, answer: Answer) -> None:
    """Send what the run reads with :func:`replied`. JSON keeps every bit of a float."""
    body = json.dumps([answer.memory, answer.sums, answer.fault[-MOST_TEXT:]]).encode()
    line.sendall(_LENGTH.pack(len(body)) + body)


def replied(line: socket.socket) -> Answer | None:
    """A server's next answer; None when the line is closed. Raises TimeoutError where the line has a limit."""
    body = _message(line)
    if body is None:
        return None
    memory, sums, fault = json.loads(body)
    return Answer(memory=Memory(*memory), sums=sums, fault=fault)


def placed(arrays: Mapping[str, Array], place: Any) -> dict[str, Any]:
    """``arrays`` as ``place`` has them."""
    return {name: place(array) for name, array in arrays.items()}


def _message(line: socket.socket) -> bytes | None:
    head = exactly(line, _LENGTH.size)
    return None if head is None else exactly(line, _LENGTH.unpack(head)[0])
