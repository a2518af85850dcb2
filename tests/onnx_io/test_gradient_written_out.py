"""Gradients through operators that are written out first: recurrent layers, scans, and what the standard defines by a body."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from gradient_cases import Array, Case, case_feeds, differentiate, evaluate, run_case, scored_model, values
from onnx import TensorProto, helper

from cleave_plan.onnx_io.gradient.build import GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, SIZE, HIDDEN = 4, 3, 2, 3


def layer(op: str, directions: int, *, lengths: bool = False, first: bool = False, peepholes: bool = False) -> list[Array | None]:
    """Random inputs of a recurrent layer."""
    rng = np.random.default_rng(7)
    width = GATES[op] * HIDDEN
    x = values(rng, STEPS, BATCH, SIZE, low=-1, high=1)
    inputs: list[Array | None] = [x, *(values(rng, directions, width, size, low=-1, high=1) for size in (SIZE, HIDDEN))]
    inputs.append(values(rng, directions, 2 * width, low=-1, high=1))
    inputs.append(np.array([4, 2, 3], np.int32) if lengths else None)
    states = 2 if op == "LSTM" else 1
    inputs += [values(rng, directions, BATCH, HIDDEN, low=-1, high=1) if first else None for _ in range(states)]
    if peepholes:
        inputs.append(values(rng, directions, 3 * HIDDEN, low=-1, high=1))
    while inputs[-1] is None:
        inputs.pop()
    return inputs


FORMS = [
    ("forward", {}), ("reverse", {}), ("bidirectional", {"first": True}), ("bidirectional", {"first": True, "lengths": True}),
]  # fmt: skip


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(("direction", "form"), FORMS)
def test_recurrent_layers(op: str, direction: str, form: dict[str, bool]) -> None:
    """Both directions, given first states, sequences of different lengths; every output enters the loss."""
    outputs = 3 if op == "LSTM" else 2
    attributes: dict[str, object] = {"hidden_size": HIDDEN, "direction": direction}
    case = Case(
        op=op, inputs=layer(op, 2 if direction == "bidirectional" else 1, **form), attributes=attributes, outputs=outputs,
        scored=outputs,
    )  # fmt: skip
    run_written_out(case)


def run_written_out(case: Case) -> None:
    """What is written out gives what onnxruntime's operator gives, and its gradient is that of finite differences.

    (onnx.reference ignores lengths, peepholes and clips of recurrent layers, and refuses GroupNormalization.)
    """
    with TemporaryDirectory() as folder:
        check_written_out(case, Path(folder))


def test_forms_of_recurrent_layers() -> None:
    """A GRU that resets after the product, an LSTM with peepholes or coupled gates, other activations, clipped sums."""
    base = {"hidden_size": HIDDEN}
    run_written_out(Case(op="GRU", inputs=layer("GRU", 1), attributes={**base, "linear_before_reset": 1}, outputs=2, scored=2))
    run_written_out(Case(op="LSTM", inputs=layer("LSTM", 1, first=True, peepholes=True), attributes=base, outputs=3, scored=3))
    run_written_out(Case(op="LSTM", inputs=layer("LSTM", 1), attributes={**base, "input_forget": 1}, outputs=3, scored=1))
    attributes = {**base, "activations": ["Softsign"], "clip": 0.9}
    run_written_out(Case(op="RNN", inputs=layer("RNN", 1), attributes=attributes, shapes=[(STEPS, 1, BATCH, HIDDEN)]))


def check_written_out(case: Case, folder: Path) -> None:
    """Forward beside onnxruntime in float32; backward by differences of the gradient file's own loss."""
    made = differentiate(case, folder)
    onnx.checker.check_model(made.model, full_check=True)
    feeds = case_feeds(case)
    whole = evaluate(made.model, feeds)
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    narrow = Case(
        op=case.op, inputs=[a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in case.inputs],
        attributes=case.attributes, outputs=case.outputs, scored=case.scored, opset=case.opset, shapes=case.shapes,
    )  # fmt: skip
    session = ort.InferenceSession(scored_model(narrow, dynamic=False).SerializeToString(), providers=["CPUExecutionProvider"])
    assert whole["loss"] == pytest.approx(session.run(["score"], case_feeds(narrow))[0], rel=1e-4, abs=1e-5)
    for place in case.places():
        name = case.names()[place]
        direction = np.random.default_rng(6).standard_normal(feeds[name].shape)
        ends = [evaluate(made.model, {**feeds, name: feeds[name] + sign * 1e-6 * direction})["loss"] for sign in (1, -1)]
        found = float((whole[made.names.gradients[name]] * direction).sum())
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-6), (case.op, name)


