"""The shape walk: shapes and folded values against onnxruntime, open sizes, claims of the file, branches."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import bind_inputs
from cleave_plan.onnx_io.constants import initialiser_facts
from cleave_plan.onnx_io.facts import Fact
from cleave_plan.onnx_io.shapes import ShapeWalk

from import_cases import Dims, ints, load, model, outside, run_everything, shapes_of, value, weight  # isort: skip

node = helper.make_node


def walk(proto: onnx.ModelProto) -> dict[str, Fact]:
    """Facts of every tensor of a model."""
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    bindings = bind_inputs(proto.graph, proto.ir_version, {}, {})
    facts = initialiser_facts(proto.graph, Path("model.onnx")) | dict(bindings.inputs)
    ShapeWalk(opsets=opsets, names={}, path=Path("model.onnx")).run(proto.graph, facts)
    return facts


# Each entry computes something from x, whose shape is [2, 3, 4], out of what stands before it.
ARITHMETIC = [
    node("Shape", ["x"], ["shape"]),
    node("Shape", ["x"], ["tail"], start=-2),
    node("Size", ["x"], ["size"]),
    node("Gather", ["shape", "one"], ["height"], axis=0),
    node("Gather", ["shape", "ends"], ["corners"], axis=0),
    node("Unsqueeze", ["height", "axis"], ["height_1"]),
    node("Concat", ["height_1", "tail", "minus"], ["joined"], axis=0),
    node("Slice", ["joined", "axis", "two"], ["cut"]),
    node("Slice", ["joined", "minus", "far_back", "axis", "minus"], ["backwards"]),
    node("Squeeze", ["height_1", "axis"], ["squeezed"]),
    node("Cast", ["shape"], ["real"], to=TensorProto.FLOAT),
    node("Mul", ["real", "half"], ["halved"]),
    node("Floor", ["halved"], ["floored"]),
    node("Ceil", ["halved"], ["ceiled"]),
    node("Cast", ["floored"], ["whole"], to=TensorProto.INT64),
    node("Add", ["shape", "whole"], ["sum"]),
    node("Sub", ["whole", "shape"], ["difference"]),
    node("Div", ["difference", "two"], ["quotient"]),
    node("Mod", ["sum", "two"], ["rest"]),
    node("Max", ["shape", "two"], ["larger"]),
    node("Min", ["shape", "two"], ["smaller"]),
    node("Neg", ["shape"], ["negative"]),
    node("Equal", ["shape", "two"], ["same"]),
    node("Greater", ["shape", "two"], ["above"]),
    node("Not", ["same"], ["other"]),
    node("And", ["other", "above"], ["both"]),
    node("Where", ["both", "shape", "sum"], ["chosen"]),
    node("NonZero", ["both"], ["places"]),
    node("Reshape", ["joined", "square"], ["grid"]),
    node("Transpose", ["grid"], ["turned"]),
    node("ReduceProd", ["shape"], ["product"], keepdims=0),
    node("ReduceSum", ["shape"], ["total"], keepdims=1),
    node("ReduceMax", ["shape"], ["most"], keepdims=0),
    node("Range", ["zero", "size", "height"], ["steps"]),
    node("ConstantOfShape", ["tail"], ["filled"], value=helper.make_tensor("", TensorProto.INT64, [1], [7])),
    node("Expand", ["height_1", "tail"], ["expanded"]),
    node("Tile", ["shape", "two"], ["tiled"]),
    node("CumSum", ["shape", "zero"], ["running"]),
    node("Identity", ["sum"], ["copied"]),
    node("Flatten", ["grid"], ["flat"], axis=0),
    node("ScatterElements", ["shape", "ends", "ends"], ["scattered"], axis=0),
    node("GatherElements", ["shape", "ends"], ["gathered"], axis=0),
    node("TopK", ["shape", "two"], ["top", "top_at"]),
    node("ArgMax", ["shape"], ["largest_at"], axis=0, keepdims=0),
    node("Split", ["joined"], ["left", "right"], axis=0),
    node("OneHot", ["ends", "height", "off_on"], ["hot"]),
    node("Pad", ["shape", "ends"], ["padded"]),
    node("Clip", ["shape", "one_scalar", "height"], ["clipped"]),
    node("Sqrt", ["real"], ["root"]),
    node("Pow", ["shape", "two"], ["squared"]),
    node("Trilu", ["grid"], ["lower"], upper=0),
]

CONSTANTS = {
    "one": np.int64(1), "one_scalar": np.int64(1), "zero": np.int64(0), "axis": ints(0), "two": ints(2), "minus": ints(-1),
    "far_back": ints(-4), "ends": ints(0, 2), "square": ints(2, 2), "half": np.float32(0.5), "off_on": ints(0, 1),
}  # fmt: skip


def test_shape_arithmetic_agrees_with_onnxruntime() -> None:
    """Every operator that exporters use on shapes is folded to the values that onnxruntime computes."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is the oracle")
    names = [name for entry in ARITHMETIC for name in entry.output]
    proto = model(ARITHMETIC, {"x": (2, 3, 4)}, names, CONSTANTS)
    expected = run_everything(proto, {"x": np.zeros((2, 3, 4), np.float32)}, names)
    facts = walk(proto)
    for name in names:
        found = facts[name].whole_value
        assert found is not None, name
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
        assert (found.dtype, facts[name].sizes) == (expected[name].dtype, expected[name].shape), name


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13, 18, 21])
def test_forms_of_older_operator_sets(tmp_path: Path, opset: int) -> None:
    """Axes and bounds were attributes once; the same chain is followed in either form."""
    constants = {"one": ints(1), "three": ints(3), "zero": ints(0), "w": weight(12, 5)}
    if opset < 13:
        middle = [node("Squeeze", ["part"], ["scalar"], axes=[0]), node("Unsqueeze", ["scalar"], ["back"], axes=[0])]
    else:
        middle = [node("Squeeze", ["part", "zero"], ["scalar"]), node("Unsqueeze", ["scalar", "zero"], ["back"])]
    if opset < 10:
        cut = [node("Slice", ["shape"], ["rest"], starts=[1], ends=[3], axes=[0])]
    else:
        cut = [node("Slice", ["shape", "one", "three", "zero"], ["rest"])]
    split = [node("Gather", ["shape", "zero"], ["part"], axis=0)]
    nodes = [
        node("Shape", ["x"], ["shape"]), *split, *middle, *cut,
        node("Gather", ["rest", "zero"], ["second"], axis=0), node("Mul", ["second", "four"], ["width"]),
        node("Concat", ["back", "width"], ["target"], axis=0), node("Reshape", ["x", "target"], ["r"]),
        node("MatMul", ["r", "w"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (2, 3, 4)}, ["y"], constants | {"four": ints(4)}, opset=opset)
    assert shapes_of(load(tmp_path, proto)) == {"y": (1, 2, 12, 5)}


def test_open_sizes_travel_through_shape_arithmetic() -> None:
    """With an open batch, the known sizes still arrive, and the open one keeps its name."""
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "first"], ["b"], axis=0),
        node("Gather", ["shape", "last"], ["d"], axis=0), node("Unsqueeze", ["b", "zero"], ["b1"]),
        node("Unsqueeze", ["d", "zero"], ["d1"]), node("Div", ["d1", "four"], ["size"]),
        node("Concat", ["b1", "minus", "four", "size"], ["target"], axis=0), node("Reshape", ["x", "target"], ["split"]),
        node("Concat", ["b1", "minus"], ["flat_target"], axis=0), node("Reshape", ["x", "flat_target"], ["flat"]),
        node("Mul", ["b1", "one"], ["b2"]), node("Concat", ["b2", "four"], ["mask_shape"], axis=0),
        node("Expand", ["scalar", "mask_shape"], ["mask"]), node("ConstantOfShape", ["mask_shape"], ["zeros"]),
        node("Slice", ["shape", "one", "far", "zero"], ["tail"]), node("ReduceProd", ["tail"], ["tail_size"]),
        node("ReduceProd", ["shape"], ["all"]), node("Sub", ["b1", "b1"], ["nothing"]), node("Add", ["b1", "zero"], ["same"]),
        node("Max", ["tail", "four"], ["wide"]), node("Max", ["b1", "four"], ["unclear"]), node("Cast", ["b1"], ["cast"], to=6),
    ]  # fmt: skip
    constants = {
        "first": np.int64(0), "last": np.int64(2), "zero": ints(0), "one": ints(1), "four": ints(4), "minus": ints(-1),
        "far": ints(99), "scalar": np.float32(0),
    }  # fmt: skip
    facts = walk(model(nodes, {"x": ("batch", 6, 8)}, ["split"], constants))
    shapes = {name: fact.shape for name, fact in facts.items()}
    assert shapes["split"] == ("batch", 6, 4, 2)
    assert shapes["flat"] == ("batch", 48)
    assert shapes["mask"] == shapes["zeros"] == ("batch", 4)
    values = {name: None if fact.value is None else fact.value.ravel().tolist() for name, fact in facts.items()}
    assert (values["tail_size"], values["nothing"], values["same"], values["cast"]) == ([48], [0], ["batch"], ["batch"])
    assert (values["wide"], values["unclear"], values["all"]) == ([6, 8], [None], [None])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_reshape_agrees_with_numpy(dims: list[int], data: st.DataObject) -> None:
    """Whatever target NumPy accepts gives NumPy's shape, with 0 for "as before" and -1 for "the rest"."""
    total = int(np.prod(dims))
    target: list[int] = []
    left = total
    for place in range(data.draw(st.integers(1, 4))):
        if place < len(dims) and left % dims[place] == 0 and data.draw(st.booleans()):
            target.append(0)
            left //= dims[place]
        else:
            factor = data.draw(st.sampled_from([size for size in range(1, left + 1) if left % size == 0]))
            target.append(factor)
            left //= factor
    target.insert(data.draw(st.integers(len(target), len(target))), -1)
    plain = [dims[place] if size == 0 else size for place, size in enumerate(target)]
    facts = walk(model([node("Reshape", ["x", "t"], ["y"])], {"x": dims}, ["y"], {"t": ints(*target)}))
    assert facts["y"].shape == np.zeros(dims).reshape(plain).shape


