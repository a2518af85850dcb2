"""MatMul, Gemm and Conv as canonical GEMMs; what has matrix work but no rule is listed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError
from cleave_plan.workload.gemm import ConvWindow, GemmShape, Role

from import_cases import load, model, run_everything, shapes_of, value, weight  # isort: skip

node = helper.make_node


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 3), (3, 4), (1, 2, 3, 4)),
        ((5, 2, 3), (3, 4), (1, 10, 3, 4)),
        ((2, 3), (5, 3, 4), (1, 2, 3, 20)),
        ((5, 2, 3), (5, 3, 4), (5, 2, 3, 4)),
        ((6, 5, 2, 3), (6, 1, 3, 4), (6, 10, 3, 4)),
        ((6, 1, 2, 3), (1, 5, 3, 4), (1, 12, 3, 20)),
        ((7, 1, 2, 3), (7, 5, 3, 4), (7, 2, 3, 20)),
        ((3,), (3, 4), (1, 1, 3, 4)),
        ((2, 3), (3,), (1, 2, 3, 1)),
        ((3,), (3,), (1, 1, 3, 1)),
        ((3,), (5, 3, 4), (1, 1, 3, 20)),
        ((5, 2, 3), (3,), (1, 10, 3, 1)),
        ((0, 2, 3), (3, 4), (1, 0, 3, 4)),
        ((2, 0), (0, 4), (1, 2, 0, 4)),
    ],
)
def test_matmul(tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Axes of A alone lengthen M, axes of B alone lengthen N, axes of both are the batch; empty products stay listed."""
    imported = load(tmp_path, model([node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, ["y"]))
    assert shapes_of(imported) == {"y": expected}


@st.composite
def broadcast_operands(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of MatMul operands that NumPy accepts."""
    whole = draw(st.lists(st.integers(0, 3), max_size=3))
    leads = [[size if draw(st.booleans()) else 1 for size in whole[draw(st.integers(0, len(whole))) :]] for _ in "ab"]
    m, k, n = (draw(st.integers(0, 4)) for _ in "mkn")
    a, b = (*leads[0], m, k), (*leads[1], k, n)
    return (a if leads[0] or draw(st.booleans()) else (k,)), (b if leads[1] or draw(st.booleans()) else (k,))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(broadcast_operands())
def test_matmul_counts_what_numpy_multiplies(tmp_path: Path, operands: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The MACs are K products for each element of NumPy's result, whose shape is the tensor's."""
    a, b = operands
    product = np.matmul(np.ones(a), np.ones(b))
    imported = load(tmp_path, model([node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, ["y"]))
    gemm = imported.workload.gemms[0]
    assert imported.tensor_shapes["y"] == product.shape
    assert gemm.macs == product.size * a[-1]
    assert gemm.shape.batch * gemm.shape.m * gemm.shape.n == product.size


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(tmp_path: Path, trans_a: int, trans_b: int) -> None:
    """Transposed operands, factors and every form of bias leave the product what it is (training graphs have transA)."""
    a, b = ((7, 3), (3, 7))[trans_a], ((7, 5), (5, 7))[trans_b]
    a = a[::-1]
    for bias in ((5,), (1, 5), (3, 1), (3, 5), ()):
        nodes = [node("Gemm", ["a", "b", "c"], ["y"], name="g", transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0)]
        imported = load(tmp_path, model(nodes, {"a": a, "c": bias}, ["y"], {"b": weight(*b)}))
        gemm = imported.workload.gemms[0]
        assert gemm.shape == GemmShape(1, 3, 7, 5)
        assert (gemm.a.role, gemm.b.role, gemm.op) == (Role.ACTIVATION, Role.PARAMETER, "Gemm")


def test_gemm_without_bias(tmp_path: Path) -> None:
    """C is optional, by omission and by an empty name."""
    for inputs in (["a", "b"], ["a", "b", ""]):
        imported = load(tmp_path, model([node("Gemm", inputs, ["y"])], {"a": (2, 3)}, ["y"], {"b": weight(3, 4)}))
        assert shapes_of(imported) == {"y": (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("x", "w", "attributes", "output", "shape"),
    [
        ((2, 3, 10), (4, 3, 3), {}, (8,), (1, 16, 9, 4)),
        ((2, 3, 10, 7), (4, 3, 3, 5), {}, (8, 3), (1, 48, 45, 4)),
        ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2}, (7, 7), (2, 49, 18, 3)),
        ((1, 8, 9, 9), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1], "strides": [2, 2]}, (5, 5), (8, 25, 9, 1)),
        ((1, 3, 10, 10), (4, 3, 3, 3), {"dilations": [2, 3]}, (6, 4), (1, 24, 27, 4)),
        ((1, 3, 11, 10), (4, 3, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}, (5, 4), (1, 20, 27, 4)),
        ((1, 3, 11, 10), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (6, 5), (1, 30, 27, 4)),
        ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"pads": [0, 0, 0, 1, 1, 1]}, (4, 5, 6), (1, 120, 16, 3)),
    ],
)
def test_conv(
    tmp_path: Path, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, object],
    output: tuple[int, ...], shape: tuple[int, ...],
) -> None:  # fmt: skip
    """One GEMM per group: rows are images times output positions; height and width are not mixed up."""
    imported = load(tmp_path, model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": x}, ["y"], {"w": weight(*w)}))
    gemm = imported.workload.gemms[0]
    assert tuple(gemm.shape) == shape
    assert imported.tensor_shapes["y"] == (x[0], w[0], *output)
    assert gemm.window is not None
    assert (gemm.window.input, gemm.window.output, gemm.window.kernel) == (x[2:], output, w[2:])
    assert gemm.a_bytes == 4 * np.prod(x)


def test_conv_window(tmp_path: Path) -> None:
    """The window tells where a row reads: strides, dilations and the padding at the begin."""
    attributes = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 0, 3], "group": 2}
    imported = load(
        tmp_path, model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": (3, 4, 8, 9)}, ["y"], {"w": weight(6, 2, 3, 3)})
    )
    assert imported.workload.gemms[0].window == ConvWindow(
        images=3, channels=2, input=(8, 9), output=(4, 10), kernel=(3, 3), strides=(2, 1), dilations=(1, 2), pads=(1, 2)
    )


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]:
    """Input shape, weight shape and attributes of a convolution that onnxruntime runs."""
    axes = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    attributes: dict[str, object] = {"group": groups, "strides": [draw(st.integers(1, 3)) for _ in range(axes)]}
    padding = draw(st.sampled_from(["explicit", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    dilations = [1] * axes if padding.startswith("SAME") else [draw(st.integers(1, 2)) for _ in range(axes)]
    attributes["dilations"] = dilations
    if padding == "explicit":
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
    else:
        attributes["auto_pad"] = padding
    sizes = [(length - 1) * step + 1 + draw(st.integers(0, 4)) for length, step in zip(kernel, dilations, strict=True)]
    channels = draw(st.integers(1, 2))
    return (
        (draw(st.integers(1, 2)), channels * groups, *sizes),
        (groups * draw(st.integers(1, 2)), channels, *kernel),
        attributes,
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(convolutions())
def test_conv_agrees_with_onnxruntime(tmp_path: Path, case: tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]) -> None:
    """The output has onnxruntime's shape, and the window that the planner cuts computes its numbers."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is the oracle")
    x_shape, w_shape, attributes = case
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, x_shape).astype(np.float32)
    w = rng.integers(-4, 5, w_shape).astype(np.float32)
    proto = model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": x_shape}, ["y"], {"w": w})
    expected = run_everything(proto, {"x": x}, ["y"])["y"]
    gemm = load(tmp_path, proto).workload.gemms[0]
    assert gemm.window is not None
    np.testing.assert_array_equal(convolve(x, w, gemm.shape, gemm.window), expected)


def convolve(x: np.ndarray, w: np.ndarray, shape: GemmShape, window: ConvWindow) -> np.ndarray:
    """The convolution by its definition, one output element after another, from the window alone."""
    result = np.zeros((window.images, shape.batch * shape.n, *window.output), dtype=np.float32)
    for place in np.ndindex(result.shape):
        image, channel, *position = place
        group = channel // shape.n
        for depth, *tap in np.ndindex(window.channels, *window.kernel):
            source = [
                p * s - b + t * d
                for p, s, b, t, d in zip(position, window.strides, window.pads, tap, window.dilations, strict=True)
            ]
            if all(0 <= at < size for at, size in zip(source, window.input, strict=True)):
                result[place] += x[(image, group * window.channels + depth, *source)] * w[(channel, depth, *tap)]
    return result


@pytest.mark.parametrize(
    ("op", "a", "b", "attributes", "fragment"),
    [
        ("MatMul", (2, 3), (4, 5), {}, "node 'bad' (MatMul): inner sizes differ: 3 and 4"),
        ("MatMul", (2, 4, 3), (3, 3, 5), {}, "node 'bad' (MatMul)"),
        ("MatMul", (), (3, 5), {}, "node 'bad' (MatMul): a scalar"),
        ("Gemm", (2, 3), (4, 5), {}, "node 'bad' (Gemm): inner sizes differ: 3 and 4"),
        ("Gemm", (2, 2, 3), (3, 5), {}, "node 'bad' (Gemm)"),
        ("Conv", (1, 3, 8, 8), (4, 2, 3, 3), {}, "node 'bad' (Conv)"),
        ("Conv", (1, 3, 2, 8), (4, 3, 3, 3), {}, "does not fit an input of size 2"),
        ("Conv", (1, 3, 8, 8), (4, 3, 3, 3), {"strides": [0, 1]}, "must be 1 or more"),
        ("Conv", (1, 3, 8, 8), (4, 3, 3, 3), {"pads": [1]}, "not for 2 spatial axes"),
    ],
)
def test_operands_that_do_not_fit(
    tmp_path: Path, op: str, a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, object], fragment: str
) -> None:
    """A product that cannot be computed is the file's error, with the node."""
    with pytest.raises(InputFileError) as error:
        load(tmp_path, model([node(op, ["a", "b"], ["y"], name="bad", **attributes)], {"a": a, "b": b}, ["y"]))
    assert fragment in str(error.value)


@pytest.mark.parametrize(
    ("elem", "dtype"),
    [
        (TensorProto.FLOAT16, DType.FLOAT16),
        (TensorProto.BFLOAT16, DType.BFLOAT16),
        (TensorProto.DOUBLE, DType.FLOAT64),
        (TensorProto.INT32, DType.INT32),
    ],
)
def test_element_types(tmp_path: Path, elem: int, dtype: DType) -> None:
    """A GEMM has the element types of its operands and its result."""
    proto = model([node("MatMul", ["a", "b"], ["y"])], [value("a", (2, 3), elem), value("b", (3, 4), elem)], ["y"])
    gemm = load(tmp_path, proto).workload.gemms[0]
    assert (gemm.a.dtype, gemm.b.dtype, gemm.out_dtype) == (dtype, dtype, dtype)


def test_what_has_no_rule_is_listed(tmp_path: Path) -> None:
    """Matrix work without a rule, in a node or in a subgraph, and unknown operators are named; harmless ones are not."""
    lost = node("MoE", ["x", "x"], ["inner"], name="deep", domain="com.microsoft")
    body = helper.make_graph([lost], "then", [], [value("inner", (4, 4))])
    other = helper.make_graph([node("Identity", ["x"], ["kept"])], "else", [], [value("kept", (4, 4))])
    nodes = [
        node("LinearAttention", ["x", "x", "x"], ["e"], name="linear"),
        node("If", ["c"], ["i"], name="if", then_branch=body, else_branch=other),
        node("Mystery", ["x"], ["u"], name="mystery", domain="some.where"),
        node("MoE", ["x", "x"], ["f"], name="experts", domain="com.microsoft"),
        node("BiasGelu", ["x", "x"], ["g"], name="gelu", domain="com.microsoft"),
        node("Relu", ["x"], ["r"], name="relu"),
    ]
    inputs = [value("x", (4, 4)), value("c", (), TensorProto.BOOL)]
    workload = load(tmp_path, model(nodes, inputs, list("eiufgr"), domains=["some.where", "com.microsoft"])).workload
    assert [operator.name for operator in workload.unrecognised] == ["linear", "mystery", "experts"]
    assert [(entry.name, entry.op, entry.domain) for entry in workload.unknown] == [("if/deep", "MoE", "com.microsoft")]
    assert workload.gemm_macs == 0
    text = "\n".join(workload.notes)
    assert "'if/deep' (MoE)" in text
    for name in ("LinearAttention", "some.where.Mystery", "com.microsoft.MoE"):
        assert f"{name}: node" in text
    assert "BiasGelu" not in text
    assert "Relu" not in text


def test_what_the_standard_defines_by_others_is_written_out(tmp_path: Path) -> None:
    """LinearAttention, one behind the other with absent inputs between: of each step S^T k, k v^T (both for 2 heads that keep a
    state) and q^T S (for 4 heads), of 8 x 8; and a causal convolution of one channel a group."""
    rule = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"}
    nodes = [
        node("LinearAttention", ["q", "k", "v", "", "d", "b"], ["o", "s"], name="first", **rule),
        node("LinearAttention", ["o", "k", "v", "s", "d", "b"], ["y", "t"], name="second", **rule),
        node("CausalConvWithState", ["k", "c"], ["z", "u"], name="causal"),
    ]
    inputs = [value(name, (3, 20, 16)) for name in "kvd"]
    inputs += [value("q", (3, 20, 32)), value("b", (3, 20, 2)), value("c", (20, 1, 4))]
    imported = load(tmp_path, model(nodes, inputs, ["y", "z"], opset=27))
    assert not imported.workload.unrecognised
    assert imported.workload.gemm_macs == 2 * 20 * 3 * (2 + 2 + 4) * 64 + 3 * 20 * 16 * 4
    assert {gemm.name.split("/")[0] for gemm in imported.workload.gemms} == {"first", "second", "causal"}
