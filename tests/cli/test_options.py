"""Option values: what is read and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from cleave_plan.cli.options import dim_binding, gathered, output_file, seconds, shape_binding, trip_binding
from cleave_plan.errors import UsageError


def test_dimensions_and_shapes_are_read() -> None:
    """Names may hold any character, the last = counts; a scalar has no sizes."""
    assert dim_binding("batch=8") == ("batch", 8)
    assert dim_binding("past=seq + 1=12") == ("past=seq + 1", 12)
    assert shape_binding("image:0=1x3x224X224") == ("image:0", (1, 3, 224, 224))
    assert shape_binding("scale=") == ("scale", ())


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=0", "batch=-1", "batch=1.5", "batch=²", "batch=8k"])
def test_dimensions_that_cannot_be_meant(text: str) -> None:
    """Zero, negative, fractional or missing sizes, and missing names."""
    with pytest.raises(click.BadParameter):
        dim_binding(text)


@pytest.mark.parametrize("text", ["image", "=1x2", "image=1x0", "image=1x-3", "image=1x2.5", "image=axb"])
def test_shapes_that_cannot_be_meant(text: str) -> None:
    """The same for shapes, size by size."""
    with pytest.raises(click.BadParameter):
        shape_binding(text)


def test_trip_counts() -> None:
    """The path of a Loop and a number of iterations, which may be 0."""
    assert trip_binding("decoder/Loop=20") == ("decoder/Loop", 20)
    assert trip_binding("a=b=0") == ("a=b", 0)
    for text in ("loop", "=3", "loop=", "loop=-1", "loop=1.5", "loop=²"):
        with pytest.raises(click.BadParameter):
            trip_binding(text)


def test_times() -> None:
    """With a unit or as plain seconds; zero and other units are refused."""
    assert seconds("30 s") == 30
    assert seconds("2 min") == 120
    assert seconds("1.5") == 1.5
    for text in ("0", "0 s", "-1", "5 MB", "soon", "nan", "inf"):
        with pytest.raises(click.BadParameter):
            seconds(text)


def test_a_name_given_twice() -> None:
    """Saying the same thing twice is fine, two different things are not."""
    assert gathered([("a", 1), ("b", 2), ("a", 1)], "--dim") == {"a": 1, "b": 2}
    with pytest.raises(UsageError, match="'a' is given two values, 1 and 2"):
        gathered([("a", 1), ("a", 2)], "--dim")


def test_output_places_are_checked_first(tmp_path: Path) -> None:
    """A missing directory, or a directory where a file should be, is refused before any work."""
    assert output_file(str(tmp_path / "plan.json")) == tmp_path / "plan.json"
    with pytest.raises(UsageError, match="does not exist"):
        output_file(str(tmp_path / "missing" / "plan.json"))
    with pytest.raises(UsageError, match="directory"):
        output_file(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):  # as /dev/null, which a rename would replace
        output_file(str(tmp_path / "pipe"))
