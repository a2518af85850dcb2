"""Progress bars: on stderr, only on a terminal, gone when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from cleave_plan.progress import Progress, silent


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A callback that draws a bar under ``title`` where stderr is a terminal, and does nothing elsewhere."""
    if not sys.stderr.isatty():
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{title}: {label}" if label else title)

        yield report
