"""Gradient files of PyTorch's exports beside PyTorch's own gradients, and what is said of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from gradient_cases import Array, evaluate
from onnx import TensorProto, helper, numpy_helper
from torch_values import Values, load_values

from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec
from cleave_plan.onnx_io.gradient_names import gradient_names
from models.registry import build

FIXTURES = Path(__file__).parent.parent / "fixtures" / "torch"
FILES = [f"{model}-{exporter}" for model in ("mlp", "encoder") for exporter in ("legacy", "dynamo")]


def differentiate(path: Path, kind: str, **options: object) -> GradientModel:
    """The gradient file of a model."""
    return gradient_model(path, LossSpec(kind=kind), GradientOptions(**options))  # type: ignore[arg-type]


def run_ort(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """All outputs, by onnxruntime."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


def worst(made: GradientModel, results: dict[str, Array], truth: Values) -> float:
    """The largest error of a gradient, relative to the larger of its norm and 0.001 of the whole gradient's."""
    whole = np.sqrt(sum(float((gradient**2).sum()) for gradient in truth.gradients.values()))
    errors = []
    for tensor, parameter, turned in truth.tensors:
        found = results[made.names.gradients[tensor]]
        expected = truth.gradients[parameter]
        apart = np.linalg.norm((found.T if turned else found) - expected)
        errors.append(apart / max(float(np.linalg.norm(expected)), 1e-3 * float(whole)))
    return float(max(errors))


@pytest.mark.parametrize("file", FILES)
def test_gradients_are_pytorch_s(file: str) -> None:
    """Every parameter of both exporters' files; loss and gradients in both runtimes."""
    truth = load_values(FIXTURES, file)
    made = differentiate(FIXTURES / f"{file}.onnx", "mse" if file.startswith("mlp") else "cross-entropy")
    onnx.checker.check_model(made.model, full_check=True)
    assert set(made.names.gradients) == {tensor for tensor, _, _ in truth.tensors}
    feeds = {**truth.inputs, made.names.target: truth.target}
    reference, ort = evaluate(made.model, feeds), run_ort(made.model, feeds)
    for results in (reference, ort):
        assert results[made.names.loss] == pytest.approx(truth.loss, rel=1e-5)
        assert worst(made, results, truth) < 1e-4
    for name in made.names.gradients.values():
        apart = np.linalg.norm(reference[name] - ort[name])
        assert apart <= 1e-5 * max(np.linalg.norm(reference[name]), 1e-3)


def two_layers(folder: Path, op: str = "Relu", domain: str = "", **extra: np.ndarray) -> Path:
    """x @ w1, an operator, @ w2; the second layer's weight is also read by an argmax that nobody uses."""
    rng = np.random.default_rng(1)
    weights = {"w1": rng.standard_normal((4, 5)), "w2": rng.standard_normal((5, 3)), "spare": rng.standard_normal(3), **extra}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node(op, ["h"], ["a"], name="between", domain=domain),
        helper.make_node("MatMul", ["a", "w2"], ["y"], name="second"),
        helper.make_node("Add", ["y", "spare"], ["unused"], name="aside"),
    ]
    graph = helper.make_graph(
        nodes, "two", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("y", "unused")],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, ["batch", 5])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    path = folder / "two.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString())
    return path


def test_names_are_stated(tmp_path: Path) -> None:
    """The file says what its tensors are called; parameters are inputs with a value, so that a caller may feed others."""
    made = differentiate(two_layers(tmp_path), "mse")
    made.save(tmp_path / "step.onnx")
    model = onnx.load(tmp_path / "step.onnx")
    names = gradient_names(model)
    assert names == made.names
    assert names.gradients == {"w1": "grad:w1", "w2": "grad:w2"}
    assert [value.name for value in model.graph.output] == ["loss", "grad:w1", "grad:w2"]
    assert [value.name for value in model.graph.input] == ["x", "target", "w1", "w2"]
    assert made.inputs == ("x", "target")
    assert gradient_names(onnx.load(tmp_path / "two.onnx")) is None


def test_other_weights_can_be_fed(tmp_path: Path) -> None:
    """With w2 = 0 nothing reaches w1, in either runtime."""
    made = differentiate(two_layers(tmp_path), "mse")
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.standard_normal((2, 4)).astype(np.float32), "target": rng.standard_normal((2, 3)).astype(np.float32),
        "w2": np.zeros((5, 3), np.float32),
    }  # fmt: skip
    for results in (evaluate(made.model, feeds), run_ort(made.model, feeds)):
        assert not results["grad:w1"].any()
        assert results["grad:w2"].any()