def scan_case() -> Case:
    """s' = s w + x, y = tanh(s' v): states, slices, tensors from around, and a state that is also given out."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "x1"], ["h"]),
            helper.make_node("Add", ["h", "x"], ["next"]),
            helper.make_node("Mul", ["next", "x2"], ["scaled"]),
            helper.make_node("Tanh", ["scaled"], ["y"]),
        ],
        "step",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [2, 3]) for name in ("s", "x")],
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [2, 3]) for name in ("next", "y", "next")],
    )
    rng = np.random.default_rng(3)
    return Case(
        op="Scan", inputs=[values(rng, 2, 3), values(rng, 3, 3), values(rng, 3), values(rng, 4, 2, 3)],
        attributes={"body": body, "num_scan_inputs": 1}, outputs=3, scored=3,
    )  # fmt: skip


def test_scan(tmp_path: Path) -> None:
    """A loop of one's own: the weights that its body reads from around it get the sum over the steps."""
    case = scan_case()
    whole = helper.make_node("Scan", ["x0", "x3"], ["y0", "y1", "y2"], **case.attributes)
    nodes = [whole, *(helper.make_node("ReduceSum", [f"y{place}"], [f"p{place}"], keepdims=0) for place in range(3))]
    nodes.append(helper.make_node("Sum", ["p0", "p1", "p2"], ["score"]))
    feeds = case_feeds(case)
    inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, array.shape) for name, array in feeds.items()]
    graph = helper.make_graph(nodes, "loop", inputs, [helper.make_tensor_value_info("score", TensorProto.DOUBLE, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "loop.onnx"
    path.write_bytes(model.SerializeToString())
    made = gradient_model(path, LossSpec(kind="output:score"), GradientOptions(only=list(feeds)))
    onnx.checker.check_model(made.model, full_check=True)
    gradients = evaluate(made.model, feeds)
    for name, array in feeds.items():
        direction = np.random.default_rng(4).standard_normal(array.shape)
        ends = [evaluate(model, {**feeds, name: array + sign * 1e-6 * direction})["score"] for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / 2e-6
        assert (gradients[made.names.gradients[name]] * direction).sum() == pytest.approx(expected, rel=1e-6, abs=1e-6)


ATTENTIONS = [
    ({}, 4, 4, False), ({"is_causal": 1}, 4, 4, False), ({"scale": 0.3, "softcap": 2.0}, 4, 4, True), ({}, 4, 2, True),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "heads", "key_heads", "masked"), ATTENTIONS)
def test_attention(attributes: dict[str, float], heads: int, key_heads: int, masked: bool) -> None:
    """The operator of the standard: causal, masked, capped, with shared keys and values."""
    rng = np.random.default_rng(8)
    q, k, v = (values(rng, 2, count, 3, 4, low=-1, high=1) for count in (heads, key_heads, key_heads))
    mask = values(rng, 3, 3) if masked else None
    run_case(Case(op="Attention", inputs=[q, k, v, mask], attributes=attributes, opset=23), tolerance=3e-6)


def test_other_bodies() -> None:
    """Rotary embeddings and group norms, by the standard's own definitions."""
    rng = np.random.default_rng(8)
    x, angles = values(rng, 2, 2, 3, 4), values(rng, 2, 3, 2)
    run_case(Case(op="RotaryEmbedding", inputs=[x, np.cos(angles), np.sin(angles)], opset=23, wanted=[0]))
    attributes = {"num_groups": 2, "epsilon": 0.1, "stash_type": TensorProto.DOUBLE}
    grouped: list[Array | None] = [values(rng, 2, 4, 3), values(rng, 4), values(rng, 4)]
    run_written_out(Case(op="GroupNormalization", inputs=grouped, attributes=attributes, shapes=[(2, 4, 3)]))
