"""What is expected instead of a device's name that the fleet does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from cleave_plan.ordering import natural


def one_of(known: Collection[str], name: str) -> str:
    """The name in ``known`` (not empty) that is nearest to ``name``, in words: a fleet may have too many to list all."""
    (nearest,) = difflib.get_close_matches(name, sorted(known, key=natural), n=1, cutoff=0.0)
    return f"one of its names, such as {nearest!r}"
