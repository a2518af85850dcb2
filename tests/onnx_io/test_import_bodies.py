"""Matrix work inside If, Loop and Scan: counted with how often it runs, against a run that counts; or listed with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cleave_plan.errors import UsageError
from cleave_plan.workload.graph import Workload

from import_cases import load, model, value, weight  # isort: skip

node = helper.make_node
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def loop_body(
    nodes: list[onnx.NodeProto], states: list[str], collected: tuple[str, ...] = (), go: str = "go", suffix: str = ""
) -> onnx.GraphProto:
    """A Loop's body that reads ``i``, ``go`` and each state, and gives ``go_next`` and each ``STATE_next``."""
    nodes = [*nodes, node("Identity", [go], [f"go_next{suffix}"])]
    inputs = [value(f"i{suffix}", (), INT64), value(f"go{suffix}", (), BOOL), *(value(name, None) for name in states)]
    outputs = [value(f"go_next{suffix}", (), BOOL), *(value(f"{name}_next", None) for name in states)]
    return helper.make_graph(nodes, f"body{suffix}", inputs, [*outputs, *(value(name, None) for name in collected)])


def counts(workload: Workload) -> dict[str, tuple[int, ...]]:
    """GEMM name -> (repeats, batch, M, K, N)."""
    return {gemm.name: (gemm.repeats, *gemm.shape) for gemm in workload.gemms}


def square_loop(**attributes: Any) -> list[onnx.NodeProto]:
    """A Loop that multiplies its state by ``w`` in every iteration, and a product behind it."""
    body = loop_body([node("MatMul", ["s", "w"], ["s_next"], name="step")], ["s"])
    return [
        node("Loop", ["n", "", "x"], ["z"], name="loop", body=body, **attributes),
        node("MatMul", ["z", "w"], ["y"], name="last"),
    ]


def test_a_loop_with_a_constant_limit(tmp_path: Path) -> None:
    """The body's product repeats, reads a captured weight, is pinned to the server, and comes a level before what reads it."""
    imported = load(tmp_path, model(square_loop(), {"x": (2, 4)}, ["y"], {"w": weight(4, 4), "n": np.int64(5)}))
    assert counts(imported.workload) == {"loop/step": (5, 1, 2, 4, 4), "last": (1, 1, 2, 4, 4)}
    step, last = imported.workload.gemms
    assert (step.node, step.pinned, step.b.tensor, step.b.role.value) == ("loop/step", "inside Loop loop", "w", "parameter")
    assert (step.level, last.level) == (0, 1)
    assert imported.workload.gemm_macs == 6 * 32
    assert [operator.name for operator in imported.workload.server_operators] == ["loop"]
    assert not imported.workload.unrecognised
    assert imported.nodes["loop/step"].name == "loop"


def test_a_loop_that_runs_never(tmp_path: Path) -> None:
    """No iteration, no work; the state passes through."""
    workload = load(tmp_path, model(square_loop(), {"x": (2, 4)}, ["y"], {"w": weight(4, 4), "n": np.int64(0)})).workload
    assert counts(workload) == {"last": (1, 1, 2, 4, 4)}
    assert not workload.unknown


def test_a_limit_that_is_an_input(tmp_path: Path) -> None:
    """The product is listed as unknown with the option that binds it, and bound it is counted."""
    proto = model(square_loop(), [value("x", (2, 4)), value("n", (), INT64)], ["y"], {"w": weight(4, 4)})
    workload = load(tmp_path, proto).workload
    assert counts(workload) == {"last": (1, 1, 2, 4, 4)}
    assert [(entry.name, entry.op) for entry in workload.unknown] == [("loop/step", "MatMul")]
    assert "limit is not known before the run; --trip loop=N" in workload.unknown[0].reason
    bound = load(tmp_path, proto, trips={"loop": 7}).workload
    assert counts(bound)["loop/step"] == (7, 1, 2, 4, 4)
    assert dict(bound.trips) == {"loop": 7}
    assert not bound.unknown


def test_trip_counts_that_cannot_be_meant(tmp_path: Path) -> None:
    """Names that are no Loop, and numbers that the file contradicts, are errors of usage that say what exists."""
    proto = model(square_loop(), {"x": (2, 4)}, ["y"], {"w": weight(4, 4), "n": np.int64(5)})
    for trips, fragment in (
        ({"lop": 3}, "no Loop 'lop'; expected one of loop"), ({"loop": -1}, "bound to -1"), ({"loop": 6}, "expected 5"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as error:
            load(tmp_path, proto, trips=trips)
        assert fragment in str(error.value)
    assert load(tmp_path, proto, trips={"loop": 5}).workload.gemm_macs == 6 * 32
    plain = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 4)}, ["y"], {"w": weight(4, 4)})
    with pytest.raises(UsageError, match="this model has no Loop"):
        load(tmp_path, plain, trips={"loop": 1})


