"""Plans neural networks over unequal devices around parameter servers.

    workload = cleave_plan.load_onnx("model.onnx", dims={"batch": 8})
    fleet = cleave_plan.load_fleet("fleet.yaml")
    plan = cleave_plan.make_plan(workload, fleet)
    print(plan.report.batch_s, plan.report.gap)
    assert cleave_plan.verify(plan, workload, fleet).ok
    outputs = cleave_plan.run(plan, "model.onnx", {"x": x})

Everything here is described in :mod:`cleave_plan.api` and loaded when it is first used: importing this package loads
neither onnx nor a solver.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleave_plan.api import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> object:
    """Fetch a public name from :mod:`cleave_plan.api`, or the version from the package's metadata."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cleave-plan")
    if not name.startswith("_") and name != "api":
        api = _api()
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'cleave_plan' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion in a shell."""
    return sorted({*globals(), *_api().__all__, "__version__"})


def _api() -> ModuleType:
    # not `from cleave_plan import api`, which would ask this module for the attribute "api" first
    return import_module("cleave_plan.api")
