"""Levels, server operators, live memory, weights and names of an imported model, by hand-counted examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.workload.gemm import Role

from import_cases import ints, load, model, outside, shapes_of, value, weight  # isort: skip

node = helper.make_node


def attention() -> onnx.ModelProto:
    """One attention layer with a residual and a head: q, k, v | scores | context | out | head."""
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]), node("MatMul", ["x", "wk"], ["k"]), node("MatMul", ["x", "wv"], ["v"]),
        node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["p"], name="softmax"), node("MatMul", ["p", "v"], ["context"]),
        node("MatMul", ["context", "wo"], ["o"]), node("Add", ["o", "x"], ["r"], name="residual"),
        node("Gemm", ["flat", "head"], ["y"]), node("Flatten", ["r"], ["flat"], name="flatten"),
        node("Relu", ["y"], ["z"], name="last"),
    ]  # fmt: skip
    constants = {name: weight(4, 4) for name in ("wq", "wk", "wv", "wo")} | {"head": weight(12, 5)}
    return model(nodes, {"x": (2, 3, 4)}, ["z"], constants)


def test_levels(tmp_path: Path) -> None:
    """A level is the longest path in products; server nodes precede the level that their result can serve."""
    imported = load(tmp_path, attention())
    levels = [[imported.workload.gemms[place].name for place in level.gemms] for level in imported.workload.levels]
    assert levels == [["q", "k", "v"], ["scores"], ["context"], ["o"], ["y"]]
    assert [level.index for level in imported.workload.levels] == [0, 1, 2, 3, 4]
    assert {operator.name: operator.level for operator in imported.workload.server_operators} == {
        "turn": 1, "softmax": 2, "residual": 4, "flatten": 4, "last": 5,
    }  # fmt: skip
    for place, entry in enumerate(imported.model.graph.node):
        names = {operator.name: operator.level for operator in imported.workload.server_operators}
        level = names.get(entry.name)
        if level is None:
            level = next(gemm.level for gemm in imported.workload.gemms if gemm.output == entry.output[0])
        assert imported.depth[place] == level


def test_identical_products_are_one_class(tmp_path: Path) -> None:
    """q, k, v and o have one shape and one kind of operands; scores and context are products of activations."""
    classes = load(tmp_path, attention()).workload.classes()
    assert [[gemm.name for gemm in members] for members in classes.values()] == [
        ["q", "k", "v", "o"],
        ["scores"],
        ["context"],
        ["y"],
    ]


def test_live_memory(tmp_path: Path) -> None:
    """Alive in a level: what it reads and makes, and what later nodes need (x, q, ... are 96 bytes, scores are 72)."""
    levels = load(tmp_path, attention()).workload.levels
    x = q = k = v = kt = context = o = flat = 2 * 3 * 4 * 4
    scores = probabilities = 2 * 3 * 3 * 4
    y = 2 * 5 * 4
    assert [level.live_bytes for level in levels] == [
        x + q + k + v, x + q + kt + v + scores, x + v + probabilities + context, x + context + o, flat + y,
    ]  # fmt: skip


def test_bytes_of_server_operators(tmp_path: Path) -> None:
    """Read plus written; views move nothing, a Gather reads the rows that it gives, a Shape reads none."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], name="gather"), node("Relu", ["rows"], ["relu"], name="relu"),
        node("Reshape", ["relu", "flat"], ["view"], name="reshape"), node("Shape", ["view"], ["shape"], name="shape"),
        node("Add", ["view", "bias"], ["sum"], name="add"), node("Cast", ["sum"], ["half"], name="cast", to=TensorProto.FLOAT16),
    ]  # fmt: skip
    constants = {"table": weight(1000, 8), "flat": ints(40), "bias": weight(40)}
    workload = load(tmp_path, model(nodes, [value("ids", (5,), TensorProto.INT64)], ["half", "shape"], constants)).workload
    assert {operator.name: operator.bytes for operator in workload.server_operators} == {
        "gather": 5 * 8 + 2 * 160, "relu": 2 * 160, "reshape": 0, "shape": 8, "add": 3 * 160, "cast": 160 + 80,
    }  # fmt: skip