@pytest.mark.parametrize(
    ("dims", "target"), [((2, 3), (4, 2)), ((2, 3), (-1, 4)), ((2, 3), (-1, -1)), ((8, 4), (1, 4, -3)), ((2, 3), (0, 0, 2))]
)
def test_a_baked_in_size_is_told(tmp_path: Path, dims: tuple[int, ...], target: tuple[int, ...]) -> None:
    """A Reshape that cannot be done on these inputs (a batch baked into it) is an error with its node."""
    nodes = [node("Reshape", ["x", "t"], ["r"], name="baked"), node("MatMul", ["r", "w"], ["y"])]
    with pytest.raises(InputFileError, match=r"node 'baked' \(Reshape\)"):
        load(tmp_path, model(nodes, {"x": dims}, ["y"], {"t": ints(*target), "w": weight(4, 2)}))


def test_claims_fill_gaps_only(tmp_path: Path) -> None:
    """value_info is believed behind an unknown operator, and disbelieved where the operator says otherwise."""
    nodes = [
        node("Mystery", ["x"], ["m"], domain="some.where"), node("MatMul", ["m", "w"], ["y"], name="behind"),
        node("Transpose", ["x"], ["t"], name="turn"), node("MatMul", ["t", "v"], ["z"], name="after"),
    ]  # fmt: skip
    claims = [value("m", ("batch", 3)), value("t", (7, 3))]
    proto = model(
        nodes, {"x": ("batch", 3)}, ["y", "z"], {"w": weight(3, 4), "v": weight(5, 2)}, domains=["some.where"], value_info=claims
    )
    imported = load(tmp_path, proto, dims={"batch": 5})
    assert shapes_of(imported) == {"behind": (1, 5, 3, 4), "after": (1, 3, 5, 2)}
    assert any("'t' of node 'turn' (Transpose): [7, 3] stated, [3, 5] found" in note for note in imported.workload.notes)


