"""GEMMs and workloads built by hand, and the models that the tests of this folder import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from cleave_plan.workload.graph import Level, ServerOperator, Workload
from models.registry import build


def activation(tensor: str, *, learned: bool = True, dtype: DType = DType.FLOAT32) -> Operand:
    """An operand that is computed, or given as an input (``learned=False``)."""
    return Operand(tensor=tensor, role=Role.ACTIVATION, dtype=dtype, learned=learned)


def parameter(tensor: str, dtype: DType = DType.FLOAT32) -> Operand:
    """An operand that is a weight."""
    return Operand(tensor=tensor, role=Role.PARAMETER, dtype=dtype)


def gemm_of(name: str, shape: tuple[int, int, int, int], a: Operand, b: Operand, level: int = 0, **changes: Any) -> Gemm:
    """A MatMul called ``name`` of (batch, m, k, n) into the tensor ``NAME.out``."""
    parts: dict[str, Any] = {"output": f"{name}.out", "out_dtype": a.dtype, "op": "MatMul"}
    return Gemm(name=name, node=name, shape=GemmShape(*shape), a=a, b=b, level=level, **(parts | changes))


def workload_of(gemms: Sequence[Gemm], *, live: int = 0, operators: tuple[ServerOperator, ...] = ()) -> Workload:
    """Levels as the GEMMs say, ``live`` bytes alive in each; every weight once."""
    levels = tuple(
        Level(index=index, gemms=tuple(i for i, gemm in enumerate(gemms) if gemm.level == index), live_bytes=live)
        for index in range(1 + max(gemm.level for gemm in gemms))
    )
    weights = {
        operand.tensor: (size, operand.dtype)
        for gemm in gemms
        for operand, size in ((gemm.a, gemm.a_bytes), (gemm.b, gemm.b_bytes))
        if operand.role is Role.PARAMETER
    }
    return Workload(
        name="toy", sha256="a" * 64, gemms=tuple(gemms), levels=levels, server_operators=operators, inputs=(), outputs=(),
        parameters={tensor: size for tensor, (size, _) in weights.items()},
        parameter_elements=sum(size * 8 // dtype.bits for size, dtype in weights.values()),
    )  # fmt: skip


def imported(folder: Path, name: str, **sizes: int) -> Workload:
    """The forward pass of a model of the registry."""
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name, **sizes).SerializeToString())  # type: ignore[arg-type]
    return load_model(path).workload
