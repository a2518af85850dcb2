"""Hosts that are network namespaces, each joined to this one by a link whose two directions the kernel holds to a rate.

A host is a process that does nothing in a namespace of its own: when it ends, by :meth:`Hosts.__exit__` or because this
process is gone, the kernel takes namespace and link away. Nothing has a name that could stay behind. :func:`enclosed` first
puts the whole program into a namespace, so that not even the near ends of the links are seen outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

MBIT = 1e6 / 8
"""Bytes per second."""

ROOT = Path(__file__).parent.parent.parent
_ALONE = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
_SETTINGS = "cd /proc/sys/net/ipv4 && echo 0 > tcp_slow_start_after_idle && echo 32768 > tcp_limit_output_bytes"
"""Lines stay warm between tiles, and a sender queues little of its data before the acknowledgements of what it receives."""

_ENDED_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
_INTERRUPTED_WITH_US = ["setpriv", "--pdeathsig", "INT"]
_INSIDE = "CLEAVE_PLAN_SHAPED_INSIDE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A device's link: bytes per second from and to the server, and seconds from one end to the other, each way."""

    down: float
    up: float
    delay_s: float

    def __str__(self) -> str:
        return f"{self.down / MBIT:.0f}/{self.up / MBIT:.0f} Mbit/s, {2e3 * self.delay_s:.0f} ms"


def missing() -> str:
    """Why namespaces and shaped links cannot be had here; empty when they can."""
    for tool in ("unshare", "nsenter", "setpriv", "ip", "tc", "openssl"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    trial = "ip link add near0 type veth peer name far0 && tc qdisc add dev near0 root tbf rate 20mbit burst 16kb latency 200ms"
    done = subprocess.run([*_ALONE, "sh", "-c", trial], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no shaped link in a network namespace ({done.stderr.strip()})"


def enclosed(module: str, arguments: Sequence[str]) -> int | None:
    """Run this program again inside a namespace, and give its exit code; None when this is inside already."""
    if os.environ.get(_INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return None
    command = [*_ALONE, *_INTERRUPTED_WITH_US, sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, env={**os.environ, _INSIDE: "1"})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal tells the one inside as well, which cleans up and ends
            continue


class Hosts:
    """One host for each of ``links``; use it in a ``with``. Host i is at ``address(i)``, this side of its link at 10.77.i.1."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)
        self._running = ExitStack()
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        try:
            for place, link in enumerate(self.links):
                self._join(place, link)
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    @staticmethod
    def address(place: int) -> str:
        """The host's own address."""
        return f"10.77.{place}.2"

    def start(self, place: int, *arguments: str) -> subprocess.Popen[str]:
        """Start ``python arguments`` on a host; it is ended with the hosts. Its stdout is a pipe."""
        inside = ["nsenter", "--net", f"--target={self._holders[place].pid}"]
        process = subprocess.Popen(
            [*_ENDED_WITH_US, *inside, sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._running.callback(_end, process)
        return process

    def _join(self, place: int, link: Link) -> None:
        # It says that it is there, in its namespace, and then waits for the end of a line that nobody writes to.
        holder = subprocess.Popen(
            [*_ENDED_WITH_US, "unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders.append(holder)
        self._running.callback(_end, holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        near, far, there = f"near{place}", f"far{place}", ["nsenter", "--net", f"--target={holder.pid}"]
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        # The kernel takes the link away with the namespace, but not at once.
        self._running.callback(subprocess.run, ["ip", "link", "delete", near], check=False, capture_output=True)
        _run("ip", "link", "set", far, "netns", str(holder.pid))
        _run("ip", "address", "add", f"10.77.{place}.1/24", "dev", near)
        _run(*there, "ip", "address", "add", f"{self.address(place)}/24", "dev", far)
        for prefix, device, rate in (([], near, link.down), (there, far, link.up)):
            _run(*prefix, "ip", "link", "set", device, "up")
            # As much as passes in 2 ms at once: a larger bucket would let the beginning of every transfer through for nothing.
            burst = max(4000, round(rate * 0.002))
            shaper = ["tbf", "rate", f"{round(8 * rate)}bit", "burst", str(burst), "latency", "200ms"]
            _run(*prefix, "tc", "qdisc", "add", "dev", device, "root", *shaper)
        _run(*there, "ip", "link", "set", "lo", "up")
        for prefix in ([], there):
            _run(*prefix, "sh", "-c", _SETTINGS)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
