"""The order in which people read names: ``device-2`` before ``device-10``."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """The key by which names are listed for people: digits in a row count as one number, all else as text.

    Names that differ only in leading zeros keep the order of text, so that no two names are equal.
    """
    parts = _DIGITS.split(name)
    pairs = zip(parts[::2], [*map(int, parts[1::2]), -1], strict=True)
    return list(pairs), name
