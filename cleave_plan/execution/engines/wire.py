"""What the local engine and its workers say to each other, over one socket a worker.

From the server: the letter of a message, its length, and its body. ``J`` opens a job (pickled: a worker does what its server
says in any case), ``T`` are tiles, ``C`` closes a job. From a worker only answers of a fixed form are taken, and never
pickles: five numbers and, for a tile that failed, a text of bounded length. Anything else is a :class:`BrokenLineError`.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
from functools import lru_cache
from typing import NamedTuple

from cleave_plan.execution.engines.memory import Block
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Box

HELLO = -1
"""The job of the answer by which a worker says that it is ready."""

IN_PLACE = -1
"""The place of a tile whose result goes into the whole result."""

MOST_TEXT = 4096
"""Bytes of text that an answer may have."""

_PLACE = struct.Struct("<2q")
_TILE = struct.Struct("<9q")
_ANSWER = struct.Struct("<4qdq")
_HEAD = struct.Struct("<cI")
_JOB_NUMBER = struct.Struct("<q")


class BrokenLineError(Exception):
    """What came over a line is no message."""


class Job(NamedTuple):
    """A GEMM or chain: where its operands lie, and its whole result.

    ``prepared``: it is a convolution for onnxruntime, whose kernels are the same in every job that has them in this place.
    """

    work: Work
    number: int
    operands: tuple[Block | None, ...]
    result: Block
    prepared: bool = False


class Order(NamedTuple):
    """Tiles of a job, numbers and boxes, that are computed as one: their union is a box.

    The result goes to ``offset`` in the arena, or into the whole result (IN_PLACE).
    """

    job: int
    offset: int
    tiles: tuple[tuple[int, Box], ...]


class Answer(NamedTuple):
    """A tile that is done, or ``fault``: what went wrong."""

    job: int
    tile: int
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    fault: str = ""


def opening(job: Job) -> bytes:
    """The message that opens a job."""
    return _framed(b"J", pickle.dumps((_packed(job.work), *job[1:])))


@lru_cache(maxsize=1 << 12)
def _packed(work: Work) -> bytes:
    """Kept, because every batch has the same work again."""
    return pickle.dumps(work)


@lru_cache(maxsize=1 << 12)
def _unpacked(data: bytes) -> Work:
    work: Work = pickle.loads(data)
    return work


def tiles(order: Order) -> bytes:
    """The message of tiles that are computed as one."""
    parts = [_PLACE.pack(order.job, order.offset), *(_TILE.pack(number, *box) for number, box in order.tiles)]
    return _framed(b"T", b"".join(parts))


def closing(job: int) -> bytes:
    """The message that closes a job."""
    return _framed(b"C", _JOB_NUMBER.pack(job))


def answer(given: Answer) -> bytes:
    """The message of an answer; text beyond the bound keeps its end, where a traceback says what happened."""
    text = given.fault.encode()[-MOST_TEXT:]
    return _ANSWER.pack(given.job, given.tile, given.bytes_down, given.bytes_up, given.seconds, len(text)) + text


def read_order(line: socket.socket) -> Job | Order | int | None:
    """The next message of the server: a job, tiles, the number of a job to close; None when the line is closed."""
    head = exactly(line, _HEAD.size)
    if head is None:
        return None
    letter, length = _HEAD.unpack(head)
    body = exactly(line, length)
    if body is None:
        return None
    if letter == b"J":
        work, *rest = pickle.loads(body)
        return Job(_unpacked(work), *rest)
    if letter == b"T":
        job_number, offset = _PLACE.unpack_from(body)
        rows = _TILE.iter_unpack(body[_PLACE.size :])
        return Order(job_number, offset, tuple((number, Box(*box)) for number, *box in rows))
    number: int = _JOB_NUMBER.unpack(body)[0]
    return number


class Answers:
    """The answers of one worker, out of a stream that is read as it comes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that are complete with ``data``; raises BrokenLineError for what is none."""
        self._buffer += data
        found, start = [], 0
        while start + _ANSWER.size <= len(self._buffer):
            job, tile_number, down, up, seconds, length = _ANSWER.unpack_from(self._buffer, start)
            if not 0 <= length <= MOST_TEXT or not 0 <= seconds < math.inf or min(down, up) < 0:
                raise BrokenLineError(f"an answer with {length} bytes of text, {down} and {up} bytes and {seconds} s")
            end = start + _ANSWER.size + length
            if end > len(self._buffer):
                break
            text = bytes(self._buffer[start + _ANSWER.size : end]).decode(errors="replace")
            found.append(Answer(job, tile_number, down, up, seconds, text))
            start = end
        del self._buffer[:start]
        return found


def _framed(letter: bytes, body: bytes) -> bytes:
    return _HEAD.pack(letter, len(body)) + body


def exactly(line: socket.socket, length: int) -> bytes | None:
    """``length`` bytes; None when the line ends before."""
    parts = bytearray()
    while len(parts) < length:
        try:
            part = line.recv(length - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
