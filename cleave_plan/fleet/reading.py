"""Small steps for reading hand-written files: each says what it found, where, and what it expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any

from cleave_plan.errors import InputFileError

LONGEST_NAME = 200
_DATE = re.compile(r"([0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?)?")


def kind_of(value: object) -> str:
    """What a person calls the kind of a parsed value."""
    names = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def expect_mapping(
    value: object, place: str, *, keys: Collection[str] | None = None, required: Collection[str] = (), remedy: str = ""
) -> dict[str, Any]:
    """``value`` as a mapping whose keys are all among ``keys`` (any key when None) and include ``required``."""
    if not isinstance(value, dict):
        raise InputFileError(f"found {kind_of(value)}", where=place, expected="a mapping (key: value lines)", remedy=remedy)
    if keys is not None:
        for key in value:
            if key not in keys:
                raise unknown(f"key {key!r}", key, keys, place)
    for key in required:
        if value.get(key) is None:
            raise InputFileError(f"{key!r} is missing", where=place, expected=f"the keys {', '.join(required)}", remedy=remedy)
    return value


def expect_list(value: object, place: str, of: str, *, remedy: str = "") -> list[Any]:
    """``value`` as a list; ``of`` says of what."""
    if not isinstance(value, list):
        raise InputFileError(f"found {kind_of(value)}", where=place, expected=f"a list of {of}", remedy=remedy)
    return value


def expect_text(value: object, place: str, what: str) -> str:
    """``value`` as one line of printable text without blanks at its ends; ``what`` says what it should be."""
    if not isinstance(value, str) or not value:
        raise InputFileError(f"found {kind_of(value) if value != '' else 'empty text'}", where=place, expected=what)
    if not is_clean(value):
        raise InputFileError(
            f"found {value!r}", where=place, expected=f"{what}: one line of printable characters, no blanks around it"
        )
    return value


def expect_name(value: object, place: str) -> str:
    """``value`` as a name of at most 200 characters."""
    text = expect_text(value, place, "a name")
    if len(text) > LONGEST_NAME:
        raise InputFileError(f"found {len(text)} characters", where=place, expected=f"a name of at most {LONGEST_NAME}")
    return text


def expect_date(value: object, place: str) -> str:
    """``value`` as an ISO date: year, year-month or year-month-day; None and empty text become empty text."""
    text = "" if value is None else value
    if not isinstance(text, str) or not _DATE.fullmatch(text):
        raise InputFileError(f"found {text!r}", where=place, expected="an ISO date such as 2023-09 or 2023-09-30")
    return text


def expect_count(value: object, place: str, largest: int) -> int:
    """``value`` as a whole number from 1 to ``largest``."""
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= largest:
        raise InputFileError(f"found {value!r}", where=place, expected=f"a whole number from 1 to {largest}")
    return int(value)


def is_clean(text: str) -> bool:
    """Whether ``text`` can stand in a file on one line and read back as it is."""
    return bool(text) and text.isprintable() and text == text.strip()


def unknown(what: str, word: str, known: Collection[str], place: str, *, remedy: str = "") -> InputFileError:
    """The error for a word that is not one of ``known``, with the nearest of them suggested."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return InputFileError(
        f"unknown {what}", where=place, expected=f"one of {', '.join(known)}" if known else "",
        remedy=f"did you mean {nearest[0]!r}?" if nearest else remedy or "remove it or correct its spelling",
    )  # fmt: skip
