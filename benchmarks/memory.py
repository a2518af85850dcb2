"""The most memory that this process and its children held at once, shared pages counted once."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread

LOOK_S = 0.05


class PeakMemory:
    """Looks every 50 ms from a thread between ``__enter__`` and ``__exit__``; ``bytes`` is the most that was seen.

    It sums the proportional set sizes of Linux (``smaps_rollup``): a page that n processes map counts 1/n in each.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        """Look now."""
        self.bytes = max(self.bytes, sum(_proportional_bytes(process) for process in family(os.getpid())))

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            self.look()


def family(process: int) -> list[int]:
    """``process`` and all that it started, directly or through others."""
    found = [process]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:  # it has ended meanwhile
                continue
    return found


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
