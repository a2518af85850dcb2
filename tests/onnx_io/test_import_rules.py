"""The GEMMs of fused, recurrent and quantised operators: counts by hand, element types, names, and what stays whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.expansion import expansion_of
from cleave_plan.onnx_io.facts import Fact, ShapeContradictionError
from cleave_plan.onnx_io.operators import FUSED, RULES, operator_of, rule_of
from cleave_plan.workload.gemm import Gemm, GemmShape, Role

from import_cases import load, model, value  # isort: skip

node = helper.make_node
FLOAT, BYTE, SIGNED = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8
MICROSOFT = "com.microsoft"
NUMBERS = (
    "num_heads", "kv_num_heads", "q_num_heads", "group", "K", "N", "bits", "block_size", "transA", "transB", "transBatchA",
    "layout",
    "hidden_size", "offset_group", "do_rotary", "unidirectional", "is_causal",
)  # fmt: skip
LISTS = ("strides", "dilations", "pads", "output_shape", "output_padding", "qkv_hidden_sizes")


def gemms(
    folder: Path, op: str, inputs: dict[str, tuple[int, tuple[int, ...]]], outputs: int = 1, **attributes: Any
) -> list[Gemm]:
    """What is found in one node named "n", whose inputs are (element type, shape); "-x" is an absent one."""
    names = ["" if name.startswith("-") else name for name in inputs]
    given_ = [value(name, shape, elem) for name, (elem, shape) in inputs.items() if name in names]
    domain, opset = attributes.pop("domain", ""), attributes.pop("opset", 21)
    made = node(op, names, [f"y{place or ''}" for place in range(outputs)], name="n", domain=domain, **attributes)
    proto = model([made], given_, ["y"], domains=[domain] if domain else [], opset=opset)
    imported = load(folder, proto)
    assert not imported.workload.unrecognised
    return list(imported.workload.gemms)


def summary(found: list[Gemm]) -> list[tuple[str, tuple[int, ...], int, bool]]:
    """Name, (batch, m, k, n), repeats, and whether it is pinned."""
    return [(gemm.name, tuple(gemm.shape), gemm.repeats, bool(gemm.pinned)) for gemm in found]


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_recurrent_layers(tmp_path: Path, op: str, gates: int, layout: int, direction: str) -> None:
    """MACs = steps * batch * gates * H * (I + H) for each direction: the input at once, the state step by step."""
    d, steps, batch, size, hidden = (2 if direction == "bidirectional" else 1), 7, 3, 5, 4
    x = (batch, steps, size) if layout else (steps, batch, size)
    inputs = {"x": (FLOAT, x), "w": (FLOAT, (d, gates * hidden, size)), "r": (FLOAT, (d, gates * hidden, hidden))}
    found = gemms(tmp_path, op, inputs, direction=direction, hidden_size=hidden, layout=layout)
    assert summary(found) == [
        ("n/input", (1, steps * batch, size, d * gates * hidden), 1, False),
        ("n/recurrent", (d, batch, hidden, gates * hidden), steps, True),
    ]
    assert sum(gemm.macs for gemm in found) == d * steps * batch * gates * hidden * (size + hidden)
    assert [(gemm.node, gemm.op, gemm.level) for gemm in found] == [("n", op, 0), ("n", op, 1)]


def test_attention_of_onnx_folds_groups(tmp_path: Path) -> None:
    """Query heads that share a key head are rows of one product, so that the key head is one operand of it."""
    inputs = {"q": (FLOAT, (2, 6, 5, 8)), "k": (FLOAT, (2, 3, 7, 8)), "v": (FLOAT, (2, 3, 7, 9))}
    found = gemms(tmp_path, "Attention", inputs, opset=23)
    assert summary(found) == [("n/scores", (6, 10, 8, 7), 1, False), ("n/context", (6, 10, 7, 9), 1, False)]
    assert [gemm.level for gemm in found] == [0, 1]


def test_attention_with_projections(tmp_path: Path) -> None:
    """Attention and QAttention of onnxruntime: q, k and v are one GEMM; a past lengthens the keys."""
    inputs = {
        "x": (FLOAT, (2, 5, 8)), "w": (FLOAT, (8, 24)), "b": (FLOAT, (24,)), "-m": (0, ()), "p": (FLOAT, (2, 2, 4, 3, 2)),
    }  # fmt: skip
    found = gemms(tmp_path, "Attention", inputs, 2, domain=MICROSOFT, num_heads=4)
    assert summary(found) == [
        ("n/qkv", (1, 10, 8, 24), 1, False), ("n/scores", (8, 5, 2, 8), 1, False), ("n/context", (8, 5, 8, 2), 1, False),
    ]  # fmt: skip
    quantised = {"x": (BYTE, (2, 5, 8)), "w": (SIGNED, (8, 24)), "b": (FLOAT, (24,)), "s": (FLOAT, ()), "t": (FLOAT, ())}
    first = gemms(tmp_path, "QAttention", quantised, domain=MICROSOFT, num_heads=4)[0]
    assert (first.a.dtype, first.b.dtype, first.out_dtype) == (DType.UINT8, DType.INT8, DType.INT32)


def test_multi_head_and_grouped_attention(tmp_path: Path) -> None:
    """Packed operands too, for which onnxruntime's CPU has no kernel."""
    packed = gemms(tmp_path, "MultiHeadAttention", {"q": (FLOAT, (2, 5, 4, 3, 2))}, domain=MICROSOFT, num_heads=4)
    assert summary(packed) == [("n/scores", (8, 5, 2, 5), 1, False), ("n/context", (8, 5, 5, 2), 1, False)]
    inputs = {
        "q": (FLOAT, (2, 5, 32)), "k": (FLOAT, (2, 5, 8)), "v": (FLOAT, (2, 5, 8)), "-a": (0, ()), "-b": (0, ()),
        "l": (TensorProto.INT32, (2,)), "t": (TensorProto.INT32, ()),
    }  # fmt: skip
    found = gemms(tmp_path, "GroupQueryAttention", inputs, domain=MICROSOFT, num_heads=8, kv_num_heads=2)
    assert summary(found) == [("n/scores", (4, 20, 4, 5), 1, False), ("n/context", (4, 20, 5, 4), 1, False)]


