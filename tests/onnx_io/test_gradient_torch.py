"""Gradients of the models that people train beside PyTorch's autograd, for both of its exporters (long: needs PyTorch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gradient_cases import Array, evaluate

from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec

pytestmark = pytest.mark.long

MODELS = ("mlp", "cnn", "resnet", "mobilenet", "gpt2", "opt", "bert", "llama", "vit", "t5", "lstm", "gru")
OPERATOR_SETS = [*(("legacy", opset) for opset in (13, 14, 20)), *(("dynamo", opset) for opset in (20, 22, 23, 25))]
"""From the oldest that is read to the newest that an exporter writes."""


def exported(folder: Path, model: str, exporter: str, dtype: str, *, opset: int = 18, training: bool = False) -> tuple[Any, Path]:
    """PyTorch's values and the exported file."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-long installs it apart")
    from models import torch_gradients

    module, x = torch_gradients.make(model, getattr(torch, dtype), training=training)
    path = folder / f"{model}.onnx"
    try:
        torch_gradients.export(module, x, torch_gradients.CASES[model], exporter, opset, path)
    except Exception as error:
        pytest.skip(f"PyTorch cannot export it this way: {type(error).__name__}")
    return torch_gradients.truth(module, x), path


def singles(graph: onnx.GraphProto) -> list[str]:
    """What would make float32 numbers of others: nodes that convert to them."""
    return [
        node.name for node in graph.node for attribute in node.attribute
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT
    ]  # fmt: skip


def gradients_of(made: GradientModel, results: dict[str, Array]) -> dict[str, Array]:
    """By initialiser."""
    return {name: results[output] for name, output in made.names.gradients.items()}


def compare(truth: Any, path: Path, made: GradientModel, results: dict[str, Array], *, tolerance: float) -> None:
    """Loss and the gradient of every parameter."""
    from models import torch_gradients

    where = torch_gradients.places(truth.values, path)
    missing = truth.gradients.keys() - where.keys()
    assert not missing, missing
    assert float(results["loss"]) == pytest.approx(truth.loss, rel=tolerance)
    error = torch_gradients.largest_error(truth, gradients_of(made, results), where)
    print(f"{len(where)} parameters, largest error {error:.1e}")
    assert error <= tolerance


def run_ort(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """All outputs, by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("model", MODELS)
def test_single_precision_in_both_runtimes(tmp_path: Path, model: str, exporter: str) -> None:
    """Within 1e-4 of PyTorch, and the two runtimes within 1e-5 of each other; the checker accepts the file."""
    truth, path = exported(tmp_path, model, exporter, "float32")
    made = gradient_model(path, LossSpec(), GradientOptions())
    onnx.checker.check_model(made.model, full_check=True)
    feeds = {"x": truth.x, "target": truth.labels}
    reference, ort = evaluate(made.model, feeds), run_ort(made.model, feeds)
    for results in (reference, ort):
        compare(truth, path, made, results, tolerance=1e-4)
    found, other = gradients_of(made, reference), gradients_of(made, ort)
    total = np.sqrt(sum(float((gradient**2).sum()) for gradient in found.values()))
    for name, gradient in found.items():
        assert np.linalg.norm(gradient - other[name]) <= 1e-5 * max(float(np.linalg.norm(gradient)), 1e-3 * float(total)), name


@pytest.mark.parametrize(("exporter", "opset"), OPERATOR_SETS)
@pytest.mark.parametrize("model", MODELS)
def test_operator_sets(tmp_path: Path, model: str, exporter: str, opset: int) -> None:
    """Within 1e-4 of PyTorch, in onnxruntime."""
    truth, path = exported(tmp_path, model, exporter, "float32", opset=opset)
    made = gradient_model(path, LossSpec(), GradientOptions())
    onnx.checker.check_model(made.model, full_check=True)
    compare(truth, path, made, run_ort(made.model, {"x": truth.x, "target": truth.labels}), tolerance=1e-4)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("model", MODELS)
def test_double_precision(tmp_path: Path, model: str, exporter: str) -> None:
    """Within 1e-9 of PyTorch, by onnx.reference; nothing in the file is computed in float32."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test-long installs it apart")
    from models.torch_gradients import float64_throughout

    with float64_throughout():
        truth, path = exported(tmp_path, model, exporter, "float64")
    assert not singles(onnx.load(path).graph)
    made = gradient_model(path, LossSpec(), GradientOptions())
    results = evaluate(made.model, {"x": truth.x, "target": truth.labels})
    compare(truth, path, made, results, tolerance=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_batch_norms_in_training_mode(tmp_path: Path, model: str, dtype: str) -> None:
    """Normalised by the batch, as the exporter writes a module in training mode."""
    truth, path = exported(tmp_path, model, "legacy", dtype, training=True)
    made = gradient_model(path, LossSpec(), GradientOptions())
    results = evaluate(made.model, {"x": truth.x, "target": truth.labels})
    compare(truth, path, made, results, tolerance=1e-4 if dtype == "float32" else 1e-9)
