"""Files that PyTorch wrote (models/torch_fixtures.py), imported, planned and run; the expected values are PyTorch's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from cleave_plan.execution.session import run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.graph import Workload

FOLDER = Path(__file__).parent / "fixtures" / "torch"
MODELS = ("cnn", "mlp", "encoder")
FILES = [f"{model}-{exporter}" for model in MODELS for exporter in ("legacy", "dynamo")]

# (operator, batch, m, k, n) by hand from the modules; batches of 2 images, 6 rows, and 2 sequences of 7.
# Encoder layer: qkv, scores (2 sequences of 4 heads), context, out, fc1, fc2.
_LAYER = [
    ("MatMul", 1, 14, 32, 96), ("MatMul", 8, 7, 8, 7), ("MatMul", 8, 7, 7, 8),
    ("MatMul", 1, 14, 32, 32), ("MatMul", 1, 14, 32, 128), ("MatMul", 1, 14, 128, 32),
]  # fmt: skip
GEMMS = {
    "cnn": [
        ("Conv", 1, 2 * 10 * 12, 3 * 15, 8), ("Conv", 4, 2 * 10 * 12, 2 * 9, 4), ("Conv", 16, 2 * 5 * 6, 9, 1),
        ("Gemm", 1, 2, 16, 5),
    ],
    "mlp": [("Gemm", 1, 6, 24, 48), ("Gemm", 1, 6, 48, 16), ("Gemm", 1, 16, 6, 16)],
    "encoder": _LAYER + _LAYER,
}  # fmt: skip


def values(file: str, folder: Path = FOLDER) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs and PyTorch's output."""
    with np.load(folder / f"{file.split('-')[0]}.npz") as arrays:
        inputs = {name.removeprefix("input."): arrays[name] for name in arrays if name.startswith("input.")}
        return inputs, arrays["output"]


@cache
def imported(path: Path) -> Workload:
    """The workload of one file at the fixture's input shapes."""
    inputs, _ = values(path.stem, path.parent)
    return load_model(path, shapes={name: array.shape for name, array in inputs.items()}).workload


def table(workload: Workload) -> list[tuple[str, int, int, int, int]]:
    """Operator and shape of every GEMM, in order."""
    return [(gemm.op, *gemm.shape) for gemm in workload.gemms]


@pytest.mark.parametrize("file", FILES)
def test_gemms_are_the_module_s(file: str) -> None:
    """Both exporters' graphs, however they are written, hold the products of the PyTorch module."""
    assert sorted(table(imported(FOLDER / f"{file}.onnx"))) == sorted(GEMMS[file.split("-")[0]])


@pytest.mark.parametrize("file", FILES)
def test_split_run_gives_pytorch_s_numbers(file: str) -> None:
    """Over 8 unequal devices with nothing on the server."""
    path = FOLDER / f"{file}.onnx"
    inputs, expected = values(file)
    fleet = generate_fleet(8, preset="cleave", seed=2)
    plan = make_plan(imported(path), fleet, without=frozenset({"server"}))
    verdict = verify(plan, imported(path), fleet)
    assert verdict.ok, verdict.findings
    np.testing.assert_allclose(run(plan, path, inputs).outputs["output"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("file", FILES)
def test_committed_files_are_well_formed_and_small(file: str) -> None:
    """The checker accepts them, and they tell nothing of the machine that made them."""
    path = FOLDER / f"{file}.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert path.stat().st_size < 300_000
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


@pytest.mark.long
def test_made_again_they_are_the_same(tmp_path: Path) -> None:
    """The script still writes these files: same GEMMs, same inputs, same outputs."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make test-long installs it apart")
    from models.torch_fixtures import make

    make(tmp_path)
    for file in FILES:
        assert table(imported(tmp_path / f"{file}.onnx")) == table(imported(FOLDER / f"{file}.onnx"))
        (again, output), (inputs, expected) = values(file, tmp_path), values(file)
        assert {name: array.tolist() for name, array in again.items()} == {n: a.tolist() for n, a in inputs.items()}
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
