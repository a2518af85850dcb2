"""Convolutions that are finished tile by tile: what is taken along with them, and that nothing changes but who computes it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from hand_plans import hand_plan, random_plan, random_tiling
from in_process import walk_of
from onnx import helper

from cleave_plan.execution.admission import Placed, admit
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.reproducible import on_grid
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import Join
from cleave_plan.workload.joined import product_of

CONVOLUTION = {"pads": [1, 1, 1, 1]}


def conv(x: str, w: str, y: str, b: str = "", **attributes: object) -> onnx.NodeProto:
    """A 3 x 3 convolution that keeps the image's size."""
    return helper.make_node("Conv", [x, w, b] if b else [x, w], [y], name=y, **(CONVOLUTION | attributes))


def node(op: str, *inputs: str, to: str, **attributes: object) -> onnx.NodeProto:
    """A node with one output."""
    return helper.make_node(op, inputs, [to], **attributes)


CASES = {
    "bias": ([conv("x", "w", "y", "b")], ["y"], []),
    "bias and Relu": ([conv("x", "w", "c", "b"), node("Relu", "c", to="y")], ["y"], []),
    "Relu without bias, groups": ([conv("x", "wg", "c", group=2), node("Relu", "c", to="y")], ["y"], []),
    "Clip": ([conv("x", "w", "c", "b"), node("Clip", "c", "low", "high", to="y")], ["y"], []),
    "Clip above": ([conv("x", "w", "c", "b"), node("Clip", "c", "", "high", to="y")], ["y"], []),
    "Clip by a tensor that is no constant": (
        [node("ReduceMax", "x", to="m", keepdims=0), conv("x", "w", "c", "b"), node("Clip", "c", "", "m", to="y")], ["y"],
        ["ReduceMax", "Clip"],
    ),
    "residual": (
        [conv("x", "w", "c", "b"), node("Add", "c", "x", to="s"), node("Relu", "s", to="y")], ["y"], [],
    ),
    "residual on the other side": ([conv("x", "w", "c"), node("Add", "x", "c", to="y")], ["y"], []),
    "two in a row, one across": (
        [
            conv("x", "w", "c", "b"), node("Relu", "c", to="r"), conv("r", "w", "d", "b"), node("Add", "d", "r", to="s"),
            node("Clip", "s", "low", to="y"),
        ], ["y"], [],
    ),
    "two of one level into one Add": (
        [conv("x", "w", "c", "b"), conv("x", "v", "d"), node("Add", "c", "d", to="s"), node("Relu", "s", to="y")], ["y"],
        ["Add", "Relu"],
    ),
    "two of different levels into one Add": (
        [conv("x", "w", "c", "b"), conv("x", "v", "d"), conv("d", "w", "e", "b"), node("Add", "c", "e", to="y")], ["y"], [],
    ),
    "twice itself": ([conv("x", "w", "c", "b"), node("Add", "c", "c", to="y")], ["y"], ["Add"]),
    "read twice": ([conv("x", "w", "c", "b"), node("Relu", "c", to="r"), node("Neg", "c", to="y")], ["r", "y"], ["Relu", "Neg"]),
    "an output between": ([conv("x", "w", "c", "b"), node("Relu", "c", to="y")], ["c", "y"], ["Relu"]),
    "a sum that is broadcast": ([conv("x", "w", "c"), node("Add", "c", "wide", to="y")], ["y"], ["Add"]),
    "another activation": ([conv("x", "w", "c", "b"), node("Sigmoid", "c", to="y")], ["y"], ["Sigmoid"]),
    "an Add after the bound": (
        [conv("x", "w", "c", "b"), node("Relu", "c", to="r"), node("Add", "r", "x", to="y")], ["y"], ["Add"],
    ),
}  # fmt: skip


