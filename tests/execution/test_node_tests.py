"""onnx's own backend node tests of every operator with matrix work, cut at random over three devices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_process import run_split
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from cleave_plan.onnx_io.attributes import subgraphs
from cleave_plan.workload.graph import Workload

FAMILIES = {
    "MatMul": 120, "Attention": 90, "Conv": 15, "ConvTranspose": 11, "Gemm": 11, "Einsum": 9, "QLinearMatMul": 8, "GRU": 6,
    "LSTM": 6,
    "RNN": 6, "DeformConv": 4, "ConvInteger": 2, "MatMulInteger": 1, "QLinearConv": 1,
    "LinearAttention": 14, "CausalConvWithState": 13, "FlexAttention": 11,
}  # fmt: skip
"""Operators, and how many node tests with each there are at the least."""

WITHOUT_WORK = {"QuantizeLinear": 16, "DequantizeLinear": 14, "DynamicQuantizeLinear": 3}
"""The same of operators that only change the type of what products take and give: they run on the server."""

ONE, VALUES = "one operand", "its sizes are the values of an input"
WITHOUT_SPLIT = {
    "test_einsum_transpose": ONE, "test_einsum_sum": ONE, "test_einsum_batch_diagonal": ONE, "test_einsum_scalar": ONE,
    "test_einsum_sum_bfloat16": ONE, "test_einsum_transpose_bfloat16": ONE,
    "test_affine_grid_2d_expanded": VALUES, "test_affine_grid_2d_align_corners_expanded": VALUES,
    "test_affine_grid_3d_expanded": VALUES, "test_affine_grid_3d_align_corners_expanded": VALUES,
}  # fmt: skip
"""Tests without a product that is known before the run."""

TOLERANCE = {"bfloat16": 1e-2, "float16": 1e-2}


@cache
def node_tests() -> dict[str, list[Any]]:
    """The tests by operator; one with several operators stands under each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    found: dict[str, list[Any]] = {family: [] for family in (*FAMILIES, *WITHOUT_WORK)}
    for test in tests:
        for op in {*operators(test.model.graph.node)} & found.keys():
            found[op].append(test)
    return found


def operators(nodes: Any) -> Iterator[str]:
    """Operators of nodes and of their subgraphs."""
    for node in nodes:
        yield node.op_type
        for graph in subgraphs(node):
            yield from operators(graph.node)


def array(value: Any) -> Any:
    """A value of a test as it is fed."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def assert_close(got: Any, wanted: np.ndarray, test: Any) -> None:
    """Same type and shape; integers equal, floats within the test's tolerance (or that of half precision)."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
        return
    tolerance = max(test.rtol, TOLERANCE.get(wanted.dtype.name, 1e-4))
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


def run_test(tmp_path: Path, test: Any) -> tuple[Workload, int]:
    """Run a test over three devices and compare its outputs: what was imported, and the number of tiles that devices computed."""
    path = tmp_path / f"{test.name}.onnx"
    onnx.save(test.model, path)
    tiles = 0
    for number, (given, wanted) in enumerate(test.data_sets):
        feeds = {value.name: array(item) for value, item in zip(test.model.graph.input, given, strict=False)}
        imported, result = run_split(path, feeds, seed=number, devices=3)
        tiles += result.tiles_run
        for value, item in zip(test.model.graph.output, wanted, strict=True):
            assert_close(result.outputs[value.name], array(item), test)
    return imported.workload, tiles


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_node_tests(tmp_path: Path, family: str) -> None:
    """Each gives its expected output, and has a product that devices compute unless the table says why not."""
    tests = node_tests()[family]
    assert len(tests) >= FAMILIES[family]
    for test in tests:
        workload, tiles = run_test(tmp_path, test)
        assert tiles or test.name in WITHOUT_SPLIT, test.name
        assert not workload.unrecognised or test.name in WITHOUT_SPLIT, test.name


@pytest.mark.parametrize("family", WITHOUT_WORK)
@pytest.mark.filterwarnings("ignore")
def test_node_tests_without_products(tmp_path: Path, family: str) -> None:
    """Each gives its expected output; no work of it is counted, and none is suspected."""
    tests = node_tests()[family]
    assert len(tests) >= WITHOUT_WORK[family]
    for test in tests:
        workload, tiles = run_test(tmp_path, test)
        assert (workload.gemms, workload.unrecognised, tiles) == ((), (), 0), test.name