def test_detached_parameters_are_said(tmp_path: Path) -> None:
    """A weight beside the way to the loss has no gradient, and the file's notes name it."""
    made = differentiate(two_layers(tmp_path), "mse")
    assert made.constants == {"spare": "the loss does not depend on it"}
    assert any("spare" in note for note in made.notes)


def test_steps_carry_no_gradient(tmp_path: Path) -> None:
    """What lies before a rounding is detached; if that is everything asked for, there is no gradient file."""
    made = differentiate(two_layers(tmp_path, op="Round"), "mse")
    assert list(made.names.gradients) == ["w2"]
    assert made.constants["w1"] == "the loss does not depend on it"
    with pytest.raises(InputFileError, match="no parameter has a gradient"):
        differentiate(two_layers(tmp_path, op="Round"), "mse", only=["w1"])


def test_operator_without_a_rule(tmp_path: Path) -> None:
    """Exit code 4 with the operator, the node and what depends on it; frozen, it is no obstacle."""
    path = two_layers(tmp_path, op="Strange", domain="somewhere")
    with pytest.raises(InputFileError, match=r"'between' \(Strange\).*no gradient rule.*gradients of w1 depend") as caught:
        differentiate(path, "mse")
    assert caught.value.exit_code == 4
    assert list(differentiate(path, "mse", freeze=["w1"]).names.gradients) == ["w2"]


def test_what_a_body_reads_depends_on_it_too(tmp_path: Path) -> None:
    """An If has no rule; the parameter that only its branches read is named."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["w"], [f"{op}-w"])], op, [], [helper.make_tensor_value_info(f"{op}-w", TensorProto.FLOAT, [3])]
        )
        for op in ("Neg", "Exp")
    ]
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="branch", then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("total", TensorProto.FLOAT, [])], [numpy_helper.from_array(np.ones(3, np.float32), "w")],
    )  # fmt: skip
    path = tmp_path / "if.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    with pytest.raises(InputFileError, match=r"'branch' \(If\).*the gradients of w depend on it"):
        differentiate(path, "output:total")


def test_choices_of_parameters(tmp_path: Path) -> None:
    """Patterns take or freeze by name, inputs too; a pattern without a match is refused."""
    path = two_layers(tmp_path)
    assert list(differentiate(path, "mse", only=["w*"], freeze=["w1"]).names.gradients) == ["w2"]
    assert list(differentiate(path, "mse", only=["x"]).names.gradients) == ["x"]
    with pytest.raises(UsageError, match="matches 'v'"):
        differentiate(path, "mse", freeze=["v"])


def test_tied_weights_add_up(tmp_path: Path) -> None:
    """A matrix that is read twice gets the sum: of y = (x w) w, by the product rule with NumPy."""
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "tied", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2, 3])],
        [helper.make_tensor_value_info("s", TensorProto.DOUBLE, [])], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    path = tmp_path / "tied.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    made = differentiate(path, "output:s")
    ones = np.ones((2, 3))
    np.testing.assert_allclose(evaluate(made.model, {"x": x})["grad:w"], x.T @ (ones @ w.T) + (x @ w).T @ ones, rtol=1e-12)


def embedded(folder: Path, head: Array, table: Array) -> Path:
    """Rows of a table, multiplied by a head."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["y"])]
    graph = helper.make_graph(
        nodes, "embedded", [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [3, 5])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(head, "head")],
    )  # fmt: skip
    path = folder / "embedded.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    return path


def test_a_head_that_an_exporter_untied(tmp_path: Path) -> None:
    """A copy of the table, transposed, is trained with it (and said); one that differs in one element is not."""
    table = np.random.default_rng(6).standard_normal((5, 4))
    apart = table.T.copy()
    apart[0, 0] += 1e-9
    feeds = {"ids": np.array([1, 4, 1]), "target": np.array([0, 2, 3])}
    untied = differentiate(embedded(tmp_path, apart, table), "cross-entropy")
    assert list(untied.names.gradients) == ["table", "head"]
    parts = evaluate(untied.model, feeds)
    tied = differentiate(embedded(tmp_path, table.T.copy(), table), "cross-entropy")
    assert list(tied.names.gradients) == ["table"]
    assert any("trained as one" in note for note in tied.notes)
    found = evaluate(tied.model, feeds)["grad:table"]
    np.testing.assert_allclose(found, parts["grad:table"] + parts["grad:head"].T, atol=1e-8)


