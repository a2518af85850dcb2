"""Quantised, packed and expanded operators through the planner, worker processes and the verification of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models
from onnx import TensorProto, helper
from operator_cases import MICROSOFT, floats, scales, signed, unsigned

from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import run
from cleave_plan.execution.verification import verify_run
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.planning.planner import make_plan

pytest.importorskip("onnxruntime", reason="the oracle of these tests is onnxruntime")

node = helper.make_node
Made = tuple[list[Any], dict[str, tuple[int, list[int]]], list[str], dict[str, np.ndarray]]


def integer_projections() -> Made:
    """Three QLinearMatMul with one input: zero points and scales for each column, of each its own."""
    weights = {"xs": np.float32(0.02), "xz": np.uint8(130), "ys": np.float32(0.4), "yz": np.uint8(110)}
    nodes = []
    for name, width in (("q", 48), ("k", 40), ("v", 56)):
        weights |= {f"{name}w": signed(64, width), f"{name}s": scales(width), f"{name}z": np.zeros(width, np.int8)}
        nodes.append(node("QLinearMatMul", ["x", "xs", "xz", f"{name}w", f"{name}s", f"{name}z", "ys", "yz"], [name], name=name))
    return nodes, {"x": (TensorProto.UINT8, [96, 64])}, ["q", "k", "v"], weights


def packed_projections() -> Made:
    """Three MatMulNBits with one input, scales and zero points for each block."""
    weights, nodes = {}, []
    for name, width in (("q", 48), ("k", 40), ("v", 56)):
        weights |= {f"{name}w": unsigned(width, 2, 16), f"{name}s": scales(2 * width), f"{name}z": unsigned(width)}
        inputs = ["x", f"{name}w", f"{name}s", f"{name}z"]
        nodes.append(node("MatMulNBits", inputs, [name], name=name, domain=MICROSOFT, K=64, N=width, bits=4, block_size=32))
    return nodes, {"x": (TensorProto.FLOAT, [96, 64])}, ["q", "k", "v"], weights


def recurrent_then_attention() -> Made:
    """A bidirectional GRU, whose result attends to itself in groups, then a transposed convolution."""
    weights = {
        "w": floats(2, 48, 24) / 4, "r": floats(2, 48, 16) / 4, "b": floats(2, 96) / 4, "aw": floats(32, 96) / 4,
        "ab": floats(96),
        "cw": floats(32, 8, 3), "order": np.array([3, 40, 32]), "turn": np.array([40, 3, 32]),
    }  # fmt: skip
    nodes = [
        node("GRU", ["x", "w", "r", "b"], ["g"], name="gru", hidden_size=16, direction="bidirectional", linear_before_reset=1),
        node("Transpose", ["g"], ["t"], perm=[2, 0, 1, 3]),
        node("Reshape", ["t", "order"], ["rows"]),
        node("Attention", ["rows", "aw", "ab"], ["a"], name="attention", domain=MICROSOFT, num_heads=4, unidirectional=1),
        node("Transpose", ["a"], ["channels"], perm=[0, 2, 1]),
        node("ConvTranspose", ["channels", "cw"], ["y"], name="up", strides=[2]),
    ]
    return nodes, {"x": (TensorProto.FLOAT, [40, 3, 24])}, ["y"], weights


@pytest.mark.parametrize("make", [integer_projections, packed_projections, recurrent_then_attention])
def test_planned_run(tmp_path: Path, make: Callable[[], Made]) -> None:
    """Planned on six devices without the server, run in two processes, verified against the unsplit model."""
    nodes, inputs, outputs, weights = make()
    path = small_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs,
        outputs,
        {name: np.asarray(array) for name, array in weights.items()},
        domains=[MICROSOFT],
    )
    imported = load_model(path)
    plan = make_plan(imported.workload, generate_fleet(6, seed=3), without=frozenset({"server"}))
    feeds = random_inputs(imported)
    result = run(plan, path, feeds, workers=2)
    assert result.tiles_run > 0
    assert result.gemms_on_server == sum(bool(gemm.pinned) for gemm in imported.workload.gemms)
    wanted = small_models.unsplit(path, feeds)
    for name in outputs:
        if wanted[name].dtype.kind in "iu":
            np.testing.assert_array_equal(result.outputs[name], wanted[name])
        else:
            np.testing.assert_allclose(result.outputs[name], wanted[name], rtol=1e-3, atol=1e-3)
    assert verify_run(plan, path, feeds, result.outputs).ok


@pytest.mark.parametrize("make", [integer_projections, packed_projections])
def test_products_that_share_their_input_are_cut_as_one(tmp_path: Path, make: Callable[[], Made]) -> None:
    """Companions of joined members lie side by side with their columns."""
    nodes, inputs, outputs, weights = make()
    path = small_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs,
        outputs,
        {name: np.asarray(array) for name, array in weights.items()},
        domains=[MICROSOFT],
    )
    plan = make_plan(load_model(path).workload, generate_fleet(6, seed=3), without=frozenset({"server"}))
    assert [sorted(assignment.gemms) for assignment in plan.assignments] == [["k", "q", "v"]]