def test_parameters(tmp_path: Path) -> None:
    """Weights are what is multiplied, added or looked up: shapes, scalars and what nobody reads are not; ties count once."""
    nodes = [
        node("Gather", ["embedding", "ids"], ["e"]), node("Transpose", ["embedding"], ["head"], perm=[1, 0]),
        node("MatMul", ["e", "w"], ["h"]), node("Add", ["h", "bias"], ["b"]), node("Mul", ["b", "scale"], ["s"]),
        node("Reshape", ["s", "target"], ["r"]), node("MatMul", ["r", "head"], ["logits"]),
        node("MatMul", ["r", "head2"], ["again"]),
    ]  # fmt: skip
    place = {"offset": "0", "length": "640"}
    constants = {
        "embedding": outside("embedding", (20, 8), **place), "head2": outside("head2", (8, 20), **place),
        "w": outside("w", (8, 8)), "bias": weight(8), "scale": np.float32(2), "target": ints(5, 8),
        "unused": weight(100),
    }  # fmt: skip
    workload = load(tmp_path, model(nodes, [value("ids", (5,), TensorProto.INT64)], ["logits", "again"], constants)).workload
    assert dict(workload.parameters) == {"embedding": 640, "w": 256, "bias": 32}
    assert workload.parameter_elements == 160 + 64 + 8


def test_weights_in_constant_nodes(tmp_path: Path) -> None:
    """A weight may stand in a Constant, and may be computed from constants: it is a parameter either way."""
    tensor = onnx.numpy_helper.from_array(weight(4, 3), "")
    nodes = [
        node("Constant", [], ["w"], value=tensor), node("Transpose", ["w"], ["wt"]), node("MatMul", ["x", "wt"], ["h"]),
        node("DequantizeLinear", ["stored", "scale"], ["v"]), node("MatMul", ["h", "v"], ["y"]),
        node("MatMul", ["x", "u"], ["z"]),
    ]  # fmt: skip
    constants = {"stored": np.ones((4, 5), np.int8), "scale": np.float32(0.1)}
    imported = load(tmp_path, model(nodes, {"x": (2, 3), "u": (3, 6)}, ["y", "z"], constants))
    assert [gemm.b.role for gemm in imported.workload.gemms] == [Role.PARAMETER, Role.PARAMETER, Role.ACTIVATION]
    assert imported.workload.parameters["stored"] == 20
    direct = load(tmp_path, model([nodes[0], node("MatMul", ["x", "w"], ["y"])], {"x": (2, 4)}, ["y"]))
    assert dict(direct.workload.parameters) == {"w": 48}


def test_names(tmp_path: Path) -> None:
    """A GEMM has its node's name; where that is empty or shared, its output's; all differ."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="same"), node("MatMul", ["a", "w"], ["b"], name="same"),
        node("MatMul", ["b", "w"], ["c"]), node("MatMul", ["c", "w"], ["d"], name="own"), node("MatMul", ["d", "w"], ["own"]),
        node("Relu", ["own"], ["y"], name="b"),
    ]  # fmt: skip
    imported = load(tmp_path, model(nodes, {"x": (2, 3)}, ["y"], {"w": weight(3, 3)}))
    names = [gemm.name for gemm in imported.workload.gemms]
    assert names == ["a", "b#1", "c", "own", "own#4"]
    assert [imported.nodes[name].output[0] for name in names] == ["a", "b", "c", "d", "own"]
    assert [gemm.output for gemm in imported.workload.gemms] == ["a", "b", "c", "d", "own"]


def test_tensors(tmp_path: Path) -> None:
    """The executor is told the shape and type of every tensor."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT16)]
    imported = load(tmp_path, model(nodes, {"x": ("n", 3)}, ["y"], {"w": weight(3, 4)}), dims={"n": 2})
    assert dict(imported.tensor_shapes) == {"x": (2, 3), "w": (3, 4), "h": (2, 4), "y": (2, 4)}
    assert imported.tensor_dtypes["y"] == DType.FLOAT16
    assert [(entry.name, entry.dtype, entry.shape) for entry in imported.workload.outputs] == [("y", "float16", (2, 4))]
    assert shapes_of(imported) == {"h": (1, 2, 3, 4)}


def test_a_model_without_products(tmp_path: Path) -> None:
    """No GEMM is an answer too."""
    workload = load(tmp_path, model([node("Relu", ["x"], ["y"], name="relu")], {"x": (2, 3)}, ["y"])).workload
    assert (workload.gemm_macs, workload.levels, [operator.level for operator in workload.server_operators]) == (0, (), [0])
