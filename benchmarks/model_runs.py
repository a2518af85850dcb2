"""Whole models split over eight devices, beside onnxruntime on the same cores; both are checked against one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.execution.verification import verify_run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.conv_kernel import Convolution
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.planning.planner import make_plan
from models.registry import build


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A model by its name in ``models``, its sizes, the most that a split run may take beside onnxruntime, and with what workers
    compute convolutions: the bar is that of the last, others stand beside it."""

    dims: Mapping[str, int]
    bar: float
    convolutions: Sequence[str] = (Convolution.NUMPY,)


MODELS = {
    "gpt2": ModelRun(dims={"batch": 4, "seq": 256}, bar=1.5),
    "resnet-50": ModelRun(dims={"batch": 8}, bar=1.5, convolutions=(Convolution.NUMPY, Convolution.ONNXRUNTIME)),
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
    actions: dict[str, Callable[[], object]] = {"onnxruntime": lambda: whole.run(None, inputs)}
    last: dict[str, RunResult] = {}
    with ExitStack() as running:
        for convolution in run.convolutions:
            session = running.enter_context(Session(plan, path, engine=LocalEngine(convolution=convolution)))

            def batch(convolution: str = convolution, session: Session = session) -> None:
                last[convolution] = session.run(inputs)

            actions[f"split, {convolution}"] = batch
        taken = medians(actions, repeat)
    case = f"{name}, {', '.join(f'{dim} {size}' for dim, size in run.dims.items())}, 8 devices"
    rows: list[dict[str, Any]] = [{"case": case, "what": "onnxruntime, all cores", "value": taken["onnxruntime"], "unit": "s"}]
    for convolution, result in last.items():
        verdict = verify_run(plan, path, inputs, result.outputs)
        if not verdict.ok:
            raise AssertionError(f"{name} is not verified: {verdict.rows}")
        seconds = taken[f"split, {convolution}"]
        how = "" if len(run.convolutions) == 1 else f", convolutions by {convolution}"
        bar = run.bar if convolution == run.convolutions[-1] else None
        rows += [
            {"case": case, "what": f"cleave-plan{how}, verified", "value": seconds, "unit": "s"},
            {
                "case": case,
                "what": f"cleave-plan{how} / onnxruntime",
                "value": seconds / taken["onnxruntime"],
                "unit": "x",
                "bar": bar,
            },
        ]  # fmt: skip
    return rows
