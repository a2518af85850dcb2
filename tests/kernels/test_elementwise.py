"""Operators that devices run between two products, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.kernels.elementwise import FUNCTIONS, apply

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'cleave-plan[ort]'")

ELEM = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bool": TensorProto.BOOL, "float64": TensorProto.DOUBLE}
SPECIAL = np.array([[0.0, -0.0, 1.5, -3.25], [np.inf, -np.inf, np.nan, 700.0], [-np.inf] * 4, [1e-3, 2.0, -7.0, 88.0]])
TWO = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
ONE = ("Neg", "Abs", "Tanh", "Exp", "Sigmoid", "Relu", "Softmax", "IsNaN")
COMPARED = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN"})


def by_onnxruntime(op: str, inputs: list[np.ndarray], out: str, **attributes: int) -> np.ndarray:
    """The operator as a model of its own."""
    names = [f"x{place}" for place in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "one",
        [helper.make_tensor_value_info(n, ELEM[x.dtype.name], x.shape) for n, x in zip(names, inputs, strict=True)],
        [helper.make_tensor_value_info("y", ELEM[out], None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("op", ONE)
def test_one_input(op: str) -> None:
    """Zeros, infinities, NaN and large values included; a softmax over a row of -inf is NaN in both."""
    x = SPECIAL.astype(np.float32)
    out = "bool" if op in COMPARED else "float32"
    got = apply(op, [x], DType(out))
    assert got.dtype.name == out
    np.testing.assert_allclose(got, by_onnxruntime(op, [x], out), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("op", TWO)
def test_two_inputs(op: str) -> None:
    """The second broadcasts along the rows; comparisons give booleans."""
    x, y = SPECIAL.astype(np.float32), np.array([[1.5, -np.inf, 0.0, 3.0]], np.float32)
    out = "bool" if op in COMPARED else "float32"
    np.testing.assert_array_equal(apply(op, [x, y], DType(out)), by_onnxruntime(op, [x, y], out))


def test_choices_and_conditions() -> None:
    """Where, And, Or, Not."""
    x, condition = SPECIAL.astype(np.float32), np.array([[True, False, True, False]])
    other = np.array(-1.0, np.float32)
    np.testing.assert_array_equal(
        apply("Where", [condition, x, other], DType.FLOAT32), by_onnxruntime("Where", [condition, x, other], "float32")
    )
    flags = x > 0
    for op in ("And", "Or"):
        np.testing.assert_array_equal(apply(op, [flags, condition], DType.BOOL), by_onnxruntime(op, [flags, condition], "bool"))
    np.testing.assert_array_equal(apply("Not", [flags], DType.BOOL), ~flags)


@pytest.mark.parametrize(
    ("source", "to"), [("float32", "float16"), ("float16", "float32"), ("bool", "float32"), ("float32", "bool")]
)
def test_cast(source: str, to: str) -> None:
    """To the step's type; anything but 0 is true."""
    x = np.array([[0.0, 0.3, -2.0, 7e4 if source == "float32" and to != "float16" else 6e4]]).astype(source)
    np.testing.assert_array_equal(apply("Cast", [x], DType(to)), by_onnxruntime("Cast", [x], to, to=ELEM[to]))


def test_half_precision_is_computed_in_single() -> None:
    """A softmax over 4,096 equal float16 values sums to 4,096, which float16 additions of 1 would not reach."""
    row = apply("Softmax", [np.zeros((1, 4096), np.float16)], DType.FLOAT16)
    assert row.dtype == np.float16
    assert float(row[0, 0]) == 1 / 4096
    big = np.array([300.0], np.float16)
    assert apply("Div", [apply("Mul", [big, big], DType.FLOAT32), big], DType.FLOAT16)[0] == 300


def test_every_function_is_tested() -> None:
    """Another operator in the table needs its line here."""
    assert {*ONE, *TWO, "Where", "And", "Or", "Not", "Cast", "Same"} == set(FUNCTIONS)
