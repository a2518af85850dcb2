"""The messages between ``profile measure --link`` and ``profile agent``: few kinds, each of a bounded size.

A message is a header (four bytes that name the protocol, a byte for the kind, the payload's size) and its payload. The agent
speaks first::

    agent   CHALLENGE  16 random bytes           measurer  HELLO   HMAC-SHA256 of them, keyed with the shared token
    agent   WELCOME                              measurer  ECHO    comes back as it is
                                                 measurer  SINK    bytes that are thrown away; the agent says DONE
    agent   DATA       as many bytes as asked    measurer  SOURCE  how many bytes to send
    agent   REFUSED    why, in words, and the line is closed

The token itself is never sent, and only zero bytes are: a link is measured with them, nothing is carried out.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"CLP1"
HEADER = struct.Struct("!4sB3xI")
COUNT = struct.Struct("!I")
DEFAULT_PORT = 7407

SMALL = 1 << 12
"""Bytes that a message other than SINK and DATA may hold at most."""

LARGEST = 1 << 26
"""Bytes of one SINK or DATA message at most (64 MiB)."""

_ZEROS = memoryview(bytes(1 << 18))


class Kind(IntEnum):
    """What a message is."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    ECHO = 4
    SINK = 5
    DONE = 6
    SOURCE = 7
    DATA = 8
    REFUSED = 9


class Header(NamedTuple):
    """The kind of a message and the size of its payload in bytes."""

    kind: Kind
    size: int


class WireError(Exception):
    """The other side does not speak this protocol, broke its limits, or is gone."""


def proof(token: bytes, challenge: bytes) -> bytes:
    """What shows that a side knows ``token``."""
    return hmac.new(token, challenge, hashlib.sha256).digest()


class Line:
    """A connection that messages go over; nothing on it waits for longer than ``silence_s``, or after ``until``."""

    def __init__(self, connection: socket.socket, silence_s: float, total_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self.silence_s = silence_s
        self.until = time.monotonic() + total_s
        self._buffer = memoryview(bytearray(len(_ZEROS)))

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Send one small message."""
        self._patience()
        self._connection.sendall(HEADER.pack(MAGIC, kind, len(payload)) + payload)

    def send_zeros(self, kind: Kind, size: int) -> None:
        """Send one message of ``size`` zero bytes."""
        self.send_header(kind, size)
        while size:
            piece = _ZEROS[: min(size, len(_ZEROS))]
            self._patience()
            self._connection.sendall(piece)
            size -= len(piece)

    def send_header(self, kind: Kind, size: int) -> None:
        """Announce a message of ``size`` bytes."""
        self._patience()
        self._connection.sendall(HEADER.pack(MAGIC, kind, size))

    def header(self) -> Header | None:
        """The next message's header, None when the line was closed; raises WireError for anything that is none."""
        raw = self._receive(HEADER.size, may_end=True)
        if raw is None:
            return None
        magic, kind, size = HEADER.unpack(raw)
        if magic != MAGIC or kind not in Kind.__members__.values():
            raise WireError("it does not speak this protocol")
        limit = LARGEST if kind in (Kind.SINK, Kind.DATA) else SMALL
        if size > limit:
            raise WireError(f"a message of {size} bytes, above the limit of {limit}")
        return Header(Kind(kind), size)

    def payload(self, size: int) -> bytes:
        """The ``size`` bytes of a small message; raises WireError when the line ends before."""
        return self._receive(size) or b""

    def discard(self, size: int) -> None:
        """Receive ``size`` bytes and forget them; raises WireError when the line ends before."""
        while size:
            size -= self._into(self._buffer[: min(size, len(self._buffer))])

    def _receive(self, size: int, *, may_end: bool = False) -> bytes | None:
        got = 0
        while got < size:
            piece = self._into(self._buffer[got:size], may_end=may_end and not got)
            if not piece:
                return None
            got += piece
        return bytes(self._buffer[:size])

    def _into(self, buffer: memoryview, *, may_end: bool = False) -> int:
        self._patience()
        got = self._connection.recv_into(buffer)
        if not got and not may_end:
            raise WireError("the line ended in the middle of a message")
        return got

    def _patience(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise WireError("its time is over")
        self._connection.settimeout(min(self.silence_s, left))
