"""Quantities with suffixes: literals that a person can check, refusals that teach, and exact round trips."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave_plan.errors import InputFileError
from cleave_plan.units import UNLIMITED, Unit, format_exact, format_value, is_number, parse, scale_of, suffixes

QUANTITIES = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
UNITS = st.sampled_from(list(Unit))


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80 Mbit/s", Unit.BYTES_PER_S, 10_000_000.0),
        ("10 MB/s", Unit.BYTES_PER_S, 10_000_000.0),
        ("1 bit/s", Unit.BYTES_PER_S, 0.125),
        ("1 Mibit/s", Unit.BYTES_PER_S, 131_072.0),
        ("1.5 GiB", Unit.BYTES, 1_610_612_736.0),
        ("1.5GB", Unit.BYTES, 1_500_000_000.0),
        ("2.3 GB", Unit.BYTES, 2_300_000_000.0),
        ("4e3 GB", Unit.BYTES, 4e12),
        ("6 TFLOP/s", Unit.FLOP_PER_S, 6e12),
        ("2 MFLOP", Unit.FLOP, 2e6),
        ("13 ms", Unit.SECONDS, 0.013),
        ("20 us", Unit.SECONDS, 2e-5),
        ("20 µs", Unit.SECONDS, 2e-5),
        ("20 μs", Unit.SECONDS, 2e-5),
        ("2 min", Unit.SECONDS, 120.0),
        ("7 W", Unit.WATT, 7.0),
        ("250 mW", Unit.WATT, 0.25),
        (" +7   W ", Unit.WATT, 7.0),
        (".5 W", Unit.WATT, 0.5),
        ("0.05 $/h", Unit.DOLLARS_PER_HOUR, 0.05),
        (0, Unit.BYTES, 0.0),
        (0.0, Unit.SECONDS, 0.0),
        ("0", Unit.SECONDS, 0.0),
        ("0 ms", Unit.SECONDS, 0.0),
    ],
)
def test_parse_literals(text: str | float, unit: Unit, value: float) -> None:
    """Suffixes mean what a person expects, to the last bit."""
    assert parse(text, unit, "here") == value


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("80 Mbps", Unit.BYTES_PER_S, "bits or as bytes"),
        ("80 Mb/s", Unit.BYTES_PER_S, "bits or as bytes"),
        ("80 mb/s", Unit.BYTES_PER_S, "bits or as bytes"),
        ("10 MBps", Unit.BYTES_PER_S, "bits or as bytes"),
        ("8 Gb", Unit.BYTES, "bits or as bytes"),
        ("8 Gbit", Unit.BYTES, "divide the bits by 8"),
        ("8 Gbit/s", Unit.BYTES, "divide the bits by 8"),
        ("8 GB", Unit.BYTES_PER_S, "lacks /s"),
        ("8 GB/s", Unit.BYTES, "unit of a data rate"),
        ("6 TFLOP", Unit.FLOP_PER_S, "lacks /s"),
        ("6 TFLOPS", Unit.FLOP_PER_S, "write TFLOP/s"),
        ("6 GFLOPs", Unit.FLOP, "write GFLOP"),
        ("8 KB", Unit.BYTES, "write kB or KiB"),
        ("8 GIB", Unit.BYTES, "write GiB"),
        ("13 W", Unit.SECONDS, "unit of a power"),
        ("8 bananas", Unit.BYTES, "not a known unit"),
        ("8", Unit.BYTES, "write the unit"),
        (8, Unit.BYTES, "with its unit"),
        (1.5e9, Unit.BYTES, "with its unit"),
        (True, Unit.BYTES, "with its unit"),
        (False, Unit.BYTES, "with its unit"),
        (float("nan"), Unit.BYTES, "nan"),
        (float("inf"), Unit.BYTES, "inf"),
        ("nan GB", Unit.BYTES, "does not begin with a number"),
        ("inf", Unit.BYTES, "does not begin with a number"),
        ("unlimited", Unit.BYTES, "does not begin with a number"),
        ("", Unit.BYTES, "does not begin with a number"),
        ("x" * 10_000, Unit.BYTES, "does not begin with a number"),
        ("1,000 GB", Unit.BYTES, "not a known unit"),
        ("-1 GB", Unit.BYTES, "negative"),
        (-1, Unit.BYTES, "found -1"),
        ("1e400 B", Unit.BYTES, "too large"),
        ("1e99999999999 B", Unit.BYTES, "out of range"),
        (None, Unit.BYTES, "NoneType"),
        ([1], Unit.BYTES, "list"),
    ],
)
def test_refusals_say_where_and_what(text: object, unit: Unit, says: str) -> None:
    """Every refusal names the place, what was found, and an example of what is expected."""
    with pytest.raises(InputFileError) as caught:
        parse(text, unit, "fleet.yaml: devices[3].memory")  # type: ignore[arg-type]
    error = caught.value
    assert error.exit_code == 4
    assert error.where == "fleet.yaml: devices[3].memory"
    assert says in str(error)
    assert '"' in error.expected, "an example of what to write"
    assert len(str(error)) < 500


def test_unlimited_only_where_it_is_allowed() -> None:
    """The word for infinity reads back as infinity, and only for figures that may be unlimited."""
    assert parse("unlimited", Unit.BYTES_PER_S, "here", unlimited=True) == math.inf
    assert format_value(math.inf, Unit.BYTES_PER_S) == format_exact(math.inf, Unit.BYTES) == UNLIMITED


@pytest.mark.parametrize(
    ("value", "unit", "bits", "text"),
    [
        (1e7, Unit.BYTES_PER_S, False, "10 MB/s"),
        (1e7, Unit.BYTES_PER_S, True, "80 Mbit/s"),
        (213.75e6 / 8, Unit.BYTES_PER_S, True, "213.8 Mbit/s"),
        (999_960.0, Unit.BYTES, False, "1 MB"),
        (999_940.0, Unit.BYTES, False, "999.9 kB"),
        (6_773_956_048_555.9, Unit.FLOP_PER_S, False, "6.774 TFLOP/s"),
        (0.0131234, Unit.SECONDS, False, "13.12 ms"),
        (6624.3, Unit.SECONDS, False, "6624 s"),
        (0.25, Unit.WATT, False, "250 mW"),
        (0.00012345, Unit.DOLLARS_PER_HOUR, False, "0.0001234 $/h"),
        (1234.5, Unit.DOLLARS_PER_HOUR, False, "1234 $/h"),
        (0.25, Unit.BYTES, False, "0.25 B"),
        (0.0, Unit.SECONDS, False, "0 s"),
        (-1500.0, Unit.BYTES, False, "-1.5 kB"),
    ],
)
def test_format_literals(value: float, unit: Unit, bits: bool, text: str) -> None:
    """Four digits at most, with the prefix that reads best; rounding up carries into the next prefix."""
    assert format_value(value, unit, bits=bits) == text


def test_nan_is_never_shown() -> None:
    """A NaN that reaches a table is a defect, not a quantity."""
    with pytest.raises(ValueError, match="NaN"):
        format_value(math.nan, Unit.BYTES)


@given(value=QUANTITIES, unit=UNITS, bits=st.booleans())
def test_exact_round_trip(value: float, unit: Unit, bits: bool) -> None:
    """What is written to a file reads back bit for bit."""
    assert parse(format_exact(value, unit, bits=bits), unit, "here") == value


@given(value=st.floats(min_value=1e-9, max_value=1e24), unit=UNITS, bits=st.booleans())
def test_shown_value_is_close(value: float, unit: Unit, bits: bool) -> None:
    """What is shown is within half of the fourth digit."""
    assert parse(format_value(value, unit, bits=bits), unit, "here") == pytest.approx(value, rel=5.1e-4)


@given(unit=UNITS, data=st.data())
def test_every_suffix_means_its_scale(unit: Unit, data: st.DataObject) -> None:
    """Any integer with any suffix is that many scales, computed with rational numbers."""
    suffix = data.draw(st.sampled_from(suffixes(unit)))
    number = data.draw(st.integers(0, 10**6))
    assert parse(f"{number} {suffix}", unit, "here") == float(Fraction(number) * scale_of(suffix, unit, "here"))


@given(text=st.text(max_size=30), unit=UNITS)
def test_any_text_parses_or_is_refused(text: str, unit: Unit) -> None:
    """No text ends in anything but a figure of 0 or more, or an InputFileError."""
    with contextlib.suppress(InputFileError):
        assert parse(text, unit, "here") >= 0


def test_plain_numbers() -> None:
    """Table cells are plain decimals: no NaN, infinity, underscore or unit."""
    assert all(map(is_number, ["1", "-2.5", "1e9", ".5", "3."]))
    assert not any(map(is_number, ["", "nan", "inf", "1_000", "1 s", "0x10", "٣"]))
