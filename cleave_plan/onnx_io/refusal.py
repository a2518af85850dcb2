"""What a runtime exchanges with us, and how it says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
Value = Any
"""What a tensor name stands for: an array, a list (ONNX sequence), or None (empty optional)."""


class RefusedError(Exception):
    """A runtime cannot run a segment; the message is its own."""


def or_refused(action: Callable[[], Result]) -> Result:
    """Run ``action``; neither runtime has a base for its exceptions, so whatever it raises is a refusal."""
    try:
        return action()
    except Exception as error:
        cause = error.__cause__ or error
        raise RefusedError(f"{type(cause).__name__}: {str(cause).strip() or error}") from error
