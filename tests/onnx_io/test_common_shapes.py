"""Our own rules for common operators against onnx's backend node tests and against onnx's inference."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from cleave_plan.onnx_io.arithmetic import VALUE_RULES, plain_fact
from cleave_plan.onnx_io.arity import least_inputs
from cleave_plan.onnx_io.common_shapes import COMMON_RULES, FIRST_OPSET
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.inference import InferenceFailedError, NodeInference
from cleave_plan.onnx_io.shape_rules import MOST_INPUTS, SHAPE_RULES

node = helper.make_node
INTEGER_TESTS = 40
"""Node tests, at the least, whose values our rules compute."""


def cases() -> Iterator[tuple[onnx.NodeProto, list[Any], list[Any]]]:
    """The node, inputs and outputs of each backend test with a single node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for test in tests:
        graph = test.model.graph
        opset = {entry.domain: entry.version for entry in test.model.opset_import}.get("", 0)
        if len(graph.node) != 1 or graph.node[0].domain or opset < FIRST_OPSET:
            continue
        for given_, wanted in test.data_sets:
            arrays = [numpy_helper.to_array(item) if isinstance(item, TensorProto) else item for item in (*given_, *wanted)]
            if all(isinstance(item, np.ndarray) for item in arrays):
                names = iter(arrays[: len(given_)])
                yield graph.node[0], [next(names) if name else None for name in graph.node[0].input], arrays[len(given_) :]


def fact(array: np.ndarray | None) -> Fact:
    """All that can be known of an array."""
    if array is None:
        return UNKNOWN
    return Fact(elem=helper.np_dtype_to_tensor_dtype(array.dtype), shape=array.shape, value=array)


@pytest.mark.long
def test_common_rules_agree_with_the_node_tests() -> None:
    """Shape and type are those of the expected output, for every test that a rule covers, and most are covered."""
    covered: Counter[bool] = Counter()
    for proto, inputs, outputs in cases():
        rule = COMMON_RULES.get(proto.op_type)
        if rule is None:
            continue
        facts = [fact(array) for array in inputs]
        found = rule(proto, facts + [UNKNOWN] * (MOST_INPUTS - len(facts)))
        covered[found is not None] += 1
        if found is not None:
            got = [(item.shape, item.elem) for item, name in zip(found, proto.output, strict=True) if name]
            wanted = [(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype)) for array in outputs]
            assert got == wanted, proto
    assert covered[True] > 8 * covered[False], covered


@pytest.mark.long
def test_value_rules_agree_with_the_node_tests() -> None:
    """Values of plain types are the expected ones."""
    number = 0
    for proto, inputs, outputs in cases():
        if proto.op_type in VALUE_RULES and len(proto.input) < MOST_INPUTS:
            found = plain_fact(proto, inputs)
            if found is not None:
                number += 1
                np.testing.assert_allclose(found.value, outputs[0], rtol=1e-6, err_msg=str(proto))
                assert found.value is not None
                assert found.value.dtype == outputs[0].dtype
    assert number >= INTEGER_TESTS


SIZES = st.lists(st.one_of(st.integers(0, 4), st.just("n"), st.just("m"), st.none()), max_size=4).map(tuple)
AXIS = st.integers(-4, 4)


@st.composite
def questions(draw: st.DrawFn) -> tuple[onnx.NodeProto, list[Fact]]:
    """A node of a common operator on inputs that may or may not fit it."""

    def floats() -> Fact:
        return Fact(elem=TensorProto.FLOAT, shape=draw(SIZES))

    def ints(low: int = -4, high: int = 5, most: int = 3) -> Fact:
        return fact(np.array(draw(st.lists(st.integers(low, high), min_size=1, max_size=most)), np.int64))

    op = draw(st.sampled_from(["Add", "Where", "MatMul", "Gemm", "Concat", "Slice", "Gather", "Unsqueeze", "Squeeze", "Flatten",
                               "Transpose", "Split", "ReduceSum", "Softmax", "GlobalAveragePool", "Pad",
                               "GatherElements", "GatherND"]))  # fmt: skip
    if op in ("Add", "MatMul", "Gemm"):
        flags = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))} if op == "Gemm" else {}
        return node(op, ["a", "b"], ["y"], **flags), [floats(), floats()]
    if op == "Where":
        return node(op, ["c", "a", "b"], ["y"]), [Fact(elem=TensorProto.BOOL, shape=draw(SIZES)), floats(), floats()]
    if op in ("Concat", "Gather", "GatherElements", "GatherND"):
        second = floats() if op == "Concat" else Fact(elem=TensorProto.INT64, shape=draw(SIZES))
        where = {"batch_dims": draw(st.integers(0, 2))} if op == "GatherND" else {"axis": draw(AXIS)}
        return node(op, ["a", "b"], ["y"], **where), [floats(), second]
    if op == "Squeeze" and draw(st.booleans()):
        return node(op, ["a"], ["y"]), [floats()]
    if op == "Slice":
        names = ["a", "s", "e", "x", "t"][: draw(st.integers(3, 5))]
        return node(op, names, ["y"]), [floats(), *(ints() for _ in names[1:])]
    if op == "Split":
        return node(op, ["a", "s"], ["y", "z"], axis=draw(AXIS)), [floats(), ints(0, 3)]
    if op in ("Unsqueeze", "Squeeze", "ReduceSum", "Pad"):
        flags = {"keepdims": draw(st.integers(0, 1))} if op == "ReduceSum" else {}
        return node(op, ["a", "x"], ["y"], **flags), [floats(), ints(most=8 if op == "Pad" else 3)]
    attributes: dict[str, Any] = {"axis": draw(AXIS)} if op in ("Flatten", "Softmax") else {}
    if op == "Transpose":
        attributes = {"perm": draw(st.permutations(range(draw(st.integers(1, 4)))))}
    return node(op, ["a"], ["y"], **attributes), [floats()]


