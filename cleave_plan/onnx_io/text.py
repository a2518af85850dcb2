"""The names in a file have to be text: protobuf hands damaged ones over as bytes, which no other room expects."""

from __future__ import annotations

from collections.abc import Iterable

from cleave_plan.errors import InputFileError


def refuse_damaged(names: Iterable[str], where: str) -> None:
    """Raise InputFileError when one of ``names`` is not valid UTF-8."""
    kept = list(names)
    try:
        "".join(kept)  # takes nothing but text, and looks at 100,000 names in a millisecond
    except TypeError:
        damaged = next(name for name in kept if not isinstance(name, str))
    else:
        return
    raise InputFileError(
        f"the name {damaged!r} is not text", where=where, expected="names in UTF-8",
        remedy="the file may be damaged: export it again",
    )  # fmt: skip
