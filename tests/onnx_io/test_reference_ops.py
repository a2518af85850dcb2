"""Our corrections of onnx.reference against onnxruntime, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from cleave_plan.onnx_io.reference_ops import corrections

ort = pytest.importorskip("onnxruntime", reason="the oracle of these tests is onnxruntime")


def both(node: onnx.NodeProto, opset: int, **inputs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The node's outputs by onnx.reference with corrections, and by onnxruntime."""
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return ReferenceEvaluator(model, new_ops=corrections(opset)).run(None, inputs), session.run(None, inputs)


def agree(node: onnx.NodeProto, opset: int, **inputs: np.ndarray) -> None:
    """Both give the same shapes, types and values."""
    for got, wanted in zip(*both(node, opset, **inputs), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 3, 7, 6)).astype(np.float32)
STATISTICS = {
    "s": np.array([1, 2, 3], np.float32), "b": np.array([0, 1, -1], np.float32),
    "m": np.array([5, -5, 0], np.float32), "v": np.array([1, 4, 9], np.float32),
}  # fmt: skip


@pytest.mark.parametrize("opset", [9, 13, 15])
def test_batch_normalization_uses_the_stored_statistics(opset: int) -> None:
    """In every operator set, with the momentum attribute given."""
    agree(helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], momentum=0.9), opset, x=X, **STATISTICS)


def test_batch_normalization_in_training() -> None:
    """With training_mode the batch's statistics count and the running ones are updated."""
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1, momentum=0.8)
    agree(node, 15, x=X, **STATISTICS)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_of_a_smaller_index(axis: int) -> None:
    """Indices may be shorter than the data on the other axes, and negative."""
    agree(
        helper.make_node("GatherElements", ["x", "i"], ["y"], axis=axis), 13,
        x=X[0, 0], i=RNG.integers(-6, 6, (4, 5)),
    )  # fmt: skip


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, None), (11, 0), (11, 2), (13, -1), (13, 1)])
def test_softmax_before_and_after_13(operator: str, opset: int, axis: int | None) -> None:
    """Before operator set 13 the axes from ``axis`` on are one; since then it is a single axis."""
    agree(helper.make_node(operator, ["x"], ["y"], **({} if axis is None else {"axis": axis})), opset, x=X)


def test_unsqueeze_in_any_order() -> None:
    """Axes that are not sorted."""
    agree(helper.make_node("Unsqueeze", ["x"], ["y"], axes=[5, 4, 2]), 11, x=X[0])


@pytest.mark.parametrize("zero", [None, 3])
def test_dequantize_before_19(zero: int | None) -> None:
    """Along an axis, with and without a zero point."""
    inputs: dict[str, Any] = {"x": RNG.integers(-128, 128, (2, 3, 4)).astype(np.int8), "s": np.array([0.5, 2, 3], np.float32)}
    if zero is not None:
        inputs["z"] = np.full(3, zero, np.int8)
    agree(helper.make_node("DequantizeLinear", list(inputs), ["y"], axis=1), 13, **inputs)


POOLS = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [2, 2], "strides": [3, 2], "auto_pad": "VALID"},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("attributes", POOLS, ids=str)
def test_max_pool(attributes: dict[str, Any]) -> None:
    """Values and places, for every kind of padding."""
    agree(helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes), 12, x=X)


def test_max_pool_with_dilations_and_column_order() -> None:
    """Places count column by column where storage_order says so."""
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], dilations=[2, 3], storage_order=1)
    agree(node, 12, x=X)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("attributes", POOLS, ids=str)
def test_average_pool(attributes: dict[str, Any], count: int) -> None:
    """With and without the padding in the count."""
    agree(helper.make_node("AveragePool", ["x"], ["y"], count_include_pad=count, **attributes), 19, x=X)


def test_global_max_pool_of_one_axis() -> None:
    """A sequence, not an image."""
    agree(helper.make_node("GlobalMaxPool", ["x"], ["y"]), 13, x=X[0])


def loop(condition: str, trips: str) -> onnx.NodeProto:
    """A loop that adds 1 to both elements and hands out their squares, while their sum is below 9."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "one"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node("Less", ["sum", "nine"], ["again"]),
        ],
        "body",
        [info("step", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", TensorProto.FLOAT, [2])],
        [info("again", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [2]), info("square", TensorProto.FLOAT, [2])],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]), helper.make_tensor("nine", TensorProto.FLOAT, [], [9.0])],
    )
    return helper.make_node("Loop", [trips, condition, "x"], ["last", "squares"], body=body)


@pytest.mark.parametrize(("trips", "condition"), [("t", ""), ("", ""), ("t", "c"), ("", "c")])
def test_loop_with_absent_limits(trips: str, condition: str) -> None:
    """An absent condition is true, and scan outputs are stacked along a new axis."""
    inputs = {"t": np.array(2), "c": np.array(True), "x": np.array([0.0, 1.0], np.float32)}
    given = {name: value for name, value in inputs.items() if name in (trips, condition, "x")}
    agree(loop(condition, trips), 13, **given)


def test_loop_without_iterations() -> None:
    """Nothing to stack: an empty first axis."""
    agree(loop("", "t"), 13, t=np.array(0), x=np.zeros(2, np.float32))
