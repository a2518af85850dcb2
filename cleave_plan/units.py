"""Quantities as people write them ("80 Mbit/s", "1.5 GiB", "6 TFLOP/s", "13 ms", "7 W", "0.05 $/h") and back, in SI inside
(but for prices, which stay US dollars an hour).

Bits and bytes never share a suffix: bits are ``bit``, bytes are ``B``; ``Mb`` and ``Mbps`` are refused because readers
disagree on them. Decimal prefixes (k, M, G, T, P, E) are powers of 1000, binary ones (Ki, Mi, Gi, Ti, Pi, Ei) powers of
1024. Prefixes are case-sensitive: m is a thousandth, M a million.

Text is converted exactly (as a rational number) and rounded once, so "2.3 GB" is the float nearest to 2.3e9 and
:func:`format_exact` can promise ``parse(format_exact(x, unit), unit) == x`` for every finite ``x`` of 0 or more.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import cache

from cleave_plan.errors import InputFileError

UNLIMITED = "unlimited"
"""How an infinite link or memory is written."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?")
_LONGEST_TEXT = 100
_LARGEST_EXPONENT = 999  # of what is worth converting exactly: 1e999 is far beyond any float
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SECONDS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "μs": Fraction(1, 10**6),
            "ms": Fraction(1, 1000), "s": Fraction(1), "min": Fraction(60), "h": Fraction(3600)}  # fmt: skip
_SHOWN_DIGITS = Context(prec=4, rounding=ROUND_HALF_EVEN)


class Unit(Enum):
    """A kind of quantity; the value is what a person calls it."""

    BYTES = "a size in bytes"
    BYTES_PER_S = "a data rate"
    FLOP = "an amount of arithmetic"
    FLOP_PER_S = "an arithmetic rate"
    SECONDS = "a time"
    WATT = "a power"
    DOLLARS_PER_HOUR = "a price per hour"


_EXAMPLES = {
    Unit.BYTES: '"1.5 GB" or "1.5 GiB"',
    Unit.BYTES_PER_S: '"80 Mbit/s" or "10 MB/s"',
    Unit.FLOP: '"2 GFLOP"',
    Unit.FLOP_PER_S: '"6 TFLOP/s"',
    Unit.SECONDS: '"13 ms"',
    Unit.WATT: '"7 W"',
    Unit.DOLLARS_PER_HOUR: '"0.05 $/h"',
}


def _prefixed(base: str, *, binary: bool, size: Fraction = Fraction(1)) -> dict[str, Fraction]:
    table = {prefix + base: size * 10**power for prefix, power in _DECIMAL.items()}
    if binary:
        table |= {prefix + base: size * 2**power for prefix, power in _BINARY.items()}
    return table


_SUFFIXES: dict[Unit, dict[str, Fraction]] = {
    Unit.BYTES: _prefixed("B", binary=True),
    Unit.BYTES_PER_S: _prefixed("bit/s", binary=True, size=Fraction(1, 8)) | _prefixed("B/s", binary=True),
    Unit.FLOP: _prefixed("FLOP", binary=False),
    Unit.FLOP_PER_S: _prefixed("FLOP/s", binary=False),
    Unit.SECONDS: _SECONDS,
    Unit.WATT: {"mW": Fraction(1, 1000)} | _prefixed("W", binary=False),
    Unit.DOLLARS_PER_HOUR: {"$/h": Fraction(1)},
}

_CONFUSING_BITS = re.compile(r"[kKmMgGtTPE]i?b(?:ps|/s)?|[kKmMgGtTPE]i?[bB]ps|bps|Bps|b|b/s")
_CONFUSING_FLOPS = re.compile(r"([kMGTPE]?)(?:FLOPS|FLOPs|FLOPS/s|FLOPs/s|OPS|flops|Flops|flop/s)")


def parse(text: str | int | float, unit: Unit, where: str, *, unlimited: bool = False) -> float:
    """The quantity in SI (bytes, bytes/s, FLOP, FLOP/s, seconds, watt; dollars an hour), 0 or more.

    ``text`` is a number with its suffix, the space between them optional. A plain number is refused unless it is 0.
    ``where`` names the place for the error; ``unlimited`` also allows that word, for infinity.
    Raises InputFileError: what was found, where, an example of what is expected, and what to do.
    """
    if isinstance(text, str):
        stripped = text.strip()
        if stripped == UNLIMITED and unlimited:
            return math.inf
        return _parse_text(stripped, unit, where, unlimited)
    if not isinstance(text, bool) and isinstance(text, int | float) and text == 0:
        return 0.0
    found = repr(text) if isinstance(text, int | float) and not isinstance(text, bool) else f"{type(text).__name__} {text!r}"
    raise _refused(f"found {found}", unit, where, "write the number with its unit", unlimited=unlimited)


def _parse_text(text: str, unit: Unit, where: str, unlimited: bool) -> float:
    match = _NUMBER.match(text)
    if match is None or len(text) > _LONGEST_TEXT:
        shown = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
        raise _refused(f"found {shown!r}, which does not begin with a number", unit, where, unlimited=unlimited)
    if abs(int(match[1] or 0)) > _LARGEST_EXPONENT:
        raise _refused(f"found {text!r}, whose exponent is out of range", unit, where, unlimited=unlimited)
    number, suffix = Fraction(match[0]), text[match.end() :].strip()
    if number == 0 and not suffix:
        return 0.0
    scale = scale_of(suffix, unit, where, found=text)
    if number < 0:
        raise _refused(f"found {text!r}, which is negative", unit, where, "give a positive figure")
    try:
        value = float(number * scale)
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise _refused(f"found {text!r}, which is too large", unit, where, "give a finite figure", unlimited=unlimited)
    return value


