"""Runs whose images lie in blocks of channels between convolutions: which tensors do, and that outputs are those of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import small_models
from hand_plans import random_plan
from in_process import walk_of
from onnx import helper

from cleave_plan.execution.admission import admit
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.onnx_io.blocked_conv import block_size
from cleave_plan.onnx_io.importer import load_model

SIZE = 4


def conv(x: str, w: str, y: str, *rest: str, **attributes: object) -> onnx.NodeProto:
    """A 3 x 3 convolution that keeps the image's size."""
    return helper.make_node("Conv", [x, w, *rest], [y], name=y, **({"pads": [1, 1, 1, 1]} | attributes))


def node(op: str, *inputs: str, to: str) -> onnx.NodeProto:
    """A node with one output."""
    return helper.make_node(op, inputs, [to])


def chain(*last: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Two convolutions, of which the first has a bias and a bound, and what follows."""
    return [conv("x", "w3", "c", "b8"), node("Relu", "c", to="r"), conv("r", "w8", "d"), *last]


CASES: dict[str, tuple[list[onnx.NodeProto], list[str], set[str]]] = {
    "from one to the next": (chain(), ["d"], {"r"}),
    "without a bias or a bound": ([conv("x", "w3", "c"), conv("c", "w8", "d")], ["d"], {"c"}),
    "a residual": (chain(node("Add", "d", "r", to="s"), node("Relu", "s", to="y"), conv("y", "w8", "z")), ["z"], {"r", "y"}),
    "a residual that ends the model": (chain(node("Add", "d", "r", to="y")), ["y"], {"r"}),
    "an input that is added": (
        [conv("x8", "w8", "c"), node("Add", "c", "x8", to="s"), conv("s", "w8", "y")], ["y"], {"s"},
    ),
    "an output of the model": (chain(), ["r", "d"], set()),
    "read by the server too": (chain(node("Neg", "r", to="n")), ["d", "n"], set()),
    "read by what groups do": ([conv("x", "w3", "c"), conv("c", "wg", "d", group=2)], ["d"], set()),
    "made by what groups do": ([conv("x8", "wg", "c", group=2), conv("c", "w8", "d")], ["d"], set()),
    "channels that are no blocks": ([conv("x", "w6", "c"), conv("c", "v6", "d"), conv("d", "w8", "y")], ["y"], set()),
    "kernels that are an input": ([conv("x", "w3", "c"), conv("c", "given", "d")], ["d"], set()),
    "as images and as kernels": (
        [conv("x8", "w8", "c", strides=[2, 2]), conv("c", "c", "y", pads=[0, 0, 0, 0])], ["y"], set(),
    ),
}  # fmt: skip


def model(path: Path, case: str) -> Path:
    """The model of a case."""
    nodes, outputs, _ = CASES[case]
    shapes = {"w3": (8, 3, 3, 3), "w8": (8, 8, 3, 3), "wg": (8, 4, 3, 3), "w6": (6, 3, 3, 3), "v6": (8, 6, 3, 3), "b8": (8,)}
    inputs = {"x": (3, 3, 5, 6), "x8": (8, 8, 5, 6), "given": (8, 8, 3, 3)}
    used = {name for each in nodes for name in each.input}
    constants = small_models.weights(3, **{name: shape for name, shape in shapes.items() if name in used})
    given = {name: (small_models.FLOAT, list(shape)) for name, shape in inputs.items() if name in used}
    return small_models.save(path, nodes, given, outputs, constants)


@pytest.mark.parametrize("case", CASES)
def test_what_lies_in_blocks(tmp_path: Path, case: str) -> None:
    """The tensors of the case do, the outputs are those of the unsplit model, and the bytes of tiles are as ever."""
    path = model(tmp_path / "model.onnx", case)
    imported = load_model(path)
    placed = admit(random_plan(imported.workload, seed=1, keep=0.0), imported.workload)
    walk, plain = (walk_of(imported, placed, finishing=True, block=size) for size in (SIZE, 0))
    assert blocked_of(walk) == CASES[case][2]
    assert blocked_of(plain) == set()
    for seed in (1, 2):
        inputs = random_inputs(imported, seed=seed)
        found, wanted = walk.run(dict(inputs)), small_models.unsplit(path, inputs)
        assert found.outputs.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(found.outputs[name], wanted[name], rtol=1e-4, atol=1e-4)
        other = plain.run(dict(inputs))
        assert (found.bytes_down, found.bytes_up) == (other.bytes_down, other.bytes_up)


def blocked_of(walk: object) -> set[str]:
    """The tensors of a walk that lie in blocks when they are made."""
    return {name for own, blocks in walk._blocks.items() if blocks.out for name in walk._convolutions[own].outputs}  # type: ignore[attr-defined]


@pytest.mark.parametrize("why", ["checked", "not finished", "on the server"])
def test_when_nothing_does(tmp_path: Path, why: str) -> None:
    """Where tiles are checked, where devices are elsewhere, and where the server computes the products."""
    path = model(tmp_path / "model.onnx", "a residual")
    imported = load_model(path)
    placed = admit(random_plan(imported.workload, seed=1, keep=1.0 if why == "on the server" else 0.0), imported.workload)
    walk = walk_of(imported, placed, finishing=why != "not finished", integrity=why == "checked", block=SIZE)
    assert blocked_of(walk) == set()
    inputs = random_inputs(imported)
    wanted = small_models.unsplit(path, inputs)["z"]
    np.testing.assert_allclose(walk.run(dict(inputs)).outputs["z"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not block_size(), reason="this onnxruntime computes nothing in blocks")
def test_by_processes(tmp_path: Path) -> None:
    """Two workers, batch after batch, with residuals and two convolutions that are one product; kernels lie in memory once."""
    size = block_size()
    nodes = [
        conv("x", "w1", "c1", "b1"), node("Relu", "c1", to="r1"),
        conv("r1", "w2", "c2", "b2"), node("Relu", "c2", to="r2"),
        conv("r1", "w3", "c3", "b2", strides=[1, 1]),
        conv("r2", "w4", "c4"), node("Add", "c4", "c3", to="s"), node("Relu", "s", to="r4"),
        conv("r4", "w4", "y"),
    ]  # fmt: skip
    weights = small_models.weights(
        1, w1=(size, 3, 3, 3), b1=(size,), w2=(2 * size, size, 3, 3), w3=(2 * size, size, 3, 3), b2=(2 * size,),
        w4=(2 * size, 2 * size, 3, 3),
    )  # fmt: skip
    path = small_models.save(tmp_path / "model.onnx", nodes, {"x": (small_models.FLOAT, [3, 3, 9, 8])}, ["y"], weights)
    imported = load_model(path)
    for seed in (1, 2):
        plan = random_plan(imported.workload, seed=seed, keep=0.0)
        with Session(plan, path, engine=LocalEngine(2, convolution="onnxruntime")) as session:
            assert blocked_of(session._walk) >= {"r1", "r2", "r4"}
            for draw in (1, 2, 3):
                inputs = random_inputs(imported, seed=draw)
                wanted = small_models.unsplit(path, inputs)["y"]
                np.testing.assert_allclose(session.run(inputs).outputs["y"], wanted, rtol=1e-3, atol=1e-2)
