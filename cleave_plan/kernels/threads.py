"""One thread in BLAS, for results that must not depend on how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import LibController, ThreadpoolController


@cache
def _libraries() -> tuple[LibController, ...]:
    """The BLAS libraries of this process; NumPy has loaded its own when this is first asked."""
    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS to one thread, in the whole process, and give it back what it had."""
    had = [(library, library.num_threads) for library in _libraries()]
    changed = [(library, threads) for library, threads in had if threads != 1]
    for library, _ in changed:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in changed:
            library.set_num_threads(threads)