def model(path: Path, case: str) -> Path:
    """The model of a case."""
    nodes, outputs, _ = CASES[case]
    constants = small_models.weights(3, w=(4, 4, 3, 3), v=(4, 4, 3, 3), wg=(6, 2, 3, 3), b=(4,), wide=(1, 4, 1, 1))
    constants |= {"low": np.array(-0.5, np.float32), "high": np.array(1.5, np.float32)}
    used = {name for each in nodes for name in each.input}
    constants = {name: array for name, array in constants.items() if name in used}
    return small_models.save(path, nodes, {"x": (small_models.FLOAT, [3, 4, 5, 6])}, outputs, constants)


@pytest.mark.parametrize("case", CASES)
def test_a_model_with_it(tmp_path: Path, case: str) -> None:
    """Outputs are those of the unsplit model, and the server is left with the nodes that it has to run."""
    path = model(tmp_path / "model.onnx", case)
    imported = load_model(path)
    placed = admit(random_plan(imported.workload, seed=1, keep=0.0), imported.workload)
    walk = walk_of(imported, placed, finishing=True)
    for seed in (1, 2):
        inputs = random_inputs(imported, seed=seed)
        found = walk.run(dict(inputs)).outputs
        wanted = small_models.unsplit(path, inputs)
        assert found.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-4)
    assert [each.op_type for segment in walk._order.segments for each in segment.nodes] == CASES[case][2]


@pytest.mark.parametrize("how", ["as it is", "checked", "reproducible", "on the server"])
def test_when_it_is_not_done(tmp_path: Path, how: str) -> None:
    """Where tiles are checked or computed in fixed blocks, where the engine is no local one, and of products of the server."""
    path = model(tmp_path / "model.onnx", "residual")
    imported = load_model(path)
    plan = hand_plan(imported.workload, {}) if how == "on the server" else random_plan(imported.workload, seed=1, keep=0.0)
    placed = admit(plan, imported.workload)
    if how == "reproducible":
        placed = on_grid(placed, imported.workload)
    walk = walk_of(imported, placed, integrity=how == "checked", finishing=how != "as it is")
    assert not walk._endings
    inputs = random_inputs(imported)
    np.testing.assert_allclose(
        walk.run(dict(inputs)).outputs["y"], small_models.unsplit(path, inputs)["y"], rtol=1e-4, atol=1e-4
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "left"), [(("Relu", "Relu"), []), (("Relu", "Sigmoid"), ["Sigmoid"]), (("Sigmoid", "Relu"), ["Sigmoid"])]
)
@pytest.mark.parametrize("biased", ["", "b"])
def test_convolutions_that_share_their_input(tmp_path: Path, ends: tuple[str, str], left: list[str], biased: str) -> None:
    """One product of two has the bounds of each in its columns; one of the two may have none, and no bias."""
    nodes = [conv("x", "w", "c", "b"), conv("x", "v", "d", biased)]
    nodes += [node(op, name, to=f"{name}_end") for op, name in zip(ends, "cd", strict=True)]
    constants = small_models.weights(5, w=(4, 4, 3, 3), v=(4, 4, 3, 3), b=(4,))
    path = small_models.save(
        tmp_path / "model.onnx", nodes, {"x": (small_models.FLOAT, [2, 4, 5, 6])}, ["c_end", "d_end"], constants
    )
    imported = load_model(path)
    members = tuple(imported.workload.gemms)
    both = product_of(imported.workload, members, Join.N)
    tiles = random_tiling(both.shape, random.Random(1), cuts=5, devices=3, inner=False)
    placed = Placed(gemm=both, members=members, tiles=tuple((f"device-{owner}", box) for owner, box in tiles))
    walk = walk_of(imported, {members[0].name: placed}, finishing=True)
    inputs = random_inputs(imported)
    found, wanted = walk.run(dict(inputs)).outputs, small_models.unsplit(path, inputs)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-4)
    assert [each.op_type for segment in walk._order.segments for each in segment.nodes] == left
