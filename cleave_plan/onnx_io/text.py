"""The names in a file have to be text: protobuf hands damaged ones over as bytes, which no other room expects."""

from __future__ import annotations

from collections.abc import Iterable

from cleave_plan.errors import InputFileError


def refuse_damaged(names: Iterable[object], where: str) -> None:
    """Raise InputFileError when one of ``names`` is not valid UTF-8."""
    kept = list(names)
    if set(map(type, kept)) <= {str}:
        return
    damaged = next(name for name in kept if not isinstance(name, str))
    raise InputFileError(
        f"the name {damaged!r} is not text", where=where, expected="names in UTF-8",
        remedy="the file may be damaged: export it again",
    )  # fmt: skip