def test_a_condition_that_the_body_computes(tmp_path: Path) -> None:
    """A counter that is compared with a constant decides the trip count; one that depends on data does not."""
    counting = loop_body(
        [
            node("MatMul", ["s", "w"], ["s_next"], name="step"), node("Add", ["c", "one"], ["c_next"]),
            node("Less", ["c_next", "most"], ["on"]),
        ],
        ["s", "c"], go="on",
    )  # fmt: skip
    nodes = [node("Loop", ["", "yes", "x", "zero"], ["z", "count"], name="while", body=counting)]
    constants = {
        "w": weight(4, 4), "one": np.int64(3), "zero": np.int64(0), "most": np.int64(10), "yes": np.array(True)
    }  # fmt: skip
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["z"], constants)).workload
    assert counts(workload) == {"while/step": (4, 1, 2, 4, 4)}  # 3, 6, 9, 12
    searching = loop_body(
        [node("MatMul", ["s", "w"], ["s_next"], name="step"), node("ReduceMax", ["s_next"], ["top"], keepdims=0),
         node("Less", ["top", "edge"], ["on"])], ["s"], go="on",
    )  # fmt: skip
    nodes = [node("Loop", ["n", "yes", "x"], ["z"], name="until", body=searching)]
    constants |= {"edge": np.float32(9), "n": np.int64(50)}
    proto = model(nodes, {"x": (2, 4)}, ["z"], constants)
    (unknown,) = load(tmp_path, proto).workload.unknown
    assert "its body decides when it ends; --trip until=N" in unknown.reason
    assert counts(load(tmp_path, proto, trips={"until": 20}).workload) == {"until/step": (20, 1, 2, 4, 4)}
    with pytest.raises(UsageError, match="at most 50"):
        load(tmp_path, proto, trips={"until": 51})


def test_shapes_that_change_from_one_iteration_to_the_next(tmp_path: Path) -> None:
    """A tensor that grows is multiplied at each of its sizes: a cache of keys, as decoders have it."""
    body = loop_body(
        [node("Concat", ["s", "x"], ["s_next"], axis=0), node("MatMul", ["s_next", "w"], ["p"], name="step")], ["s"], ("p2",)
    )
    body.node.append(node("ReduceSum", ["p"], ["p2"], keepdims=0))
    nodes = [node("Loop", ["n", "", "x"], ["z", "rows"], name="grow", body=body)]
    proto = model(nodes, {"x": (2, 4)}, ["z", "rows"], {"w": weight(4, 3), "n": np.int64(3)})
    imported = load(tmp_path, proto)
    assert counts(imported.workload) == {
        "grow/step": (1, 1, 4, 4, 3), "grow/step#2": (1, 1, 6, 4, 3), "grow/step#3": (1, 1, 8, 4, 3),
    }  # fmt: skip
    assert (imported.tensor_shapes["z"], imported.tensor_shapes["rows"]) == ((8, 4), (3,))


def test_rows_gathered_step_by_step(tmp_path: Path) -> None:
    """A state that starts empty and gains two rows in each of five iterations ends with ten."""
    body = loop_body([node("MatMul", ["x", "w"], ["p"], name="step"), node("Concat", ["s", "p"], ["s_next"], axis=0)], ["s"])
    nodes = [node("Loop", ["n", "", "none"], ["z"], name="loop", body=body)]
    constants = {"w": weight(4, 4), "n": np.int64(5), "none": np.zeros((0, 4), np.float32)}
    imported = load(tmp_path, model(nodes, {"x": (2, 4)}, ["z"], constants))
    assert imported.workload.gemm_macs == 5 * 2 * 4 * 4
    assert imported.tensor_shapes["z"] == (10, 4)


