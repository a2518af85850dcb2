"""Measuring the link to a machine that runs ``profile agent``: rates both ways, latency and the cost of a message.

This machine is the server and the agent's the device (or, with ``here="device"``, the other way round); downlink is always
server to device.

    overhead   what each further message costs when many small ones are under way together
    latency    the round trip of one small message, less that overhead: a tile pays both once
    rate       3n / (t(4n) - t(n)) for messages of n and 4n bytes, one after the other on a line that is warm: the round
               trip, a slow start and a shaper's bucket are in both times and drop out

Each is the median of repeated samples, stored with its quartiles.
"""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.fleet.device import Provenance, Quality, Spread
from cleave_plan.fleet.figures import OVERHEAD, Figure
from cleave_plan.profiles.linkwire import COUNT, DEFAULT_PORT, LARGEST, Header, Kind, Line, WireError, proof
from cleave_plan.profiles.records import Profile, ProfileKind
from cleave_plan.progress import Progress, silent

HERE = ("server", "device")
_CONNECT_S = 10.0
_ECHOES = 5
"""Round trips in a sample of the latency; its least one is taken, as others waited for something."""

_IN_A_ROW = 128
_FIRST_BYTES = 1 << 14
_SHORTEST_S = 0.1
"""What n bytes should take at the least, where the largest message holds four times as many."""


def tls_client(authority: str | Path) -> ssl.SSLContext:
    """TLS towards an agent whose certificate ``authority`` (PEM; the certificate itself if self-signed) vouches for."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputFileError(
            f"the certificate cannot be used ({error.strerror or error})", where=str(authority), expected="a PEM file"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def split_address(text: str) -> tuple[str, int]:
    """``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``; raises UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (host.count(":") and not host.startswith("[")):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{text!r} is no address", where="--link", expected="HOST or HOST:PORT, such as 192.0.2.7:7407")
    return host, int(port)


def measure_link(
    name: str,
    address: str,
    *,
    here: str = "server",
    token: bytes = b"",
    tls: ssl.SSLContext | None = None,
    repeats: int = 7,
    budget_s: float = 60.0,
    progress: Progress = silent,
) -> Profile:
    """The link between this machine and the agent at ``address`` (``HOST[:PORT]``) as a profile called ``name``.

    ``here`` is what this machine is of the two, "server" or "device". At most ``repeats`` samples of each figure are taken,
    fewer (but three) when ``budget_s`` is over. Raises UsageError for arguments that cannot be meant, ExecutionError when
    the agent is not reached, refuses, or is lost.
    """
    if here not in HERE or repeats < 1 or not 0 < budget_s < float("inf"):
        raise UsageError(f"{here}, {repeats} repeats, {budget_s} s", expected=f"one of {', '.join(HERE)}, 1 or more, above 0 s")
    host, port = split_address(address)
    with _connected(host, port, token, tls, budget_s) as line:
        measurer = _Measurer(line, repeats, budget_s, progress)
        overhead = measurer.samples("messages in a row", lambda: _row_of_echoes(line))
        trips = measurer.samples("round trips", lambda: min(_echo(line) for _ in range(_ECHOES)))
        towards = measurer.rates("towards the agent", lambda size: _sink(line, size))
        back = measurer.rates("from the agent", lambda size: _source(line, size))
    down, up = (towards, back) if here == "server" else (back, towards)
    each = float(np.median(overhead))
    found = {"downlink": down, "uplink": up, "latency": [max(0.0, trip - each) for trip in trips], OVERHEAD: overhead}
    how = f"between this machine ({here}) and the agent at {host}:{port}{', over TLS' if tls else ''}"
    mark = Provenance(quality=Quality.MEASURED, source=how, date=datetime.date.today().isoformat())
    title = f"link between {socket.gethostname()} and {host}"
    return Profile(
        name=name, kind=ProfileKind.LINK, title=title, figures={key: _figure(values, mark) for key, values in found.items()}
    )


def _figure(samples: Sequence[float], mark: Provenance) -> Figure:
    lower, median, upper = (float(value) for value in np.percentile(samples, [25, 50, 75]))
    return Figure(value=median, provenance=mark, spread=Spread(lower=lower, upper=upper, samples=len(samples)))