def scale_of(suffix: str, unit: Unit, where: str, *, found: str = "") -> Fraction:
    """What one ``suffix`` ("Mbit/s") is in the SI unit of ``unit``, exactly; raises InputFileError for any other suffix."""
    scale = _SUFFIXES[unit].get(suffix)
    if scale is None:
        raise _refused(f"found {found or suffix!r}", unit, where, _hint(suffix, unit))
    return scale


def suffixes(unit: Unit) -> tuple[str, ...]:
    """Every suffix that ``unit`` accepts."""
    return tuple(_SUFFIXES[unit])


def is_number(text: str) -> bool:
    """Whether ``text`` is one plain decimal number (no unit, no NaN or infinity, no underscores)."""
    return _NUMBER.fullmatch(text) is not None


def _refused(what: str, unit: Unit, where: str, remedy: str = "", *, unlimited: bool = False) -> InputFileError:
    expected = f"{unit.value} with its unit, such as {_EXAMPLES[unit]}" + (f', or "{UNLIMITED}"' if unlimited else "")
    return InputFileError(what, where=where, expected=expected, remedy=remedy)


def _hint(suffix: str, unit: Unit) -> str:
    """What to do about a suffix that ``unit`` does not have."""
    if not suffix:
        return "write the unit after the number"
    if _CONFUSING_BITS.fullmatch(suffix):
        return f"{suffix!r} can be read as bits or as bytes: write bit for bits (Mbit/s) or B for bytes (MB/s)"
    flops = _CONFUSING_FLOPS.fullmatch(suffix)
    if flops and unit in (Unit.FLOP, Unit.FLOP_PER_S):
        return f"write {flops[1]}{'FLOP/s' if unit is Unit.FLOP_PER_S else 'FLOP'}"
    if unit is Unit.BYTES and suffix.removesuffix("/s").endswith(("bit", "bits")):
        return "sizes are in bytes: divide the bits by 8 and write B"
    same_letters = [
        known for known in _SUFFIXES[unit] if suffix.lower() in (known.lower(), re.sub("^([KMGTPE])i", r"\1", known).lower())
    ]
    if same_letters:
        return f"write {' or '.join(same_letters)} (capitals matter)"
    others = [other for other in Unit if suffix in _SUFFIXES[other]]
    if others:
        missing = " (it lacks /s)" if suffix + "/s" in _SUFFIXES[unit] else ""
        return f"{suffix!r} is the unit of {others[0].value}{missing}"
    return f"{suffix!r} is not a known unit"


@cache
def _ladder(unit: Unit, bits: bool) -> tuple[tuple[str, int], ...]:
    """Suffixes with their power of ten, the smallest first, that formatting picks from."""
    if unit is Unit.SECONDS:
        return ("ns", -9), ("µs", -6), ("ms", -3), ("s", 0)
    if unit is Unit.DOLLARS_PER_HOUR:
        return (("$/h", 0),)
    base = {Unit.BYTES: "B", Unit.BYTES_PER_S: "bit/s" if bits else "B/s", Unit.FLOP: "FLOP", Unit.FLOP_PER_S: "FLOP/s"}.get(
        unit, "W"
    )
    steps = tuple((prefix + base, power) for prefix, power in _DECIMAL.items())
    return (("mW", -3), *steps) if unit is Unit.WATT else steps


def format_value(value: float, unit: Unit, *, bits: bool = False) -> str:
    """``value`` (SI) for people: four significant digits at most and the prefix that leaves 1 to 999 before the point.

    ``bits`` shows a data rate in bit/s instead of B/s. Infinity is "unlimited". Raises ValueError for NaN.
    """
    return _format(value, unit, bits, _SHOWN_DIGITS)


def format_exact(value: float, unit: Unit, *, bits: bool = False) -> str:
    """``value`` (SI, 0 or more) for files: the fewest digits from which :func:`parse` gives the same float again.

    ``bits`` and the raised error are those of :func:`format_value`.
    """
    return _format(value, unit, bits, None)


def _format(value: float, unit: Unit, bits: bool, digits: Context | None) -> str:
    if math.isnan(value):
        raise ValueError("NaN is not a quantity")
    if math.isinf(value):
        return UNLIMITED if value > 0 else f"-{UNLIMITED}"
    bits = bits and unit is Unit.BYTES_PER_S and not math.isinf(value * 8)
    # repr gives the shortest decimal that reads back as this float; shifting its exponent loses nothing.
    number = Decimal(repr(float(value * 8 if bits else value)))
    if digits is not None:
        number = digits.plus(number)
    steps = _ladder(unit, bits)
    if number == 0:
        return f"0 {next(suffix for suffix, power in steps if power == 0)}"
    suffix, power = next((step for step in reversed(steps) if number.adjusted() >= step[1]), steps[0])
    shifted = number.scaleb(-power).normalize()  # exact: 17 digits are fewer than the decimal context's 28
    plain = -5 < shifted.adjusted() < 7
    return f"{shifted:f} {suffix}" if plain else f"{shifted:e} {suffix}".replace("e+", "e")


def count(number: int) -> str:
    """A whole number with thousands apart: 1,234,567."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """A count with its noun: "1 device", "8 devices"."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