@pytest.mark.parametrize("op", ["Gather", "GatherND"])
def test_rows_that_many_threads_add(tmp_path: Path, op: str) -> None:
    """The gradient file is right in onnxruntime with threads, though tokens repeat: row i of the table gets the sum over i.

    A file that adds rows by ScatterND is not: onnxruntime then loses sums, here in most runs.
    """
    ort = pytest.importorskip("onnxruntime", reason="the race is onnxruntime's")
    rng = np.random.default_rng(5)
    rows, weights = rng.integers(0, 8, 1024), rng.standard_normal((1024, 512)).astype(np.float32)
    ids = rows if op == "Gather" else rows[:, None]
    nodes = [
        helper.make_node(op, ["table", "ids"], ["h"]), helper.make_node("Mul", ["h", "weights"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["s"], keepdims=0),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "rows", [helper.make_tensor_value_info("ids", TensorProto.INT64, ids.shape)],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.zeros((8, 512), np.float32), "table"), numpy_helper.from_array(weights, "weights")],
    )  # fmt: skip
    path = tmp_path / "rows.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    made = differentiate(path, "output:s", only=["table"])
    wanted = np.zeros((8, 512))
    np.add.at(wanted, rows, weights)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 4
    session = ort.InferenceSession(made.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for _ in range(5):
        np.testing.assert_allclose(session.run(["grad:table"], {"ids": ids})[0], wanted, atol=1e-4)


def test_losses_that_do_not_fit(tmp_path: Path) -> None:
    """Unknown kinds, outputs and axes; an output that is no scalar; a target that is a tensor of the model."""
    path = two_layers(tmp_path)
    for spec, text in (
        (LossSpec(kind="hinge"), "no loss 'hinge'"), (LossSpec(kind="output:z"), "no output 'z'"),
        (LossSpec(kind="output:y"), "not a single number"), (LossSpec(output="z"), "no output 'z'"),
        (LossSpec(class_axis=2), "has 2 axes"), (LossSpec(target="h"), "tensor of the model already"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            gradient_model(path, spec, GradientOptions())


def softmax(x: Array) -> Array:
    """Along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(tmp_path: Path, smoothing: float) -> None:
    """Ignored labels count nowhere, smoothing spreads a share; by NumPy. With nothing to count, loss and gradient are 0."""
    spec = LossSpec(label_smoothing=smoothing, ignore_index=-7)
    made = gradient_model(two_layers(tmp_path), spec, GradientOptions(keep_outputs=True, only=["w2"]))
    x = np.random.default_rng(4).standard_normal((4, 4)).astype(np.float32)
    labels = np.array([2, -7, 0, 1])
    results = evaluate(made.model, {"x": x, "target": labels})
    p = softmax(results["y"].astype(np.float64))
    q = np.where(np.arange(3) == labels[:, None], 1 - smoothing, 0) + smoothing / 3
    counted = (labels != -7)[:, None] / 3
    assert results["loss"] == pytest.approx(-(q * np.log(p) * counted).sum(), rel=1e-5)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "two.onnx").graph.initializer}
    hidden = np.maximum(x @ weights["w1"], 0)
    np.testing.assert_allclose(results["grad:w2"], hidden.T @ ((p - q) * counted), rtol=1e-4, atol=1e-6)
    nothing = evaluate(made.model, {"x": x, "target": np.full(4, -7)})
    assert nothing["loss"] == 0
    assert not nothing["grad:w2"].any()


def test_weightless_models(tmp_path: Path) -> None:
    """A graph whose weights are nowhere; that they are missing beside the new file is said."""
    path = tmp_path / "opt.onnx"
    path.write_bytes(build("opt-125m").SerializeToString())
    made = differentiate(path, "cross-entropy", dims={"batch": 2, "seq": 8})
    assert len(made.names.gradients) == sum(1 for _ in onnx.load(path, load_external_data=False).graph.initializer)
    saved = made.save(tmp_path / "step.onnx")
    assert any("weights are not copied" in note for note in saved.notes)


def test_older_and_oldest_operator_sets(tmp_path: Path) -> None:
    """Set 13 is raised (reductions and splits change their form), set 12 refused."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        helper.make_node("Mul", ["a", "m"], ["c"]),
        helper.make_node("Mul", ["c", "w"], ["d"]),
        helper.make_node("ReduceL2", ["d"], ["s"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "old", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")],
    )  # fmt: skip
    path = tmp_path / "old.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    made = differentiate(path, "output:s")
    onnx.checker.check_model(made.model, full_check=True)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    c = x[:, :2] * x.mean(1, keepdims=True)
    d = c * np.array([2.0, 3.0])
    expected = (d / np.linalg.norm(d) * c).sum(0)
    np.testing.assert_allclose(evaluate(made.model, {"x": x})["grad:w"], expected, rtol=1e-5)
    model.opset_import[0].version = 12
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputFileError, match="operator set 12"):
        differentiate(path, "output:s")