@given(questions())
def test_common_rules_contradict_onnx_nowhere(asked: tuple[onnx.NodeProto, list[Fact]]) -> None:
    """What a rule says of a node, onnx's inference says too, or says nothing of; what onnx refuses, no rule accepts."""
    proto, facts = asked
    found = COMMON_RULES[proto.op_type](proto, facts + [UNKNOWN] * (MOST_INPUTS - len(facts)))
    if found is None:
        return
    try:
        wanted = NodeInference({"": 17}).outputs(proto, "", facts)
    except InferenceFailedError as error:
        raise AssertionError(f"onnx refuses {proto} on {facts}") from error
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.elem == theirs.elem
        if theirs.shape is not None and mine.shape is not None:
            assert len(mine.shape) == len(theirs.shape)
            for size, other in zip(mine.shape, theirs.shape, strict=True):
                assert other is None or size == other


def test_least_inputs_are_those_of_the_register() -> None:
    """Numbers of inputs that are written down here are those that onnx defines, in every operator set from 7 on."""
    covered = set(COMMON_RULES) | {op for domain, op in SHAPE_RULES if not domain}
    for op in sorted(covered):
        for opset in range(7, onnx.defs.onnx_opset_version() + 1):
            try:
                schema = onnx.defs.get_schema(op, opset, "")
            except onnx.defs.SchemaError:
                continue
            assert least_inputs(op, opset) == schema.min_input, (op, opset)
    assert least_inputs("Unheard", 20) is None


@st.composite
def sums(draw: st.DrawFn) -> tuple[onnx.NodeProto, list[Any]]:
    """A node that computes with whole numbers or moves them, with inputs that fit it or nearly."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    data = np.array(draw(st.lists(st.integers(-9, 9), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), np.int64)
    data = data.reshape(shape)
    op = draw(st.sampled_from(["CumSum", "Expand", "GatherElements", "GatherND", "Not", "Squeeze"]))
    if op == "CumSum":
        flags = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        return node(op, ["a", "x"], ["y"], **flags), [data, np.int64(draw(st.integers(-len(shape), len(shape) - 1)))]
    if op == "Expand":
        return node(op, ["a", "s"], ["y"]), [data, np.array(draw(st.lists(st.integers(1, 3), max_size=4)), np.int64)]
    if op == "GatherElements":
        axis = draw(
            st.integers(0, len(shape) - 1)
        )  # the reference refuses an axis counted from the end, which the standard allows
        last, picked = shape[axis], list(shape)
        picked[axis] = draw(st.integers(1, 4))
        places = draw(st.lists(st.integers(-last, last - 1), min_size=int(np.prod(picked)), max_size=int(np.prod(picked))))
        return node(op, ["a", "p"], ["y"], axis=axis), [data, np.array(places, np.int64).reshape(picked)]
    if op == "GatherND":
        deep, rows = draw(st.integers(1, len(shape))), draw(st.integers(1, 3))
        places = [[draw(st.integers(-size, size - 1)) for size in shape[:deep]] for _ in range(rows)]
        return node(op, ["a", "p"], ["y"]), [data, np.array(places, np.int64)]
    return node(op, ["a"], ["y"]), [data > 0 if op == "Not" else data]


@given(sums())
def test_value_rules_agree_with_the_reference(asked: tuple[onnx.NodeProto, list[Any]]) -> None:
    """Values are those of onnx's reference implementation; what that refuses, no rule computes."""
    proto, inputs = asked
    names = [value for value in proto.input if value]
    graph = helper.make_graph(
        [proto], "g", [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                       for name, value in zip(names, inputs, strict=True)],
        [onnx.ValueInfoProto(name="y")],
    )  # fmt: skip
    found = plain_fact(proto, [np.asarray(value) for value in inputs])
    try:
        wanted = ReferenceEvaluator(graph, opsets={"": 17}).run(None, dict(zip(names, inputs, strict=True)))[0]
    except ValueError:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found.value, wanted)
