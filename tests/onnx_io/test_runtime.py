"""Segments of server nodes: cut out of the model, run on either runtime, and refused where no runtime knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.onnx_io import runtime
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.onnx_io.ort_session import Outlets
from cleave_plan.onnx_io.runtime import ServerRuntime
from cleave_plan.onnx_io.segments import run_order, segment_of
from cleave_plan.onnx_io.weights import Weights

BOTH = pytest.mark.parametrize("choice", ["onnxruntime", "reference"])
MODEL_PATH = Path("m.onnx")


@pytest.fixture(autouse=True)
def _need_onnxruntime(request: pytest.FixtureRequest) -> None:
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("choice") == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="this case runs on onnxruntime")


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model whose inputs and outputs nobody declares: a segment has its own."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(helper.make_graph(list(nodes), "g", [], [], tensors), opset_imports=imports, ir_version=8)


def run(
    model: onnx.ModelProto, choice: str, wanted: Sequence[str], **values: object
) -> tuple[dict[str, object], tuple[str, ...]]:
    """All nodes as one segment; outputs and notes."""
    server = ServerRuntime(model, Weights(model, MODEL_PATH), choice=choice)
    return server.run(segment_of(list(model.graph.node), wanted), values), server.notes


@BOTH
def test_weights_large_and_small_and_of_any_type(choice: str) -> None:
    """Handed over as initialisers or inputs, bfloat16 and text too."""
    table = np.random.default_rng(0).standard_normal((100, 20)).astype(np.float32)
    weights = {"table": table, "shift": np.array([1.5], ml_dtypes.bfloat16), "words": np.array(["a", "b"], object)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Cast", ["shift"], ["s"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["rows", "s"], ["y"]), helper.make_node("Identity", ["words"], ["w"]),
    ]  # fmt: skip
    results, _ = run(model_of(nodes, weights), choice, ["y", "w"], ids=np.array([3, 7]))
    np.testing.assert_allclose(results["y"], table[[3, 7]] + 1.5)
    assert np.asarray(results["w"]).tolist() == ["a", "b"]


@BOTH
def test_a_prepared_segment_serves_other_sizes_and_types(choice: str) -> None:
    """Another size uses the same session, another type gets its own."""
    model = model_of([helper.make_node("Add", ["x", "x"], ["y"])])
    server = ServerRuntime(model, Weights(model, MODEL_PATH), choice=choice)
    segment = segment_of(list(model.graph.node), ["y"])
    for x in (np.ones(3, np.float32), np.ones(5, np.float32), np.ones((2, 2), np.float32), np.ones(3, np.int64)):
        result = server.run(segment, {"x": x})["y"]
        assert result.dtype == x.dtype
        assert np.array_equal(result, 2 * x)
    assert len(server._prepared) == 3


@BOTH
def test_branches_read_tensors_and_weights_around_them(choice: str) -> None:
    """What a subgraph captures is an input of the segment."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x", "w"], [f"{name}_out"])], name, [], [helper.make_tensor_value_info(f"{name}_out", 1, [2])]
        )
        for name, op in (("then_branch", "Add"), ("else_branch", "Mul"))
    }
    model = model_of([helper.make_node("If", ["c"], ["y"], **branches)], {"w": np.array([10, 20], np.float32)})
    assert set(segment_of(list(model.graph.node), ["y"]).inputs) == {"c", "x", "w"}
    for condition, wanted in ((True, [11, 22]), (False, [10, 40])):
        results, _ = run(model, choice, ["y"], c=np.array(condition), x=np.array([1, 2], np.float32))
        assert np.asarray(results["y"]).tolist() == wanted


@BOTH
def test_sequences_pass_between_segments(choice: str) -> None:
    """A list goes in and comes out."""
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    one, two = np.ones(2, np.float32), np.zeros(1, np.float32)
    results, _ = run(model_of(nodes), choice, ["t", "y"], s=[one], x=two)
    assert [array.tolist() for array in results["t"]] == [[1, 1], [0]]
    assert results["y"].tolist() == [1, 1, 0]


