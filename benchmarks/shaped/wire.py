"""What server and devices of the benchmark say to each other: pickled headers and the bytes of arrays, over mutual TLS.

Both ends hold the same self-signed certificate, made for one run, and talk to nobody else: that is why headers may be pickles.
"""

from __future__ import annotations

import pickle
import socket
import ssl
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work

_LENGTH = struct.Struct("!I")


class Part(NamedTuple):
    """A part of tile ``tile``, the ``last`` one or not: a form names arrays by ``slots``, numbers that stay good for the tile
    (below 0: for ever); ``fresh`` are those of them that come with it. ``added``: it is one of several sums. ``about``: the work
    and the form, None where they are those of the part before: headers travel too.
    """

    tile: int
    about: tuple[Work, Any] | None
    box: tuple[int, ...]
    slots: tuple[int, ...]
    fresh: tuple[int, ...]
    last: bool
    added: bool


class Answer(NamedTuple):
    """The result of a part: the box that it fills, seconds of arithmetic so far, and whether the tile is done with it."""

    tile: int
    box: tuple[int, ...]
    seconds: float
    last: bool


def make_certificate(folder: Path, addresses: Sequence[str]) -> tuple[Path, Path]:
    """A certificate for ``addresses`` and its key, good for a day."""
    certificate, key = folder / "shaped.pem", folder / "shaped.key"
    names = ",".join(f"IP:{address}" for address in addresses)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=shaped", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def tls(certificate: Path, key: Path, *, server: bool) -> ssl.SSLContext:
    """TLS in which both sides show, and want to see, this one certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def send(line: socket.socket, header: Any, arrays: Sequence[Array] = ()) -> None:
    """Send a header and arrays."""
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    head = pickle.dumps((header, shapes))
    line.sendall(_LENGTH.pack(len(head)) + head)
    for array in arrays:
        if array.size:
            line.sendall(memoryview(np.ascontiguousarray(array)).cast("B"))


def receive(line: socket.socket) -> tuple[Any, list[Array]] | None:
    """The next header and its arrays; None when the line has ended."""
    raw = _exactly(line, _LENGTH.size)
    if raw is None:
        return None
    head = _exactly(line, *_LENGTH.unpack(raw))
    if head is None:
        return None
    header, shapes = pickle.loads(head)
    arrays = []
    for kind, shape in shapes:
        array = np.empty(shape, kind)
        if array.size:
            body = _exactly(line, array.nbytes)
            if body is None:
                return None
            array = np.frombuffer(body, kind).reshape(shape)
        arrays.append(array)
    return header, arrays


def _exactly(line: socket.socket, length: int) -> bytearray | None:
    body = bytearray(length)
    view, got = memoryview(body), 0
    while got < length:
        try:
            more = line.recv_into(view[got:])
        except (ConnectionError, ssl.SSLError):
            return None
        if not more:
            return None
        got += more
    return body