def test_the_first_unknown_operator_is_named(tmp_path: Path) -> None:
    """A product behind an operator without a shape is listed as unknown, with the operator; it is not counted as 0."""
    nodes = [
        node("Mystery", ["x"], ["m"], name="culprit", domain="some.where"), node("Relu", ["m"], ["r"]),
        node("MatMul", ["r", "w"], ["y"], name="victim"),
    ]  # fmt: skip
    proto = model(nodes, {"x": (2, 3)}, ["y"], {"w": weight(3, 4)}, domains=["some.where"])
    (unknown,) = load(tmp_path, proto).workload.unknown
    assert (unknown.name, unknown.op) == ("victim", "MatMul")
    assert "node 'culprit' (Mystery)" in unknown.reason


def test_a_size_that_the_data_decides(tmp_path: Path) -> None:
    """The product is listed with the operator and the option that counts it; the option works for every tensor behind it."""
    nodes = [
        node("NonZero", ["x"], ["places"], name="find"), node("Transpose", ["places"], ["rows"]),
        node("Cast", ["rows"], ["real"], to=1), node("MatMul", ["real", "w"], ["y"], name="product"),
    ]  # fmt: skip
    proto = model(nodes, {"x": (5, 6)}, ["y"], {"w": weight(2, 4)})
    open_sizes = load(tmp_path, proto).workload
    assert open_sizes.gemms == ()
    assert [(entry.name, entry.op) for entry in open_sizes.unknown] == [("product", "MatMul")]
    assert "node 'find' (NonZero); bound by --dim 'places[1]'=INT it is counted" in open_sizes.unknown[0].reason
    assert [operator.op for operator in open_sizes.server_operators][-1] == "MatMul"
    assert any("'product' (MatMul)" in note for note in open_sizes.notes)
    assert shapes_of(load(tmp_path, proto, dims={"places[1]": 9})) == {"product": (1, 9, 2, 4)}