def test_only_the_refused_node_falls_to_the_reference() -> None:
    """A legal form that onnxruntime lacks (dilations with auto_pad) runs on onnx.reference, and a note says so."""
    pytest.importorskip("onnxruntime", reason="this test is about what onnxruntime refuses")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("Conv", ["r", "w"], ["c"], name="odd", dilations=[2, 2], auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        helper.make_node("Neg", ["c"], ["y"], name="last"),
    ]
    model = model_of(nodes, {"w": np.ones((1, 1, 3, 3), np.float32)})
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    results, notes = run(model, "auto", ["y"], x=x)
    padded = np.pad(x[0, 0], 2)
    wanted = -sum(padded[i : i + 5, j : j + 5] for i in (0, 2, 4) for j in (0, 2, 4))
    assert np.array_equal(results["y"][0, 0], wanted)
    assert len(notes) == 1
    assert notes[0].startswith("node 'odd' (Conv) ran on onnx.reference")
    assert "onnxruntime" in notes[0]


def test_bfloat16_falls_to_the_reference_with_a_note() -> None:
    """onnxruntime does not exchange it with NumPy."""
    pytest.importorskip("onnxruntime", reason="this test is about what onnxruntime refuses")
    x = np.array([1, 2], ml_dtypes.bfloat16)
    results, notes = run(model_of([helper.make_node("Add", ["x", "x"], ["y"], name="a")]), "auto", ["y"], x=x)
    assert results["y"].dtype == x.dtype
    assert results["y"].astype(float).tolist() == [2, 4]
    assert "bfloat16 cannot be handed to onnxruntime" in notes[0]


@BOTH
def test_a_node_that_cannot_run_names_itself_and_the_reasons(choice: str) -> None:
    """An index beyond the table: no runtime invents a value."""
    model = model_of([helper.make_node("Gather", ["t", "i"], ["y"], name="lookup")], {"t": np.zeros(3, np.float32)})
    with pytest.raises(ExecutionError, match=r"node 'lookup' \(Gather\) cannot be run: onnx.* says: "):
        run(model, choice, ["y"], i=np.array([7]))


def test_operators_of_other_domains_need_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it they are refused by name, with the command that installs it, also inside branches; before anything runs."""
    inner = helper.make_graph(
        [helper.make_node("FastGelu", ["x"], ["f"], domain="com.microsoft")],
        "b",
        [],
        [helper.make_tensor_value_info("f", 1, [2])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Thing", ["y"], ["z"], domain="my.ops"),
    ]
    model = model_of(nodes, domains=["com.microsoft", "my.ops"])
    monkeypatch.setattr(runtime, "onnxruntime_installed", lambda: False)
    with pytest.raises(InputFileError, match=r"com\.microsoft::FastGelu, my\.ops::Thing.*pip install 'cleave-plan\[ort\]'"):
        ServerRuntime(model, Weights(model, MODEL_PATH))
    with pytest.raises(UsageError, match="onnxruntime is asked for and not installed"):
        ServerRuntime(model, Weights(model, MODEL_PATH), choice="onnxruntime")
    monkeypatch.setattr(runtime, "onnxruntime_installed", lambda: True)
    with pytest.raises(InputFileError, match=r"let onnxruntime run the server's nodes"):
        ServerRuntime(model, Weights(model, MODEL_PATH), choice="reference")
    with pytest.raises(UsageError, match="there is no runtime 'magic'; expected one of auto, onnxruntime, reference"):
        ServerRuntime(model, Weights(model, MODEL_PATH), choice="magic")


def test_an_operator_that_no_runtime_knows() -> None:
    """The error names it."""
    pytest.importorskip("onnxruntime", reason="without it the operator is refused earlier")
    model = model_of([helper.make_node("Thing", ["x"], ["y"], name="odd", domain="my.ops")], domains=["my.ops"])
    with pytest.raises(ExecutionError, match=r"node 'odd' \(Thing\) cannot be run"):
        run(model, "auto", ["y"], x=np.ones(1, np.float32))


def test_the_standard_domain_has_two_names() -> None:
    """A node of "ai.onnx" is a standard one, and a domain without a version is taken as the first."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")])
    results, _ = run(model, "reference", ["y"], x=np.array([-1, 1], np.float32))
    assert results["y"].tolist() == [0, 1]