def test_loops_in_loops(tmp_path: Path) -> None:
    """Trip counts multiply, and the inner loop is bound by its path."""
    inner = loop_body([node("MatMul", ["t", "w"], ["t_next"], name="step")], ["t"], go="go_in", suffix="_in")
    outer = loop_body([node("Loop", ["m", "", "s"], ["s_next"], name="inner", body=inner)], ["s"])
    nodes = [node("Loop", ["n", "", "x"], ["z"], name="outer", body=outer)]
    constants = {"w": weight(4, 4), "n": np.int64(3), "m": np.int64(5)}
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["z"], constants)).workload
    assert counts(workload) == {"outer/inner/step": (15, 1, 2, 4, 4)}
    del constants["m"]
    proto = model(nodes, [value("x", (2, 4)), value("m", (), INT64)], ["z"], constants)
    assert [entry.name for entry in load(tmp_path, proto).workload.unknown] == ["outer/inner/step"]
    assert counts(load(tmp_path, proto, trips={"outer/inner": 2}).workload) == {"outer/inner/step": (6, 1, 2, 4, 4)}
    with pytest.raises(UsageError, match="expected one of outer, outer/inner"):
        load(tmp_path, proto, trips={"inner": 2})


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch of an If that gives the tensor ``name``."""
    return helper.make_graph(list(nodes), name, [], [value(name, None)])


def test_branches(tmp_path: Path) -> None:
    """A constant condition chooses; otherwise the dearer branch is assumed. Both are said."""
    small = branch("small", node("MatMul", ["x", "w"], ["small"], name="once"))
    large = branch(
        "large", node("MatMul", ["x", "w"], ["half"], name="one"), node("MatMul", ["half", "w"], ["large"], name="two")
    )
    nodes = [node("If", ["c"], ["y"], name="if", then_branch=small, else_branch=large)]
    for condition, names, branch_name in ((True, ["if/once"], "then_branch"), (False, ["if/one", "if/two"], "else_branch")):
        workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["y"], {"w": weight(4, 4), "c": np.array(condition)})).workload
        assert [gemm.name for gemm in workload.gemms] == names
        assert any(f"If 'if': the condition is constant, {branch_name} is the one that runs" in note for note in workload.notes)
    workload = load(tmp_path, model(nodes, [value("x", (2, 4)), value("c", (), BOOL)], ["y"], {"w": weight(4, 4)})).workload
    assert [gemm.name for gemm in workload.gemms] == ["if/one", "if/two"]
    assert any("the data decides which branch runs; else_branch is assumed" in note for note in workload.notes)


def test_a_branch_of_which_nothing_is_known_is_listed(tmp_path: Path) -> None:
    """Assuming the dearer branch does not hide what the other one may cost."""
    known = branch("known", node("MatMul", ["x", "w"], ["known"], name="product"))
    vague = branch(
        "vague", node("Mystery", ["x"], ["m"], domain="some.where"), node("MatMul", ["m", "w"], ["vague"], name="behind")
    )
    nodes = [node("If", ["c"], ["y"], name="if", then_branch=known, else_branch=vague)]
    inputs = [value("x", (2, 4)), value("c", (), BOOL)]
    workload = load(tmp_path, model(nodes, inputs, ["y"], {"w": weight(4, 4)}, domains=["some.where"])).workload
    assert [gemm.name for gemm in workload.gemms] == ["if/product"]
    assert {(entry.name, entry.op) for entry in workload.unknown} == {("if/m", "Mystery"), ("if/behind", "MatMul")}


def scan_body(element: tuple[int, ...]) -> onnx.GraphProto:
    """state + element @ w for each element, which is collected too."""
    nodes = [
        node("MatMul", ["e", "w"], ["p"], name="step"),
        node("Add", ["s", "p"], ["s_next"]),
        node("Identity", ["s_next"], ["row"]),
    ]
    inputs = [value("s", (1, 3)), value("e", element)]
    return helper.make_graph(nodes, "body", inputs, [value("s_next", (1, 3)), value("row", None)])


@pytest.mark.parametrize(("axis", "shape"), [(0, (12, 1, 4)), (1, (1, 12, 4)), (-1, (1, 4, 12))])
def test_scan(tmp_path: Path, axis: int, shape: tuple[int, ...]) -> None:
    """One run for each slice of the axis; outputs have the shapes that onnxruntime gives."""
    ort = pytest.importorskip("onnxruntime")
    nodes = [
        node("Scan", ["s0", "x"], ["end", "rows"], name="scan", body=scan_body((1, 4)), num_scan_inputs=1, scan_input_axes=[axis],
             scan_output_axes=[1]),
    ]  # fmt: skip
    outputs = [value("end", None), value("rows", None)]
    proto = model(nodes, {"x": shape}, outputs, {"w": weight(4, 3), "s0": np.zeros((1, 3), np.float32)})
    imported = load(tmp_path, proto)
    assert counts(imported.workload) == {"scan/step": (12, 1, 1, 4, 3)}
    results = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": np.ones(shape, np.float32)})
    assert [imported.tensor_shapes[name] for name in ("end", "rows")] == [result.shape for result in results]


def test_a_short_scan_is_written_out(tmp_path: Path) -> None:
    """Each step has a product of its own, which devices may share; together they are those of the node in the body."""
    nodes = [node("Scan", ["s0", "x"], ["end", "rows"], name="scan", body=scan_body((1, 4)), num_scan_inputs=1)]
    constants = {"w": weight(4, 3), "s0": np.zeros((1, 3), np.float32)}
    workload = load(tmp_path, model(nodes, {"x": (3, 1, 4)}, ["end", "rows"], constants)).workload
    assert counts(workload) == {f"scan/{step}/step": (1, 1, 1, 4, 3) for step in range(3)}
    assert {(gemm.node, gemm.op, bool(gemm.pinned)) for gemm in workload.gemms} == {("scan/step", "MatMul", False)}


def test_scan_of_the_first_kind(tmp_path: Path) -> None:
    """Before operator set 9 every tensor has a batch axis, and the body runs for each item."""
    nodes = [node("Scan", ["", "s0", "x"], ["end", "rows"], name="scan", body=scan_body((1, 4)), num_scan_inputs=1)]
    constants = {"w": weight(4, 3), "s0": np.zeros((2, 1, 3), np.float32)}
    imported = load(tmp_path, model(nodes, {"x": (2, 6, 1, 4)}, ["end", "rows"], constants, opset=8))
    assert counts(imported.workload) == {"scan/step": (12, 1, 1, 4, 3)}
    assert [imported.tensor_shapes[name] for name in ("end", "rows")] == [(2, 1, 3), (2, 6, 1, 3)]


def test_what_a_sequence_map_runs_is_listed(tmp_path: Path) -> None:
    """How long a sequence is, nobody knows before the run."""
    body = helper.make_graph([node("MatMul", ["e", "w"], ["p"], name="step")], "body", [value("e", (2, 4))], [value("p", (2, 3))])
    nodes = [node("SequenceConstruct", ["x", "x"], ["q"]), node("SequenceMap", ["q"], ["r"], name="map", body=body)]
    outputs = [helper.make_tensor_sequence_value_info("r", TensorProto.FLOAT, None)]
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, outputs, {"w": weight(4, 3)})).workload
    assert [entry.name for entry in workload.unknown] == ["map/step"]
    assert workload.gemm_macs == 0


def test_a_body_with_its_own_weights(tmp_path: Path) -> None:
    """Initialisers of a body are parameters, named by the path; what the loop carries is not."""
    body = loop_body([node("MatMul", ["s", "own"], ["s_next"], name="step")], ["s"])
    body.initializer.append(onnx.numpy_helper.from_array(weight(4, 4), "own"))
    nodes = [node("Loop", ["n", "", "x"], ["z"], name="loop", body=body)]
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["z"], {"n": np.int64(2)})).workload
    (gemm,) = workload.gemms
    assert (gemm.b.tensor, gemm.b.role.value, gemm.a.role.value) == ("loop/own", "parameter", "activation")
    assert workload.parameters == {"loop/own": 64}


def test_a_recurrent_layer_in_a_loop(tmp_path: Path) -> None:
    """Both of its products repeat with the loop, the recurrent one also with its own steps."""
    body = loop_body(
        [node("LSTM", ["x", "w", "r"], ["", "h"], name="lstm", hidden_size=3), node("Add", ["s", "h"], ["s_next"])], ["s"]
    )
    nodes = [node("Loop", ["n", "", "s0"], ["z"], name="loop", body=body)]
    constants = {"w": weight(1, 12, 4), "r": weight(1, 12, 3), "s0": weight(1, 2, 3), "n": np.int64(5)}
    workload = load(tmp_path, model(nodes, {"x": (7, 2, 4)}, ["z"], constants)).workload
    assert counts(workload) == {"loop/lstm/input": (5, 1, 14, 4, 12), "loop/lstm/recurrent": (35, 1, 2, 3, 12)}
    assert all(gemm.pinned for gemm in workload.gemms)


def test_a_loop_too_long_to_follow(tmp_path: Path) -> None:
    """A state that grows for a million iterations is not walked a million times; its product is listed."""
    body = loop_body(
        [node("Concat", ["s", "x"], ["s_next"], axis=0), node("MatMul", ["s_next", "w"], ["p"], name="step")], ["s"], ("p",)
    )
    nodes = [node("Loop", ["n", "", "x"], ["z", "rows"], name="grow", body=body)]
    workload = load(tmp_path, model(nodes, {"x": (2, 4)}, ["z"], {"w": weight(4, 3), "n": np.int64(10**6)})).workload
    assert [(entry.name, entry.reason) for entry in workload.unknown] == [
        ("grow/step", "its size inside Loop 'grow' is not known")
    ]
