"""Which products between DequantizeLinear and QuantizeLinear become quantised ones, and which stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.workload.gemm import Role

from import_cases import load, model, value  # isort: skip

node = helper.make_node


def pair_model(
    folder: Path, *, kind: Any = np.int8, scale: tuple[int, ...] = (), axis: int = 1, back: bool = True, depth: int = 4,
    outputs: Any = ("y",),
    extra: tuple[Any, ...] = (), left: int = TensorProto.UINT8, **options: Any,
) -> ImportedModel:  # fmt: skip
    """x [3, depth] quantised, times weights [depth, 5]; quantised again (``back``)."""
    constants = {
        "s": np.float32(0.1), "z": np.zeros((), np.dtype("uint8") if left == TensorProto.UINT8 else np.dtype("int16")),
        "w": np.zeros((depth, 5), kind), "ws": np.full(scale, 0.1, np.float32), "ys": np.float32(0.1), "yz": np.uint8(3),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["xd"], name="dx"),
        node("DequantizeLinear", ["w", "ws"], ["wd"], name="dw", axis=axis, **options),
        node("MatMul", ["xd", "wd"], ["f"], name="product"),
        *([node("QuantizeLinear", ["f", "ys", "yz"], ["y"], name="q")] if back else []),
        *extra,
    ]
    return load(folder, model(nodes, [value("x", (3, depth), left)], outputs, constants, opset=21))


def operators(imported: ImportedModel) -> list[str]:
    """The server's operators by name."""
    return [operator.name for operator in imported.workload.server_operators]


def test_a_pair_is_one_quantised_product(tmp_path: Path) -> None:
    """Bytes travel both ways, under the name of the MatMul; nothing is left for the server."""
    imported = pair_model(tmp_path, scale=(5,))
    (gemm,) = imported.workload.gemms
    assert (gemm.name, gemm.op, gemm.node, gemm.output) == ("product", "MatMul", "product", "y")
    assert (gemm.a.dtype, gemm.b.dtype, gemm.out_dtype) == (DType.UINT8, DType.INT8, DType.UINT8)
    assert (gemm.a.tensor, gemm.b.tensor, gemm.b.role) == ("x", "w", Role.PARAMETER)
    assert operators(imported) == []


def test_a_result_that_stays_in_floating_point(tmp_path: Path) -> None:
    """Without QuantizeLinear the operands still travel as bytes."""
    (gemm,) = pair_model(tmp_path, back=False, outputs=("f",)).workload.gemms
    assert (gemm.a.dtype, gemm.b.dtype, gemm.out_dtype) == (DType.UINT8, DType.INT8, DType.FLOAT32)


def test_a_result_that_others_read_is_not_taken_in(tmp_path: Path) -> None:
    """The float result is wanted beside the quantised one."""
    for outputs, extra in ((("y", "f"), ()), (("y", "r"), (node("Relu", ["f"], ["r"], name="relu"),))):
        imported = pair_model(tmp_path, outputs=outputs, extra=extra)
        (gemm,) = imported.workload.gemms
        assert (gemm.output, gemm.out_dtype) == ("f", DType.FLOAT32)
        assert "q" in operators(imported)


def test_a_dequantised_tensor_that_others_read_is_kept(tmp_path: Path) -> None:
    """Its node stays for them."""
    imported = pair_model(tmp_path, outputs=("y", "r"), extra=(node("Relu", ["xd"], ["r"], name="relu"),))
    assert operators(imported) == ["dx", "relu"]
    assert imported.workload.gemms[0].a.dtype is DType.UINT8


@pytest.mark.parametrize(
    "case",
    [
        {"scale": (4,), "axis": 0},  # a scale for each position of K
        {"depth": 40_000},  # sums that int32 does not hold
        {"left": TensorProto.INT16},  # 16 bits on one side
    ],
    ids=["scales-along-K", "long-K", "16-bit"],
)
def test_what_stays_in_floating_point(tmp_path: Path, case: dict[str, Any]) -> None:
    """No integer arithmetic equals these: the server dequantises, and floats travel."""
    imported = pair_model(tmp_path, **case)
    (gemm,) = imported.workload.gemms
    assert gemm.a.dtype is DType.FLOAT32
    assert {"dx", "q"} <= set(operators(imported))


def test_weights_alone_dequantised(tmp_path: Path) -> None:
    """Codes travel as bytes, with a float32 scale for each block of two: 8 + 16 bits an element."""
    constants = {"w": np.zeros((4, 5), np.int8), "s": np.ones((2, 5), np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=2), node("MatMul", ["x", "d"], ["y"], name="product"),
    ]  # fmt: skip
    imported = load(tmp_path, model(nodes, {"x": (2, 3, 4)}, ["y"], constants, opset=21))
    (gemm,) = imported.workload.gemms
    assert (tuple(gemm.shape), gemm.op, gemm.a.dtype, gemm.b.dtype) == ((1, 6, 4, 5), "MatMul", DType.FLOAT32, DType.INT8)
    assert gemm.b.bits == 8 + 32 / 2
    assert operators(imported) == []
