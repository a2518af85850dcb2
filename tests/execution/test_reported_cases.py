"""Faults that users of runtimes reported, rebuilt small, cut, and compared with NumPy on the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_models
from in_process import run_split
from onnx import TensorProto, helper
from operator_cases import floats, signed, unsigned

node = helper.make_node


def test_a_zero_point_for_each_row(tmp_path: Path) -> None:
    """MatMulInteger's zero point of A may be a vector, which onnxruntime refuses: rows equal to their zero points give zeros."""
    zeros = np.array([3, 7, 250], np.uint8)
    constants = {"b": signed(4, 5), "az": zeros}
    path = small_models.save(
        tmp_path / "m.onnx",
        [node("MatMulInteger", ["a", "b", "az"], ["y"])],
        {"a": (TensorProto.UINT8, [3, 4])},
        ["y"],
        constants,
    )
    feeds = {"a": np.repeat(zeros[:, None], 4, axis=1)}
    for seed in range(3):
        _, result = run_split(path, feeds, seed=seed)
        assert not result.outputs["y"].any()
    feeds["a"] = unsigned(3, 4)
    wanted = (feeds["a"].astype(int) - zeros[:, None].astype(int)) @ constants["b"].astype(int)
    np.testing.assert_array_equal(run_split(path, feeds)[1].outputs["y"], wanted)


def test_scales_of_columns_in_a_stack_of_matrices(tmp_path: Path) -> None:
    """QLinearMatMul of [2, 3, 4] by [2, 4, 5] with scales and zero points [2, 1, 5]: a cut of N or of the batch cuts them too."""
    constants = {
        "s": np.float32(0.1), "z": np.uint8(3), "b": unsigned(2, 4, 5), "bs": np.linspace(0.01, 0.1, 10,
        dtype=np.float32).reshape(2, 1, 5),
        "bz": unsigned(2, 1, 5), "ys": np.float32(0.3), "yz": np.uint8(2),
    }  # fmt: skip
    inputs = {"a": (TensorProto.UINT8, [2, 3, 4])}
    nodes = [node("QLinearMatMul", ["a", "s", "z", "b", "bs", "bz", "ys", "yz"], ["y"])]
    path = small_models.save(tmp_path / "m.onnx", nodes, inputs, ["y"], {name: np.asarray(c) for name, c in constants.items()})
    a = unsigned(2, 3, 4)
    sums = (a.astype(int) - 3) @ (constants["b"].astype(int) - constants["bz"].astype(int))
    scale = (np.float32(0.1) * constants["bs"]) / np.float32(0.3)
    wanted = np.clip(np.rint(sums.astype(np.float32) * scale) + 2, 0, 255)
    for seed in range(4):
        np.testing.assert_array_equal(run_split(path, {"a": a}, seed=seed)[1].outputs["y"], wanted)


def test_no_saturation_in_between(tmp_path: Path) -> None:
    """Pairs of products beyond 16 bits, which some processors cut off: the int32 result is NumPy's."""
    a, b = np.full((3, 64), 255, np.uint8), np.full((64, 3), 127, np.int8)
    b[::3] = -128
    path = small_models.save(
        tmp_path / "m.onnx", [node("MatMulInteger", ["a", "b"], ["y"])], {"a": (TensorProto.UINT8, [3, 64])}, ["y"], {"b": b}
    )
    np.testing.assert_array_equal(run_split(path, {"a": a})[1].outputs["y"], a.astype(int) @ b.astype(int))


def test_automatic_padding_of_a_transposed_convolution(tmp_path: Path) -> None:
    """SAME_UPPER gives input * stride; the surplus of one is taken off at the end."""
    x, w = floats(1, 2, 3, 3), floats(2, 1, 3, 3)
    path = small_models.save(
        tmp_path / "m.onnx", [node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])],
        {"x": (TensorProto.FLOAT, [1, 2, 3, 3])}, ["y"], {"w": w},
    )  # fmt: skip
    whole = np.zeros((1, 1, 7, 7))
    for i, j in np.ndindex(3, 3):
        whole[0, 0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("c,cab->ab", x[0, :, i, j], w[:, 0])
    result = run_split(path, {"x": x})[1].outputs["y"]
    assert result.shape == (1, 1, 6, 6)
    np.testing.assert_allclose(result, whole[..., :6, :6], atol=1e-5)


@pytest.mark.parametrize("bias", [(5,), (1, 5), (3, 1), (3, 5), ()])
def test_every_form_of_a_bias(tmp_path: Path, bias: tuple[int, ...]) -> None:
    """However Gemm's C broadcasts, tiles of rows, columns and K give the whole."""
    a, b, c = floats(3, 4), floats(4, 5), floats(*bias)
    path = small_models.save(
        tmp_path / "m.onnx", [node("Gemm", ["a", "b", "c"], ["y"])], {"a": (TensorProto.FLOAT, [3, 4])}, ["y"],
        {"b": b, "c": np.asarray(c, np.float32)},
    )  # fmt: skip
    for seed in range(3):
        np.testing.assert_allclose(run_split(path, {"a": a}, seed=seed)[1].outputs["y"], a @ b + c, atol=1e-5)
