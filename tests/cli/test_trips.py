"""Loops on the command line: listed while nobody says how often they run, counted with --trip, planned, checked and run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_cases import cleave
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.api import load_plan


@pytest.fixture
def looping(tmp_path: Path) -> Path:
    """``z = x w`` repeated ``n`` times (an input), then ``y = z v``."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], ["s_next"], name="step"), node("Identity", ["go"], ["go_next"])], "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("s", TensorProto.FLOAT, (4, 8))],
        [value("go_next", TensorProto.BOOL, ()), value("s_next", TensorProto.FLOAT, (4, 8))],
    )  # fmt: skip
    nodes = [node("Loop", ["n", "", "x"], ["z"], name="loop", body=body), node("MatMul", ["z", "v"], ["y"], name="last")]
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32) / 4, name) for name in "wv"]
    inputs = [value("x", TensorProto.FLOAT, (4, 8)), value("n", TensorProto.INT64, ())]
    graph = helper.make_graph(nodes, "looping", inputs, [value("y", TensorProto.FLOAT, (4, 8))], weights)
    path = tmp_path / "looping.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_inspect_lists_and_counts(looping: Path) -> None:
    """Without a trip count the product is listed with the option that counts it; with it, it repeats."""
    shown = cleave("inspect", looping)
    assert shown.exit_code == 0
    assert "Not known before the run, and in no total: 1 node" in shown.stdout
    assert "--trip loop=N" in " ".join(shown.stdout.split())
    found = json.loads(cleave("inspect", looping, "--json").stdout)
    assert found["unknown"][0]["name"] == "loop/step"
    assert found["totals"]["gemm_macs"] == 4 * 8 * 8
    bound = json.loads(cleave("inspect", looping, "--trip", "loop=6", "--json").stdout)
    assert (bound["unknown"], bound["trips"], bound["totals"]["gemm_macs"]) == ([], {"loop": 6}, 7 * 4 * 8 * 8)
    assert "runs 6 times; server: inside Loop loop" in " ".join(cleave("inspect", looping, "--trip", "loop=6").stdout.split())


def test_a_wrong_name_is_an_error_of_usage(looping: Path) -> None:
    """Exit code 2, with the loops that there are."""
    result = cleave("inspect", looping, "--trip", "lop=6")
    assert result.exit_code == 2
    assert "expected one of loop" in result.stderr


def test_plan_check_and_run(looping: Path, tmp_path: Path) -> None:
    """The plan keeps the trip count, is checked with it, and runs; another count is another workload."""
    fleet, plan = tmp_path / "fleet.yaml", tmp_path / "plan.json"
    assert cleave("fleet", "generate", "--devices", "3", "-o", fleet).exit_code == 0
    made = cleave("plan", looping, "--trip", "loop=6", "--fleet", fleet, "-o", plan)
    assert made.exit_code == 0, made.stderr
    assert dict(load_plan(plan).trips) == {"loop": 6}
    assert cleave("check", plan, "--model", looping, "--fleet", fleet).exit_code == 0
    np.savez(tmp_path / "in.npz", x=np.ones((4, 8), np.float32), n=np.array(6))
    ran = cleave("run", plan, "--model", looping, "--inputs", tmp_path / "in.npz", "--verify")
    assert ran.exit_code == 0, ran.stderr
    document = json.loads(plan.read_text())
    document["trips"] = {"loop": 7}
    plan.write_text(json.dumps(document))
    assert cleave("check", plan, "--model", looping, "--fleet", fleet).exit_code == 1
