"""Gradient files as work: the matrix products that they hold are those that a training step is planned with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gradient_cases import Case, differentiate, values

from cleave_plan.api import gradient, load_onnx, make_plan, run, verify
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.onnx_io.whole_model import WholeModel
from cleave_plan.workload.gemm import Phase
from cleave_plan.workload.graph import Workload
from models.registry import build

TEXT = {"batch": 2, "seq": 16}
MODELS = {
    "mlp": {"batch": 8}, "cnn": {"batch": 4}, "cnn-1d": {"batch": 4}, "gpt-tiny": TEXT, "opt-tiny": TEXT, "llama-tiny": TEXT,
    "vit-tiny": {"batch": 2}, "bert-tiny": TEXT,
}  # fmt: skip
UNUSED = {"bert-tiny": 3 * 2 * 2 * 64 * 64}
"""FLOP that only the derived step counts: BERT's pooler, which the loss on its first output does not look at."""


def products(workload: Workload) -> Counter[tuple[str, int, int, int, int]]:
    """Phase, batch, K and the two other sizes of every GEMM (a gradient may come out transposed)."""
    found: Counter[tuple[str, int, int, int, int]] = Counter()
    for gemm in workload.gemms:
        batch, m, k, n = gemm.shape
        found[gemm.phase.value, batch, k, min(m, n), max(m, n)] += gemm.repeats
    return found


def both(name: str, folder: Path) -> tuple[Workload, Workload, Workload]:
    """The forward pass, the derived training step, and the gradient file as work."""
    path, step = folder / f"{name}.onnx", folder / f"{name}-step.onnx"
    path.write_bytes(build(name).SerializeToString())
    gradient(path, loss="cross-entropy", save_to=step)
    dims = MODELS[name]
    return load_onnx(path, dims=dims), load_onnx(path, dims=dims, training=True), load_onnx(step, dims=dims)


@pytest.mark.parametrize("name", MODELS)
def test_products_are_the_planned_ones(name: str, tmp_path: Path) -> None:
    """Same shapes, phases and number of levels, so three times the forward work, but for what nothing before a GEMM learns."""
    forward, derived, written = both(name, tmp_path)
    assert derived.gemm_flop - written.gemm_flop == UNUSED.get(name, 0)
    if name not in UNUSED:
        assert products(written) == products(derived)
        assert len(written.levels) == len(derived.levels)
    if name in ("gpt-tiny", "opt-tiny", "llama-tiny"):  # their first GEMMs already read what an embedding has learned
        assert written.gemm_flop == 3 * forward.gemm_flop


def test_first_layers_have_no_input_gradient(tmp_path: Path) -> None:
    """Pixels learn nothing: the first convolution has a dW only."""
    forward, _, written = both("cnn", tmp_path)
    assert 3 * forward.gemm_flop - written.gemm_flop == forward.gemms[0].flop


def test_resizing_is_a_product_going_back(tmp_path: Path) -> None:
    """Linear interpolation is no GEMM forward, and one for each resized axis backward: an exception from three times."""
    x = values(np.random.default_rng(1), 1, 2, 3, 4)
    case = Case(
        op="Resize", inputs=[x, None, np.array([1, 1, 2, 1], np.float32)], attributes={"mode": "linear"}, wanted=[0], fixed=[2]
    )
    path = tmp_path / "step.onnx"
    differentiate(case, tmp_path).save(path)
    assert [(gemm.phase, gemm.shape.macs) for gemm in load_onnx(path).gemms] == [(Phase.GRADIENT_INPUT, 2 * 4 * 6 * 3)]


def test_the_optimizer_comes_on_top(tmp_path: Path) -> None:
    """With training asked for, a gradient file gets the optimizer's step and state, and no second backward pass."""
    _, derived, written = both("mlp", tmp_path)
    step = load_onnx(tmp_path / "mlp-step.onnx", dims=MODELS["mlp"], training=True)
    assert step.training
    assert step.gemms == written.gemms
    added = [operator for operator in step.server_operators if operator not in written.server_operators]
    assert added == [operator for operator in derived.server_operators if operator.op == "AdamW"]
    elements = step.parameter_elements
    assert sum(step.parameters.values()) == elements * (4 + 8)  # a float32 weight and two moments; gradients are activations


def test_a_planned_step_gives_the_unsplit_numbers(tmp_path: Path) -> None:
    """The products of both passes over three unequal devices: loss and gradients are those of the whole graph."""
    _, _, written = both("mlp", tmp_path)
    step, dims = tmp_path / "mlp-step.onnx", MODELS["mlp"]
    workload = load_onnx(step, dims=dims, training=True)
    fleet = generate_fleet(3, preset="cleave", seed=3)
    plan = make_plan(workload, fleet, without=frozenset({"server"}))
    assert verify(plan, workload, fleet).ok
    rng = np.random.default_rng(5)
    shape = next(info.shape for info in written.inputs if info.name != "target")
    feeds = {written.inputs[0].name: rng.standard_normal(shape).astype(np.float32), "target": rng.integers(0, 10, shape[0])}
    split = run(plan, step, feeds)
    whole = WholeModel(load_model(step, dims=dims)).run(feeds)
    assert split["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    for name, expected in whole.items():
        assert np.linalg.norm(split[name] - expected) <= 1e-4 * max(float(np.linalg.norm(expected)), 1e-3), name
