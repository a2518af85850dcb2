"""Starting, ending and naming the processes of the local engine, and who plays which devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cleave_plan.errors import ExecutionError

_THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
ONE_THREAD = dict.fromkeys(_THREAD_LIMITS, "1")
"""A worker is one core: its BLAS must not start threads of its own."""

KEPT_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28))
"""A worker keeps memory that it has freed, where its C library is glibc: the blocks of a tile are as large as those of the one
before, and pages that come and go with each cost more than the arithmetic on them."""

SEND_LIMIT_S = 10.0
"""Seconds after which a worker that reads nothing, though its line is full, counts as gone."""

_READ_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerProcess:
    """Worker number ``place`` of an engine, and the line to it."""

    place: int
    process: subprocess.Popen[bytes]
    line: socket.socket

    @classmethod
    def spawn(cls, start: Sequence[str], place: int, arena: int, *, role: str = "worker") -> WorkerProcess:
        """A fresh interpreter that begins with ``start`` and inherits its line and the descriptor ``arena``;
        ``role`` is what messages call it.

        Raises ExecutionError when no process can be started.
        """
        if os.name != "posix":
            raise ExecutionError("the local engine needs a POSIX system", where=sys.platform, expected="Linux or macOS")
        ours, theirs = socket.socketpair()
        inherited = (theirs.fileno(), arena)
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            process = subprocess.Popen(
                [sys.executable, *start, *map(str, (*inherited, place, os.getpid()))],
                env={**os.environ, **ONE_THREAD, **KEPT_MEMORY, "PYTHONPATH": paths}, pass_fds=inherited, process_group=0,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise ExecutionError(
                f"{role} {place} cannot be started: {error.strerror}", where=sys.executable, remedy=f"run with fewer {role}s"
            ) from None
        finally:
            theirs.close()
        ours.settimeout(SEND_LIMIT_S)
        return cls(place=place, process=process, line=ours)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def label(self, devices: tuple[str, ...]) -> str:
        """The worker by number, process and the devices that it plays."""
        more = f" and {len(devices) - 5} more" if len(devices) > 5 else ""
        names = f"device{'s' if len(devices) > 1 else ''} {', '.join(devices[:5])}{more}"
        return f"worker {self.place} (process {self.pid}) with {names}"

    def receive(self) -> bytes:
        """What has come over the line, which is ready to be read; nothing when it is closed."""
        try:
            return self.line.recv(_READ_BYTES)
        except OSError:
            return b""

    def kill(self) -> None:
        """End it now; its line closes."""
        self.process.kill()

    def end(self, patience_s: float) -> str:
        """Wait until it is gone, and kill it after ``patience_s``; one clause on how it ended."""
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def share_out(load: Mapping[str, float], groups: int) -> list[tuple[str, ...]]:
    """``load``'s keys in ``groups`` groups of nearly even sums: the heaviest first, each to the lightest group so far."""
    shares: list[list[str]] = [[] for _ in range(groups)]
    sums = [0.0] * groups
    for name in sorted(load, key=lambda name: (-load[name], name)):
        lightest = min(range(groups), key=lambda place: (sums[place], len(shares[place])))
        shares[lightest].append(name)
        sums[lightest] += load[name]
    return [tuple(share) for share in shares]