def test_what_is_not_expanded_is_counted_and_pinned(tmp_path: Path) -> None:
    """An attention whose past and present share a buffer runs whole, with the same products."""
    inputs = {"x": (FLOAT, (2, 5, 8)), "w": (FLOAT, (8, 24)), "b": (FLOAT, (24,))}
    spread = gemms(tmp_path, "Attention", inputs, domain=MICROSOFT, num_heads=4)
    whole = gemms(tmp_path, "Attention", inputs, domain=MICROSOFT, num_heads=4, do_rotary=1)
    assert [gemm.shape for gemm in whole] == [gemm.shape for gemm in spread]
    assert {(gemm.pinned, gemm.level) for gemm in whole} == {("part of its attention", 0)}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 3), groups=st.integers(1, 3), shared=st.integers(1, 3), queries=st.integers(1, 4),
    keys=st.integers(1, 4),
    size=st.integers(1, 4), flat=st.booleans(),
)  # fmt: skip
def test_an_expansion_counts_what_its_rule_counts(
    tmp_path: Path, batch: int, groups: int, shared: int, queries: int, keys: int, size: int, flat: bool
) -> None:
    """The GEMMs of the nodes that a fused node stands for are those that are counted where it cannot be expanded."""
    heads = groups * shared
    q, k = (batch, heads, queries, size), (batch, groups, keys, size)
    attributes = {"q_num_heads": heads, "kv_num_heads": groups} if flat else {}
    if flat:
        q, k = (batch, queries, heads * size), (batch, keys, groups * size)
    found = gemms(tmp_path, "Attention", {"q": (FLOAT, q), "k": (FLOAT, k), "v": (FLOAT, k)}, opset=23, **attributes)
    made = node("Attention", ["q", "k", "v"], ["y"], **attributes)
    operator = operator_of(made)
    assert operator is not None
    assert [gemm.shape for gemm in found] == [form.shape for form in operator.forms(made, [q, k, k])]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "shape", "types"),
    [
        ("MatMulInteger", {"a": (BYTE, (2, 3, 4)), "b": (SIGNED, (4, 5))}, {}, (1, 6, 4, 5), ("uint8", "int8", "int32")),
        ("ConvInteger", {"a": (BYTE, (2, 4, 5, 5)), "b": (BYTE, (6, 2, 3, 3))}, {"group": 2}, (2, 18, 18, 3), ("uint8",
        "uint8", "int32")),
        (
            "QLinearMatMul",
            {"a": (BYTE, (3, 4)), "s": (FLOAT, ()), "z": (BYTE, ()), "b": (SIGNED, (4, 5)), "t": (FLOAT, (5,)),
            "w": (SIGNED, (5,)),
             "u": (FLOAT, ()), "v": (BYTE, ())},
            {}, (1, 3, 4, 5), ("uint8", "int8", "uint8"),
        ),
        (
            "QLinearConv",
            {"a": (BYTE, (1, 3, 5, 5)), "s": (FLOAT, ()), "z": (BYTE, ()), "b": (SIGNED, (6, 3, 3, 3)), "t": (FLOAT, (6,)),
            "w": (SIGNED, (6,)),
             "u": (FLOAT, ()), "v": (BYTE, ())},
            {"pads": [1, 1, 1, 1]}, (1, 25, 27, 6), ("uint8", "int8", "uint8"),
        ),
        ("ConvTranspose", {"a": (FLOAT, (2, 4, 3, 5)), "b": (FLOAT, (4, 3, 2, 2))}, {"group": 2}, (2, 30, 2, 12),
        ("float32",) * 3),
        ("Einsum", {"a": (FLOAT, (2, 3, 4)), "b": (FLOAT, (2, 5, 4))}, {"equation": "bik,bjk->bji"}, (2, 3, 4, 5),
        ("float32",) * 3),
        (
            "DynamicQuantizeMatMul", {"a": (FLOAT, (3, 4)), "b": (SIGNED, (4, 5)), "s": (FLOAT, (5,))},
            {"domain": MICROSOFT}, (1, 3, 4, 5),
            ("uint8", "int8", "float32"),
        ),
        (
            "MatMulNBits", {"a": (FLOAT, (3, 64)), "b": (BYTE, (32, 2, 16)), "s": (FLOAT, (64,))},
            {"domain": MICROSOFT, "K": 64, "N": 32, "bits": 4, "block_size": 32}, (1, 3, 64, 32), ("float32", "uint4",
            "float32"),
        ),
    ],
)  # fmt: skip
def test_one_product(
    tmp_path: Path, op: str, inputs: dict[str, Any], attributes: dict[str, Any], shape: tuple[int, ...], types: tuple[str, ...]
) -> None:
    """Operators with one GEMM: its shape, and the element types that travel."""
    (found,) = gemms(tmp_path, op, inputs, **attributes)
    assert (found.name, found.op, found.pinned) == ("n", op, "")
    assert tuple(found.shape) == shape
    assert (found.a.dtype.value, found.b.dtype.value, found.out_dtype.value) == types