class _Measurer:
    """Takes samples until there are enough or the time that each figure has is over."""

    def __init__(self, line: Line, repeats: int, budget_s: float, progress: Progress) -> None:
        self._line, self._repeats, self._progress = line, repeats, progress
        self._share_s, self._done = budget_s / 4, 0

    def samples(self, label: str, sample: Callable[[], float]) -> list[float]:
        """Samples after one that only warms up."""
        sample()
        taken: list[float] = []
        deadline = time.monotonic() + self._share_s
        while len(taken) < self._repeats and (len(taken) < 3 or time.monotonic() < deadline):
            taken.append(sample())
            self._progress(self._done + len(taken), 4 * self._repeats, label)
        self._done += self._repeats
        return taken

    def rates(self, label: str, transfer: Callable[[int], float]) -> list[float]:
        """Bytes per second of transfers; ``transfer(n)`` takes n bytes over the line and gives the seconds."""
        wanted_s = min(_SHORTEST_S, self._share_s / 5 / (self._repeats + 2))
        size = _FIRST_BYTES
        while transfer(size) < wanted_s and size < LARGEST // 4:
            size *= 2

        def sample() -> float:
            short, long = transfer(size), transfer(4 * size)
            return 3 * size / max(long - short, 1e-9)

        return self.samples(label, sample)


@contextmanager
def _connected(host: str, port: int, token: bytes, tls: ssl.SSLContext | None, budget_s: float) -> Iterator[Line]:
    """A line to the agent on which it has said welcome."""
    where = f"agent at {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as plain:
            secured = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
            with secured:
                line = Line(secured, _CONNECT_S + budget_s, 60.0 + 4 * budget_s)
                challenge = _answer(line, Kind.CHALLENGE)
                line.send(Kind.HELLO, proof(token, line.payload(challenge.size)))
                _answer(line, Kind.WELCOME)
                yield line
    except ssl.SSLError as error:
        raise ExecutionError(
            f"no TLS with it ({error.reason or error})", where=where, expected="an agent started with --tls-cert and --tls-key",
            remedy="give --tls-ca with the certificate that vouches for the agent's, which must name the host",
        ) from error  # fmt: skip
    except OSError as error:
        raise ExecutionError(
            f"it is not reached ({error.strerror or error or 'no answer'})", where=where,
            expected="`cleave-plan profile agent` running there", remedy="check address, port and firewall",
        ) from error  # fmt: skip
    except WireError as error:
        raise ExecutionError(str(error), where=where, expected="`cleave-plan profile agent` of this version") from error


def _answer(line: Line, kind: Kind) -> Header:
    """The next message, which must be of ``kind``."""
    head = line.header()
    if head is None:
        raise WireError("it closed the line (does it expect TLS?)" if kind is Kind.CHALLENGE else "it closed the line")
    if head.kind is Kind.REFUSED:
        raise WireError(f"it refuses: {line.payload(head.size).decode(errors='replace')[:200]}")
    if head.kind is not kind:
        raise WireError(f"it said {head.kind.name} where {kind.name} was expected")
    return head


def _echo(line: Line) -> float:
    began = time.perf_counter()
    line.send(Kind.ECHO, b".")
    line.payload(_answer(line, Kind.ECHO).size)
    return time.perf_counter() - began


def _row_of_echoes(line: Line) -> float:
    """Seconds of each further message when many are under way: of the whole row, less one round trip."""
    alone = _echo(line)
    began = time.perf_counter()
    for _ in range(_IN_A_ROW):
        line.send(Kind.ECHO, b".")
    for _ in range(_IN_A_ROW):
        line.payload(_answer(line, Kind.ECHO).size)
    return max(0.0, time.perf_counter() - began - alone) / (_IN_A_ROW - 1)


def _sink(line: Line, size: int) -> float:
    began = time.perf_counter()
    line.send_zeros(Kind.SINK, size)
    _answer(line, Kind.DONE)
    return time.perf_counter() - began


def _source(line: Line, size: int) -> float:
    began = time.perf_counter()
    line.send(Kind.SOURCE, COUNT.pack(size))
    line.discard(_answer(line, Kind.DATA).size)
    return time.perf_counter() - began