@pytest.mark.parametrize(("condition", "expected"), [(True, (1, 2, 6, 5)), (False, (1, 4, 3, 5))])
def test_a_branch_whose_condition_is_known(tmp_path: Path, condition: bool, expected: tuple[int, ...]) -> None:
    """If goes the way that its constant condition says, and its branches see the enclosing graph."""
    branches = [
        helper.make_graph([node("Reshape", ["x", name], [f"{name}_out"])], name, [], [value(f"{name}_out", None)])
        for name in ("wide", "tall")
    ]
    nodes = [node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1]), node("MatMul", ["r", "w"], ["y"])]
    constants = {"c": np.array(condition), "wide": ints(2, 6), "tall": ints(4, 3), "w": weight(expected[2], 5)}
    assert shapes_of(load(tmp_path, model(nodes, {"x": (12,)}, ["y"], constants))) == {"y": expected}


def test_a_branch_that_the_data_decides(tmp_path: Path) -> None:
    """What both branches agree on is known; an impossible node in one of them is no error."""
    bad = [node("Reshape", ["x", "odd"], ["impossible"]), node("Relu", ["x"], ["kept"])]
    branches = [
        helper.make_graph([node("Relu", ["x"], ["same"])], "then", [], [value("same", None)]),
        helper.make_graph(bad, "else", [], [value("kept", None)]),
    ]
    nodes = [node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1]), node("MatMul", ["r", "w"], ["y"])]
    inputs = [value("x", (2, 3)), value("c", (), TensorProto.BOOL)]
    assert shapes_of(load(tmp_path, model(nodes, inputs, ["y"], {"odd": ints(7), "w": weight(3, 4)}))) == {"y": (1, 2, 3, 4)}


def test_loops(tmp_path: Path) -> None:
    """A state that the body leaves in its shape has it after the loop; one that grows is followed through every iteration."""
    body = helper.make_graph(
        [
            node("Add", ["same", "x"], ["same_next"]), node("Concat", ["grown", "x"], ["grown_next"], axis=0),
            node("Identity", ["go"], ["on"]), node("Transpose", ["same"], ["row"]),
        ],
        "body",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("same", None), value("grown", None)],
        [value("on", (), TensorProto.BOOL), value("same_next", None), value("grown_next", None), value("row", None)],
    )  # fmt: skip
    nodes = [node("Loop", ["trips", "", "x", "x"], ["same_end", "grown_end", "rows"], body=body)]
    outputs = ["same_end", "grown_end", "rows"]
    facts = walk(model(nodes, {"x": (2, 3)}, outputs, {"trips": np.int64(4)}))
    assert [facts[name].shape for name in outputs] == [(2, 3), (2 + 4 * 2, 3), (4, 3, 2)]
    facts = walk(model(nodes, [value("x", (2, 3)), value("trips", (), TensorProto.INT64)], outputs))
    assert [facts[name].shape for name in outputs] == [(2, 3), ("grown_end[0]", 3), ("rows[0]", 3, 2)]