def test_scales_of_packed_weights_have_a_price(tmp_path: Path) -> None:
    """A float32 scale for each block of 32 codes is one more bit for each of 4."""
    inputs = {"a": (FLOAT, (3, 64)), "b": (BYTE, (32, 2, 16)), "s": (FLOAT, (64,))}
    (found,) = gemms(tmp_path, "MatMulNBits", inputs, domain=MICROSOFT, K=64, N=32, bits=4, block_size=32)
    assert (found.b.bits, found.b_bytes) == (5.0, 64 * 32 * 5 // 8)


def test_chains_of_einsum(tmp_path: Path) -> None:
    """Three operands are two products, the cheaper order first; one operand has none."""
    inputs = {"a": (FLOAT, (30, 4)), "b": (FLOAT, (4, 50)), "c": (FLOAT, (50, 2))}
    found = gemms(tmp_path, "Einsum", inputs, equation="ij,jk,kl->il")
    assert summary(found) == [("n/product1", (1, 4, 50, 2), 1, False), ("n/product2", (1, 30, 4, 2), 1, False)]
    assert gemms(tmp_path, "Einsum", {"a": (FLOAT, (3, 4))}, equation="ij->ji") == []


def test_products_in_a_branch_are_the_server_s(tmp_path: Path) -> None:
    """Fused nodes inside subgraphs are counted whole and pinned."""
    body = helper.make_graph(
        [node("LSTM", ["x", "w", "r"], ["inner"], hidden_size=4, name="lstm")], "then", [], [value("inner", (7, 1, 3, 4))]
    )
    other = helper.make_graph(
        [node("LSTM", ["x", "r", "r"], ["inner2"], hidden_size=4, name="lstm2")], "else", [], [value("inner2", (7, 1, 3, 4))]
    )
    inputs = [value("x", (7, 3, 4)), value("w", (1, 16, 4)), value("r", (1, 16, 4)), value("c", (), TensorProto.BOOL)]
    workload = load(tmp_path, model([node("If", ["c"], ["y"], then_branch=body, else_branch=other)], inputs, ["y"])).workload
    assert workload.gemm_macs == 7 * 3 * 16 * 8
    assert all(gemm.pinned for gemm in workload.gemms)


@pytest.mark.parametrize(
    ("op", "domain", "shapes", "attributes"),
    [
        ("LSTM", "", [(7, 3, 5), (1, 16, 4), (1, 16, 4)], {}),
        ("ConvTranspose", "", [(1, 4, 5), (3, 2, 3)], {}),
        ("Einsum", "", [(2, 3), (4, 5)], {"equation": "ij,jk->ik"}),
        ("Einsum", "", [(2, 3)], {"equation": "ij,jk->ik"}),
        ("Attention", "", [(2, 6, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)], {}),
        ("Attention", MICROSOFT, [(2, 5, 8), (8, 25)], {"num_heads": 4}),
        ("MatMulNBits", MICROSOFT, [(3, 60)], {"K": 64, "N": 32}),
        ("QGemm", MICROSOFT, [(3, 4), None, None, (5, 6)], {}),
        ("GroupQueryAttention", MICROSOFT, [(2, 5, 30)], {"num_heads": 8, "kv_num_heads": 3}),
    ],
)
def test_operands_that_do_not_fit(op: str, domain: str, shapes: list[tuple[int, ...] | None], attributes: dict[str, Any]) -> None:
    """A rule says so, rather than count something."""
    made = node(op, [f"i{place}" for place in range(len(shapes))], ["y"], domain=domain, **attributes)
    operator = operator_of(made)
    assert operator is not None
    with pytest.raises(ShapeContradictionError):
        operator.forms(made, shapes)


def test_a_contradiction_names_the_node(tmp_path: Path) -> None:
    """In a file it is an error of the file."""
    with pytest.raises(InputFileError, match="node 'n'"):
        gemms(
            tmp_path, "QGemm", {"a": (BYTE, (3, 4)), "s": (FLOAT, ()), "z": (BYTE, ()), "b": (SIGNED, (5, 6))}, domain=MICROSOFT
        )


def test_rules_are_complete() -> None:
    """Each operator can be computed in tiles, is spread over nodes that can, or is only ever part of another."""
    whole_only = {(MICROSOFT, "MatMulBnb4"), ("cleave_plan", "Recurrence")}
    for key in RULES:
        operator = rule_of(key)
        assert operator is not None
        assert operator.lower or operator.expand or key in whole_only, key
        assert (operator.expand is not None) == (key in FUSED), key


def test_weights_behind_a_transpose_stay_weights(tmp_path: Path) -> None:
    """The columns of a recurrent layer's input product are a parameter, although a node turns them."""
    proto = model(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4, name="n")], {"x": (7, 3, 5)}, ["y"],
        {"w": np.ones((1, 16, 5), np.float32), "r": np.ones((1, 16, 4), np.float32)},
    )  # fmt: skip
    first, second = load(tmp_path, proto).workload.gemms
    assert (first.a.role, first.b.role, second.b.role) == (Role.ACTIVATION, Role.PARAMETER, Role.PARAMETER)
    assert first.shape == GemmShape(1, 21, 5, 16)


