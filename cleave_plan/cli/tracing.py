"""``--trace``: what commands that write Perfetto traces share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cleave_plan.cli.options import output_file

if TYPE_CHECKING:
    from cleave_plan.chronicle import Chronicle


def trace_output(text: str) -> Path:
    """A trace to write; that the perfetto package is there is found out before the work starts, too."""
    from cleave_plan.report.trace import require_perfetto

    require_perfetto()
    return output_file(text)


@contextmanager
def chronicled(trace_file: Path | None, write: Callable[[Chronicle, Path], int]) -> Iterator[Chronicle]:
    """A chronicle that ``write`` puts into ``trace_file`` at the end, also of work that fails or is interrupted; what it left out
    is said. Without a file it keeps nothing."""
    from cleave_plan.chronicle import MOST_ENTRIES, Chronicle

    chronicle = Chronicle(MOST_ENTRIES if trace_file is not None else 0)
    try:
        yield chronicle
    finally:
        if trace_file is not None and chronicle.entries:
            write(chronicle, trace_file)
            if chronicle.left_out:
                told = f"{trace_file} has the first {MOST_ENTRIES} entries; {chronicle.left_out} later ones are left out"
                click.echo(told, err=True)
