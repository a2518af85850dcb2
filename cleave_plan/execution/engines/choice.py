"""Engines by the name that a user gives."""

from __future__ import annotations

from cleave_plan.errors import UsageError
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.local import LocalEngine

ENGINES = ("local",)


def engine_named(name: str, *, workers: int | None = None) -> Engine:
    """The engine called ``name``, not started; ``workers`` is for those whose devices are processes of this machine.

    Raises UsageError for another name.
    """
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}", expected=f"one of {', '.join(ENGINES)}")
    return LocalEngine(workers)