def test_segments_hold_each_server_node_once_and_free_tensors_early(tmp_path: Path) -> None:
    """relu | a | add | b, c | mul: outputs are what later nodes read, and tensors die after their last reader."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["a"]),
        helper.make_node("Constant", [], ["k"], value_float=2.0), helper.make_node("Add", ["a", "r"], ["s"]),
        helper.make_node("Mul", ["s", "k"], ["s2"]), helper.make_node("MatMul", ["s2", "w"], ["b"]),
        helper.make_node("MatMul", ["a", "w"], ["c"]), helper.make_node("Mul", ["b", "c"], ["y"]),
        helper.make_node("Neg", ["y"], ["unused"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("y", "s")],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    imported = load_model(tmp_path / "m.onnx")
    levels = {gemm.output: gemm.level for gemm in imported.workload.gemms}
    order = run_order(imported.model.graph, imported.depth, levels, len(imported.workload.levels))
    assert [[node.op_type for node in segment.nodes] for segment in order.segments] == [["Relu"], ["Add", "Mul"], ["Mul", "Neg"]]
    assert [segment.inputs for segment in order.segments] == [("x",), ("a", "r", "k"), ("b", "c")]
    assert [segment.outputs for segment in order.segments] == [("r",), ("s", "s2"), ("y",)]
    assert [set(dead) for dead in order.dead_after] == [{"x"}, {"a", "r", "k", "s2", "w"}, {"b", "c"}]


def test_a_segment_splits_into_nodes_that_keep_what_is_read() -> None:
    """Node by node, with the tensors that later nodes and the outside read."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Split", ["a"], ["b", "c"], num_outputs=2),
        helper.make_node("Neg", ["b"], ["y"]),
    ]  # fmt: skip
    parts = segment_of(nodes, ["y", "c"]).split()
    assert [(part.inputs, part.outputs) for part in parts] == [(("x",), ("a",)), (("a",), ("b", "c")), (("b",), ("y",))]


@pytest.mark.parametrize("inside", [False, True], ids=["node", "branch"])
def test_sums_at_places_that_repeat(inside: bool) -> None:
    """ScatterND with a reduction is right whatever threads a segment may have: onnxruntime's own shares rows without a lock."""
    pytest.importorskip("onnxruntime", reason="the race is onnxruntime's")
    rng = np.random.default_rng(4)
    places, rows = rng.integers(0, 8, (1024, 1)), rng.standard_normal((1024, 512)).astype(np.float32)
    node = helper.make_node("ScatterND", ["x", "places", "rows"], ["y"], reduction="add")
    if inside:
        branch = helper.make_graph([node], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 512])])
        node = helper.make_node("If", ["choice"], ["y"], then_branch=branch, else_branch=branch)
    model = helper.make_model(
        helper.make_graph([node], "g", [], []), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )  # fmt: skip
    wanted = np.zeros((8, 512))
    np.add.at(wanted, places[:, 0], rows)
    outlets = Outlets(shapes={"y": (1 << 20,)}, threads=4)
    server = ServerRuntime(model, Weights(model, MODEL_PATH), choice="onnxruntime", outlets=outlets)
    feeds = {"x": np.zeros((8, 512), np.float32), "places": places, "rows": rows, "choice": np.array(True)}
    segment = segment_of(list(model.graph.node), ["y"])
    for _ in range(5):
        found = server.run(segment, {name: feeds[name] for name in segment.inputs})["y"]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
