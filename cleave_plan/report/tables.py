"""Terminal text: aligned tables, facts with their unit and origin, notes.

Everything becomes text first (:meth:`Sheet.text`), and the command line prints it: plain and 130 columns wide where
stdout is not a terminal, coloured and as wide as the terminal where it is. A table that needs more width than there
is takes it: names may fold over several lines, numbers are never cut.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cleave_plan.units import Unit, format_value

PLAIN_WIDTH = 130
NARROWEST = 40
NARROWEST_TEXT = 16
ROUNDING = 1e-9
PADDING = 3
"""Blanks that a column of a table has around it."""


class Column(NamedTuple):
    """One column: its header, and whether it holds numbers (right-aligned and never folded) or text."""

    header: str
    numeric: bool = True


class Fact(NamedTuple):
    """One line of a summary: what, how much (with its unit), and where the figure comes from."""

    label: str
    value: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Screen:
    """What text is laid out for: a width in characters, and whether colours may be used."""

    width: int = PLAIN_WIDTH
    colour: bool = False

    @classmethod
    def of_stdout(cls) -> Screen:
        """The terminal that stdout is, or plain text of a fixed width."""
        if not sys.stdout.isatty():
            return cls()
        return cls(width=max(NARROWEST, shutil.get_terminal_size().columns), colour="NO_COLOR" not in os.environ)


class Sheet:
    """Collects blocks (heading, facts, table, notes) and lays them out for one screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._out = StringIO()
        self._empty = True

    def heading(self, text: str) -> None:
        """A line that opens a block, with an empty line before it unless it is the first."""
        if not self._empty:
            self._print(Text())
        self._print(Text(text, style="bold"))

    def facts(self, facts: Sequence[Fact]) -> None:
        """Labels, values and origins, each aligned."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(overflow="fold")
        for fact in facts:
            grid.add_row(*(Text(part) for part in fact))
        self._print(Padding(grid, (0, 0, 0, 2)))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, total: Sequence[str] = ()) -> None:
        """A table with a header line and, if given, a last row of totals under a rule."""
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, show_footer=bool(total), pad_edge=True, header_style="bold", footer_style="bold"
        )
        for place, column in enumerate(columns):
            table.add_column(
                Text(column.header), Text(total[place]) if total else "",
                justify="right" if column.numeric else "left", no_wrap=column.numeric,
                overflow="fold",
            )  # fmt: skip
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._print(table, needed=_least_width(columns, [*rows, total] if total else rows))

    def notes(self, notes: Sequence[str], *, label: str = "note", style: str = "yellow") -> None:
        """Sentences that must be seen, one paragraph each."""
        for note in notes:
            self._print(Text.assemble((f"{label}: ", style), note))

    def verdict(self, text: str, *, good: bool) -> None:
        """The sentence that answers the command's question."""
        self._print(Text(text, style="bold green" if good else "bold red"))

    def text(self) -> str:
        """All blocks, without trailing blanks."""
        lines = self._out.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    def _print(self, block: RenderableType, *, needed: int = 0) -> None:
        colour = self._screen.colour
        console = Console(
            file=self._out, width=max(self._screen.width, needed), force_terminal=colour,
            color_system="standard" if colour else None, markup=False, highlight=False, emoji=False, legacy_windows=False,
        )  # fmt: skip
        console.print(block)
        self._empty = False


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Characters below which a number would be cut: text may fold, but not below a width that can still be read."""
    widths = []
    for place, column in enumerate(columns):
        longest = max(len(column.header), *(len(row[place]) for row in rows)) if rows else len(column.header)
        widths.append(longest if column.numeric else min(NARROWEST_TEXT, longest))
    return sum(widths) + PADDING * len(columns)


def percent(share: float) -> str:
    """A share of 1 as a percentage with up to three significant digits ("0.0312 %", "41.2 %"); rounding errors are 0 %."""
    return f"{100 * share:.3g} %" if abs(share) > ROUNDING else "0 %"


def as_time(value: float) -> str:
    """Seconds with their unit, as a person reads them."""
    return format_value(float(value), Unit.SECONDS)


def as_size(value: float) -> str:
    """Bytes with their unit, as a person reads them."""
    return format_value(float(value), Unit.BYTES)
