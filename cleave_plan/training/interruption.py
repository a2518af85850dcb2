"""Ending a run between two steps when it is told to: Ctrl-C (SIGINT) and a plain kill (SIGTERM)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

STDERR = 2
"""The descriptor: a handler may have come in the middle of a write to the file object."""


@contextmanager
def interruptions() -> Iterator[Callable[[], str]]:
    """While this lasts, the first of ``SIGNALS`` is noted and said on stderr; the next one does what it always does.

    The value tells the name of the signal that came, "" before. Only the main thread of a process may use it.
    """
    came: list[str] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        came.append(signal.Signals(number).name)
        os.write(STDERR, f"cleave-plan: {came[0]}: the run ends after this step; once more ends it now\n".encode())

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: came[0] if came else ""
    finally:
        restore()
