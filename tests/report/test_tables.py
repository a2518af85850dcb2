"""Terminal text: alignment, widths, colours."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave_plan.report.bars import progress_bar
from cleave_plan.report.tables import Column, Fact, Screen, Sheet, percent
from cleave_plan.units import count, plural

NAME = "/model/layers.0/attention/" + "very-" * 20 + "long"


def sheet_of(*rows: tuple[str, ...], width: int) -> str:
    """A table of a name and two numbers as text."""
    sheet = Sheet(Screen(width=width))
    sheet.table([Column("name", numeric=False), Column("FLOP"), Column("bytes")], rows)
    return sheet.text()


def test_numbers_align_right_and_names_left() -> None:
    """Columns line up whatever the lengths."""
    lines = sheet_of(("a", "1 GFLOP", "2 B"), ("bbbb", "12.5 GFLOP", "100 MB"), width=80).splitlines()
    cells = [line for line in lines if "GFLOP" in line]
    assert len({line.index("FLOP") + 4 for line in cells}) == 1
    assert [line.split()[0] for line in cells] == ["a", "bbbb"]
    assert len({len(line) for line in cells}) == 1


@given(
    width=st.integers(40, 200),
    numbers=st.lists(st.tuples(st.integers(0, 10**18), st.integers(0, 10**18)), min_size=1, max_size=5),
)
def test_numbers_are_never_cut(width: int, numbers: list[tuple[int, int]]) -> None:
    """At any width every number stands whole on one line, and no ellipsis appears."""
    text = sheet_of(*((NAME, count(a), count(b)) for a, b in numbers), width=width)
    assert "…" not in text
    for a, b in numbers:
        assert any(count(a) in line and count(b) in line for line in text.splitlines())


def test_long_names_fold_and_stay_whole() -> None:
    """A name that does not fit goes on over several lines; nothing of it is lost."""
    text = sheet_of((NAME, "1", "2"), width=60)
    first_cells = [line[1:].split("  ")[0].strip() for line in text.splitlines()[2:]]
    assert "".join(first_cells) == NAME
    assert max(len(line) for line in text.splitlines()) <= 60


def test_totals_stand_in_the_last_row() -> None:
    """The row of totals comes under everything else."""
    sheet = Sheet(Screen())
    sheet.table([Column("name", numeric=False), Column("FLOP")], [("a", "1"), ("b", "2")], total=("total", "3"))
    assert sheet.text().split()[-2:] == ["total", "3"]


def test_markup_in_names_is_text() -> None:
    """Brackets and emoji codes in a node's name are shown as they are."""
    sheet = Sheet(Screen())
    sheet.table([Column("name", numeric=False)], [("[red]x[/red] :smile:",)])
    sheet.notes(["[bold]not bold[/bold]"])
    assert "[red]x[/red] :smile:" in sheet.text()
    assert "note: [bold]not bold[/bold]" in sheet.text()


def test_plain_text_has_no_escapes_and_terminals_have_colours() -> None:
    """Colours appear only where the screen has them."""
    for colour in (False, True):
        sheet = Sheet(Screen(width=80, colour=colour))
        sheet.heading("Title")
        sheet.facts([Fact("batch time", "12 ms", "executed cost")])
        sheet.verdict("yes", good=True)
        assert ("\x1b[" in sheet.text()) is colour


def test_a_pipe_gets_a_fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file receives does not depend on the terminal that the command was started from."""
    monkeypatch.setenv("COLUMNS", "37")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert Screen.of_stdout() == Screen(width=130, colour=False)


def test_a_terminal_gets_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the width is the terminal's, and NO_COLOR is honoured."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen.of_stdout() == Screen(width=77, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.of_stdout() == Screen(width=77, colour=False)


def test_words_for_numbers() -> None:
    """Thousands apart, percentages of three digits, plurals."""
    assert (percent(2.2e-16), percent(-1e-12)) == ("0 %", "0 %")
    assert (count(1234567), percent(0.000312), percent(0.412), percent(1.0)) == ("1,234,567", "0.0312 %", "41.2 %", "100 %")
    assert (plural(1, "device"), plural(0, "device"), plural(1200, "device")) == ("1 device", "0 devices", "1,200 devices")


def test_no_bar_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """Logs get no bar."""
    with progress_bar("planning") as progress:
        progress(1, 10, "level 1")
    assert capfd.readouterr() == ("", "")


def test_the_bar_is_drawn_on_stderr_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the bar goes to stderr, and follows a total that grows."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("planning") as progress:
        progress(1, 2, "first")
        progress(3, 4, "second")
    assert "planning" in terminal.getvalue()
    assert capsys.readouterr().out == ""