@settings(max_examples=400, deadline=None)
@given(
    key=st.sampled_from(sorted(RULES)), shapes=st.lists(st.lists(st.integers(0, 4), max_size=5).map(tuple), min_size=1,
    max_size=12),
    numbers=st.dictionaries(st.sampled_from(NUMBERS), st.integers(-2, 4)), lists=st.dictionaries(st.sampled_from(LISTS),
    st.lists(st.integers(-1, 3), max_size=4)),
    equation=st.text("ij.k,->", max_size=10),
)  # fmt: skip
def test_impossible_operands_are_told(
    key: tuple[str, str], shapes: list[tuple[int, ...]], numbers: dict[str, int], lists: dict[str, list[int]], equation: str
) -> None:
    """Whatever shapes and attributes a damaged file has, a rule counts them or says that they do not fit; expansions too."""
    domain, op = key
    attributes: dict[str, Any] = {**numbers, **{name: items for name, items in lists.items() if items}}
    names = [f"i{place}" for place in range(len(shapes))]
    made = node(op, names, ["y", "y1", "y2", "y3"], domain=domain, equation=equation, **attributes)
    operator = rule_of(key)
    assert operator is not None
    try:
        forms = operator.forms(made, shapes)
    except ShapeContradictionError:
        forms = ()
    assert all(min(form.shape) >= 0 for form in forms)
    if operator.expand is not None:
        facts = {name: Fact(elem=FLOAT, shape=shape) for name, shape in zip(names, shapes, strict=True)}
        build = expansion_of(made, "n", facts, opset=21)
        assert build is None or build.nodes