def test_large_constants_are_not_folded(tmp_path: Path) -> None:
    """Arithmetic that would make a huge tensor keeps its shape only."""
    nodes = [
        node("ConstantOfShape", ["big"], ["zeros"]), node("Expand", ["one", "big"], ["wide"]),
        node("Range", ["start", "stop", "step"], ["r"]), node("Add", ["zeros", "wide"], ["s"]), node("MatMul", ["s", "w"], ["y"]),
    ]  # fmt: skip
    constants = {
        "big": ints(10**6, 10**5), "one": np.float32(1), "start": np.int64(0), "stop": np.int64(10**11), "step": np.int64(1),
        "w": outside("w", (10**5, 2)),
    }  # fmt: skip
    imported = load(tmp_path, model(nodes, {}, ["y", "r"], constants))
    assert shapes_of(imported) == {"y": (1, 10**6, 10**5, 2)}
    assert imported.tensor_shapes["r"] == (10**11,)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "expected"),
    [
        ((1, 2, 3, 3), (2, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (1, 3, 6, 6)),
        ((1, 2, 3, 3), (2, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}, (1, 3, 6, 5)),
        ((1, 2, 3, 3), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [8, 7]}, (1, 3, 8, 7)),
        ((1, 4, 5), (4, 2, 3), {"group": 2, "dilations": [2]}, (1, 4, 9)),
    ],
)
def test_transposed_convolution(
    tmp_path: Path, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, object], expected: tuple[int, ...]
) -> None:
    """ConvTranspose has the standard's output shape; each input position meets the whole kernel, wherever its products land."""
    imported = load(tmp_path, model([node("ConvTranspose", ["x", "w"], ["y"], **attributes)], {"x": x}, ["y"], {"w": weight(*w)}))
    assert imported.tensor_shapes["y"] == expected
    assert imported.workload.gemm_macs == math.prod(x) * math.prod(w[1:])


MICROSOFT_CASES: list[tuple[str, list[Dims], dict[str, object]]] = [
    ("FusedMatMul", [(2, 3, 4), (2, 5, 4)], {"transB": 1}),
    ("FusedMatMul", [(2, 4, 3), (2, 4, 5)], {"transA": 1, "alpha": 0.5}),
    ("FusedMatMul", [(4, 3, 2, 5), (4, 3, 5, 6)], {}),
    ("FusedMatMul", [(3, 2, 4, 5), (2, 4, 5, 6)], {"transBatchA": 1}),
    ("FusedGemm", [(3, 4), (5, 4), (5,)], {"transB": 1, "activation": "Relu"}),
    ("FusedConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"activation": "Relu"}),
    ("BiasGelu", [(2, 3, 4), (4,)], {}),
    ("FastGelu", [(2, 3, 4), (4,)], {}),
    ("QuickGelu", [(2, 3, 4)], {}),
    ("SkipLayerNormalization", [(2, 3, 4), (2, 3, 4), (4,), (4,), (4,)], {}),
    ("SkipSimplifiedLayerNormalization", [(2, 3, 4), (2, 3, 4), (4,)], {}),
    ("Attention", [(2, 3, 8), (8, 24), (24,)], {"num_heads": 2}),
    ("Attention", [(2, 3, 8), (8, 20), (20,)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    ("MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 12)], {"num_heads": 2}),
    ("MultiHeadAttention", [(2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {"num_heads": 2}),
]


@pytest.mark.parametrize(("op", "dims", "attributes"), MICROSOFT_CASES)
def test_microsoft_operators(tmp_path: Path, op: str, dims: list[tuple[int, ...]], attributes: dict[str, object]) -> None:
    """onnxruntime's own operators have the shapes that it gives them."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is the oracle")
    names = [f"i{place}" for place in range(len(dims))]
    proto = model(
        [node(op, names, ["y"], domain="com.microsoft", **attributes)],
        dict(zip(names, dims, strict=True)),
        ["y"],
        domains=["com.microsoft"],
    )
    found = load(tmp_path, proto).tensor_shapes["y"]
    feeds = {name: np.ones(shape, np.float32) for name, shape in zip(names, dims, strict=True)}
    assert found == run_everything(proto, feeds, ["y"])["y"].shape


def test_packed_attention(tmp_path: Path) -> None:
    """Heads packed into the query, which onnxruntime's CPU kernels refuse: shapes by its operator documentation."""
    nodes = [
        node("MultiHeadAttention", ["qkv"], ["m"], domain="com.microsoft", num_heads=2),
        node(
            "GroupQueryAttention", ["packed", "", "", "", "", "", ""], ["g"], domain="com.microsoft", num_heads=4, kv_num_heads=1
        ),
    ]
    proto = model(nodes, {"qkv": (2, 3, 2, 3, 4), "packed": (2, 3, 48)}, ["m", "g"], domains=["com.microsoft"])
    shapes = load(tmp_path, proto).tensor_shapes
    assert (shapes["m"], shapes["g"]) == ((2, 3, 8), (2, 3, 32))
