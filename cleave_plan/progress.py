"""The progress callback: long work reports to it, and only the command line knows how it is drawn."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives ``(done, total, label)``; ``total`` may grow while work is found."""

    def __call__(self, done: int, total: int, label: str) -> None: ...


def silent(done: int, total: int, label: str) -> None:
    """The callback of a caller who wants no progress."""
