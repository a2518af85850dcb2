"""Engines by the name that a user gives."""

from __future__ import annotations

from cleave_plan.errors import UsageError
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.engines.ray import RayEngine
from cleave_plan.onnx_io.conv_kernel import Convolution

ENGINES = ("local", "ray")


def engine_named(name: str, *, workers: int | None = None, convolution: str = Convolution.NUMPY) -> Engine:
    """The engine called ``name``, not started; ``workers``, and what computes convolutions, are for devices that are processes
    of this machine.

    Raises UsageError for another name.
    """
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}", expected=f"one of {', '.join(ENGINES)}")
    if name == "ray":
        if workers is not None:
            raise UsageError("workers are of the local engine", expected="--engine ray without --workers")
        if convolution != Convolution.NUMPY:
            raise UsageError(
                "what computes convolutions is chosen for the local engine", expected="--engine ray without --convolution"
            )
        return RayEngine()
    return LocalEngine(workers, convolution=convolution)
