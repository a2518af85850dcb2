"""The agent at the other end of a link that is measured: it echoes, swallows and sends bytes, and does nothing else.

It serves one measurer at a time (two would measure each other), refuses whoever does not know its token, and gives up a
line that is silent, slow to say hello, or has had its share of time or bytes. It reads and writes no file and starts nothing.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.profiles.linkwire import COUNT, DEFAULT_PORT, LARGEST, Kind, Line, WireError, proof

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LONGEST_TOKEN = 1024
_MOST_AT_ONCE = 8
"""Connections that are looked at at one time; more are closed unheard."""

_LOOK_S = 0.2
"""Seconds between two looks at whether to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one measurer may take: seconds to say hello, of silence, and in all; bytes in both directions together."""

    hello_s: float = 5.0
    silence_s: float = 30.0
    total_s: float = 900.0
    total_bytes: int = 1 << 36


def read_token(path: str | Path) -> bytes:
    """The shared secret in a file, blanks around it left out; raises InputFileError for an empty or unreadable one."""
    try:
        with Path(path).open("rb") as file:
            token = file.read(_LONGEST_TOKEN + 1).strip()
    except OSError as error:
        raise InputFileError(f"the token cannot be read ({error.strerror})", where=str(path), expected="a file") from error
    if not token or len(token) > _LONGEST_TOKEN:
        raise InputFileError(
            f"a token of {len(token)} bytes", where=str(path), expected=f"1 to {_LONGEST_TOKEN} bytes",
            remedy="make one with `openssl rand -hex 32`",
        )  # fmt: skip
    return token


def tls_server(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """TLS for the agent; raises InputFileError when certificate and key (PEM) cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(str(certificate), str(key), password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise InputFileError(
            f"certificate and key cannot be used ({error.strerror or error})", where=f"{certificate}, {key}",
            expected="a certificate and its key without a passphrase, both PEM",
        ) from error  # fmt: skip
    return context


class Agent:
    """A listening agent; a context manager that closes it. ``address`` says where it can be reached.

    Raises UsageError when it would serve other machines without a token, ExecutionError when it cannot listen.
    """

    def __init__(
        self, host: str = LOOPBACK[0], port: int = DEFAULT_PORT, *, token: bytes = b"", tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        if host not in LOOPBACK and not token:
            raise UsageError(
                f"an agent on {host} without a token would serve everyone who can reach it", where="--bind",
                expected="a token that the measuring machine has too", remedy="give --token-file",
            )  # fmt: skip
        self._token, self._tls, self._limits = token, tls, limits or Limits()
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=8)
        except OSError as error:
            raise ExecutionError(f"the agent cannot listen ({error.strerror})", where=f"{host}:{port}") from error
        self._busy = threading.Lock()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more; a measurement that is under way ends by itself."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def serve(self, *, once: bool = False, log: Callable[[str], None] = lambda text: None) -> None:
        """Serve measurers until the agent is closed, or with ``once`` one whose token is right; ``log`` hears of each."""
        threads: list[threading.Thread] = []
        done = threading.Event()
        self._listener.settimeout(_LOOK_S)
        while not (once and done.is_set()):
            try:
                connection, peer = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            threads = [thread for thread in threads if thread.is_alive()]
            if len(threads) >= _MOST_AT_ONCE:
                connection.close()
                continue
            threads.append(threading.Thread(target=self._attend, args=(connection, str(peer[0]), log, done), daemon=True))
            threads[-1].start()

    def _attend(self, connection: socket.socket, peer: str, log: Callable[[str], None], done: threading.Event) -> None:
        """One connection from its first byte to its last."""
        limits = self._limits
        try:
            connection.settimeout(limits.hello_s)
            with connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as secured:
                line = Line(secured, limits.hello_s, limits.hello_s)
                self._greet(line)
                line.silence_s, line.until = limits.silence_s, time.monotonic() + limits.total_s
                if not self._busy.acquire(blocking=False):
                    line.send(Kind.REFUSED, b"another measurement is under way")
                    return
                try:
                    log(f"{peer} measures")
                    line.send(Kind.WELCOME)
                    self._work(line)
                finally:
                    self._busy.release()
                done.set()
        except (OSError, WireError) as error:
            log(f"{peer}: {error}")
            connection.close()

    def _greet(self, line: Line) -> None:
        """Let the measurer show that it has the token."""
        challenge = secrets.token_bytes(16)
        line.send(Kind.CHALLENGE, challenge)
        head = line.header()
        given = line.payload(head.size) if head is not None and head.kind is Kind.HELLO else b""
        if not hmac.compare_digest(given, proof(self._token, challenge)):
            line.send(Kind.REFUSED, b"the token is not this agent's")
            raise WireError("refused, it does not have the token")

    def _work(self, line: Line) -> None:
        """Do what the measurer asks, until it closes the line or has had its share."""
        left = self._limits.total_bytes
        while (head := line.header()) is not None:
            amount = head.size
            if head.kind is Kind.SOURCE:
                if head.size != COUNT.size:
                    raise WireError("a count of bytes that is none")
                (amount,) = COUNT.unpack(line.payload(head.size))
            left -= amount
            if amount > LARGEST or left < 0:
                line.send(Kind.REFUSED, b"more bytes than this agent gives to one measurement")
                raise WireError("stopped, it wanted too many bytes")
            if head.kind is Kind.ECHO:
                line.send(Kind.ECHO, line.payload(amount))
            elif head.kind is Kind.SINK:
                line.discard(amount)
                line.send(Kind.DONE)
            elif head.kind is Kind.SOURCE:
                line.send_zeros(Kind.DATA, amount)
            else:
                raise WireError(f"a message that is not expected here ({head.kind.name})")
