"""Lowering a node to canonical operands and back equals the operator itself, as NumPy or onnxruntime defines it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.tile import Product, whole_of
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.onnx_io.lowering import lower
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role

RNG = np.random.default_rng(3)


def imported_gemm(tmp_path: Path, node: onnx.NodeProto, **arrays: np.ndarray) -> tuple[onnx.NodeProto, Gemm]:
    """The node and the Gemm that the importer makes of it for inputs like ``arrays``."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "one.onnx")
    imported = load_model(tmp_path / "one.onnx")
    (gemm,) = imported.workload.gemms
    return imported.nodes[gemm.name], gemm


def through_canonical_form(node: onnx.NodeProto, gemm: Gemm, *arrays: np.ndarray | None) -> np.ndarray:
    """Lower, multiply the canonical operands whole, finish."""
    lowered = lower(node, gemm, arrays)
    assert lowered.a.shape == (gemm.shape.batch, gemm.shape.m, gemm.shape.k)
    assert lowered.b.shape == (gemm.shape.batch, gemm.shape.k, gemm.shape.n)
    return lowered.finish(lowered.a @ lowered.b)


@st.composite
def matmul_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that broadcast in MatMul: any rank on either side, ones, zeros and missing axes."""
    k = draw(st.integers(0, 3))
    outer = draw(st.lists(st.integers(0, 3), max_size=3))
    sides = []
    for last in ((draw(st.integers(0, 3)), k), (k, draw(st.integers(0, 3)))):
        lead = [1 if draw(st.booleans()) else size for size in outer[draw(st.integers(0, len(outer))) :]]
        sides.append((*lead, *last))
    a, b = sides
    if draw(st.integers(0, 4)) == 0:
        a = (k,)
    if draw(st.integers(0, 4)) == 0:
        b = (k,)
    return a, b


def gemm_for(a: tuple[int, ...], b: tuple[int, ...]) -> Gemm:
    """A MatMul's Gemm, its axes sorted one by one as workload/gemm.py says."""
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    rank = max(len(a), len(b)) - 2
    batch, m, n = 1, a[-2], b[-1]
    for one, other in zip((1,) * (rank + 2 - len(a)) + a[:-2], (1,) * (rank + 2 - len(b)) + b[:-2], strict=True):
        batch *= one if one == other else 1
        m *= one if one != other and other == 1 else 1
        n *= other if one != other and other != 1 else 1
    operand = Operand(tensor="", role=Role.ACTIVATION, dtype=DType.FLOAT64)
    return Gemm(
        name="g", node="g", op="MatMul", shape=GemmShape(batch, m, a[-1], n), a=operand, b=operand, output="y",
        out_dtype=DType.FLOAT64, level=0,
    )  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(shapes=matmul_shapes())
