"""Python's cyclic garbage collector, left out where it cannot find anything."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection of cycles inside; as before afterwards.

    An import makes hundreds of thousands of values and no cycle, and the collector would look at all of them again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
