"""Every operator with a rule, cut at random along every axis, against onnxruntime on the whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from attention_cases import attention_cases, grouped_cases, multi_head_cases, pair_cases
from in_process import run_split
from operator_cases import (
    Case,
    convolution_cases,
    einsum_cases,
    fused_cases,
    integer_cases,
    packed_cases,
    recurrent_cases,
)

pytest.importorskip("onnxruntime", reason="the oracle of these tests is onnxruntime")

CASES = list(
    itertools.chain(
        fused_cases(), convolution_cases(), einsum_cases(), integer_cases(), packed_cases(), recurrent_cases(), attention_cases(),
        multi_head_cases(), grouped_cases(), pair_cases(),
    )
)  # fmt: skip


def assert_agrees(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Same type and shape; integers equal, floats within ``tolerance``."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
    else:
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.nodes[-1].op_type}-{case.name}")
def test_split_equals_whole(tmp_path: Path, case: Case) -> None:
    """Rows, columns, batch and K are cut three ways; integers come out bit for bit, quantised results among them."""
    path = case.save(tmp_path / "case.onnx")
    wanted = case.wanted(path)
    for seed in range(3):
        imported, result = run_split(path, case.inputs(), seed=seed)
        assert result.tiles_run > 0
        assert not imported.workload.unrecognised
        for name, value in zip(case.outputs, wanted, strict=True):
            assert_agrees(result.outputs[name], value, case.tolerance)


@pytest.mark.parametrize("case", list(pair_cases()), ids=lambda case: case.name)
def test_pairs_without_onnxruntime(tmp_path: Path, case: Case) -> None:
    """The operators of our own that quantised pairs become also run whole, on the server, in NumPy."""
    path = case.save(tmp_path / "case.onnx")
    wanted = case.wanted(path)
    _, result = run_split(path, case.inputs(), cuts=0, runtime="reference")
    for name, value in zip(case.outputs, wanted, strict=True):
        assert_agrees(result.outputs[name], value, case.tolerance)