def test_matmul_of_any_rank(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Broadcasting, vectors and empty axes, against numpy.matmul."""
    a, b = (RNG.standard_normal(shape) for shape in shapes)
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    got = through_canonical_form(node, gemm_for(*shapes), a, b)
    wanted = np.matmul(a, b)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_a_plain_matmul_copies_nothing() -> None:
    """Operands and result are views of the arrays."""
    a, b = RNG.standard_normal((6, 2, 3)), RNG.standard_normal((3, 4))
    lowered = lower(helper.make_node("MatMul", ["a", "b"], ["y"]), gemm_for(a.shape, b.shape), [a, b])
    assert np.shares_memory(lowered.a, a)
    assert np.shares_memory(lowered.b, b)
    result = lowered.a @ lowered.b
    assert np.shares_memory(lowered.finish(result), result)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (4,), (1, 4), (3, 1), (3, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_gemm_in_all_its_forms(tmp_path: Path, trans_a: int, trans_b: int, bias: tuple[int, ...] | None, dtype: Any) -> None:
    """alpha A' B' + beta C, whatever the bias broadcasts along."""
    arrays = {"a": RNG.integers(-9, 9, (5, 3) if trans_a else (3, 5)), "b": RNG.integers(-9, 9, (4, 5) if trans_b else (5, 4))}
    if bias is not None:
        arrays["c"] = RNG.integers(-9, 9, bias)
    arrays = {name: np.asarray(array, dtype) for name, array in arrays.items()}
    node = helper.make_node("Gemm", list(arrays), ["y"], transA=trans_a, transB=trans_b, alpha=3.0, beta=2.0)
    node, gemm = imported_gemm(tmp_path, node, **arrays)
    got = through_canonical_form(node, gemm, *arrays.values())
    a, b = arrays["a"].T if trans_a else arrays["a"], arrays["b"].T if trans_b else arrays["b"]
    assert got.dtype == dtype
    np.testing.assert_allclose(got, 3 * (a @ b) + 2 * arrays.get("c", np.zeros((), dtype)), rtol=1e-6)


def test_gemm_with_fractions_in_half_precision(tmp_path: Path) -> None:
    """Scaling is done in float32; the result keeps its type."""
    a, b, c = (RNG.standard_normal(shape).astype(np.float16) for shape in ((2, 3), (3, 4), (4,)))
    node, gemm = imported_gemm(tmp_path, helper.make_node("Gemm", ["a", "b", "c"], ["y"], alpha=0.3, beta=0.7), a=a, b=b, c=c)
    got = through_canonical_form(node, gemm, a, b, c)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(float), 0.3 * (a.astype(float) @ b) + 0.7 * c, atol=4e-3)


CONVOLUTIONS = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"group": 2, "strides": [2], "pads": [2, 0]}),
    ((1, 3, 6, 8), (4, 3, 3, 2), {"dilations": [2, 1], "pads": [0, 1, 2, 1]}),
    ((2, 4, 7, 5), (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 4, 7, 5), (4, 1, 2, 2), {"group": 4, "auto_pad": "SAME_LOWER"}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 0], "strides": [1, 2, 2]}),
    ((2, 3, 5, 5), (2, 3, 5, 5), {"auto_pad": "VALID"}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_conv(
    tmp_path: Path, x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], with_bias: bool
) -> None:
    """One to three axes, groups, paddings, against onnxruntime; the product is the kernels' whole tile."""
    ort = pytest.importorskip("onnxruntime", reason="the oracle of this test is onnxruntime")
    arrays = {"x": RNG.standard_normal(x_shape).astype(np.float32), "w": RNG.standard_normal(w_shape).astype(np.float32)}
    if with_bias:
        arrays["b"] = RNG.standard_normal(w_shape[0]).astype(np.float32)
    node, gemm = imported_gemm(tmp_path, helper.make_node("Conv", list(arrays), ["y"], **attributes), **arrays)
    lowered = lower(node, gemm, list(arrays.values()))
    got = lowered.finish(whole_of(Product.of(gemm), (lowered.a, lowered.b)))
    (wanted,) = ort.InferenceSession(tmp_path / "one.onnx", providers=["CPUExecutionProvider"]).run(None, arrays)
    np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (4, 5)), ((3, 3), (3, 5)), ((2, 3), (3, 6)), ((2, 2, 3), (3, 3, 5)), ((2, 0), (0, 5))]
)
def test_other_shapes_than_planned_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """The error names the GEMM, the shapes found and those planned."""
    planned = gemm_for((2, 3), (3, 5))
    with pytest.raises(ExecutionError, match=r"GEMM 'g'.*expected the planned batch, M, K, N = \(1, 2, 3, 5\)"):
        lower(helper.make_node("MatMul", ["a", "b"], ["y"]), planned, [np.zeros(a), np.zeros(b)])


def test_a_kernel_of_another_shape_is_refused(tmp_path: Path) -> None:
    """The same number of elements is not enough."""
    x, w = np.zeros((1, 2, 5), np.float32), np.zeros((4, 2, 3), np.float32)
    node, gemm = imported_gemm(tmp_path, helper.make_node("Conv", ["x", "w"], ["y"]), x=x, w=w)
    with pytest.raises(ExecutionError, match=r"the kernel is \[4, 3, 2\]"):
        lower(node, gemm, [x, w.reshape(4, 3, 2)])
    with pytest.raises(ExecutionError, match="operand 1 is absent"):
        lower(node, gemm, [x, None])
