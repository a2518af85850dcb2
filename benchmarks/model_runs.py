"""Whole models split over eight devices, beside onnxruntime on the same cores; both are checked against one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.execution.verification import verify_run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.planning.planner import make_plan
from models.registry import build


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A model by its name in ``models``, its sizes, and the most that a split run may take beside onnxruntime."""

    dims: Mapping[str, int]
    bar: float
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})


MODELS = {
    "gpt2": ModelRun(dims={"batch": 4, "seq": 256}, bar=1.5),
    "resnet-50": ModelRun(dims={"batch": 8}, bar=1.5),
}


def model_rows(
    name: str, folder: Path, repeat: int, medians: Callable[[Mapping[str, Callable[[], object]], int], dict[str, float]]
) -> list[dict[str, Any]]:
    """The rows of one model: seconds of onnxruntime on all cores, of the split run, and how many times as long that is."""
    import onnxruntime

    run = MODELS[name]
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name, weights="seeded").SerializeToString())
    imported = load_model(path, dims=run.dims)
    plan = make_plan(imported.workload, generate_fleet(8, preset="cleave"), without=frozenset({"server"}))
    inputs = random_inputs(imported)
    whole = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with Session(plan, path, engine=LocalEngine()) as session:
        last = []
        taken = medians({"onnxruntime": lambda: whole.run(None, inputs), "": lambda: last.append(session.run(inputs))}, repeat)
        result = last[-1]
    verdict = verify_run(plan, path, inputs, result.outputs)
    if not verdict.ok:
        raise AssertionError(f"{name} is not verified: {verdict.rows}")
    case = f"{name}, {', '.join(f'{dim} {size}' for dim, size in run.dims.items())}, 8 devices"
    return [
        {"case": case, "what": "onnxruntime, all cores", "value": taken["onnxruntime"], "unit": "s"},
        {"case": case, "what": f"cleave-plan, {result.tiles_run} tiles, verified", "value": taken[""], "unit": "s"},
        {
            "case": case,
            "what": "cleave-plan / onnxruntime",
            "value": taken[""] / taken["onnxruntime"],
            "unit": "x",
            "bar": run.bar,
        },
    ]
