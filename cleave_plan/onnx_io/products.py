"""Several GEMM nodes as one product: their operands put side by side, and the result taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from cleave_plan.errors import ExecutionError
from cleave_plan.kernels.arrays import Array
from cleave_plan.onnx_io.backends import Value
from cleave_plan.onnx_io.lowering import lower
from cleave_plan.workload.gemm import Gemm, Join


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operands:
    """Canonical operands of a product, and ``finish``: its canonical result -> the output tensors of all members."""

    a: Array
    b: Array
    finish: Callable[[Array], Mapping[str, Value]]


def operands_of(
    product: Gemm, members: Sequence[Gemm], nodes: Mapping[str, onnx.NodeProto], value: Callable[[str], Value]
) -> Operands:
    """Lower the nodes (by GEMM name) of ``members``, which ``product`` joins; ``value`` gives a tensor by its name.

    Raises ExecutionError when members joined by a shared operand do not really share it, or are joined along K (their sum
    is formed by a training graph's own nodes, which a forward model does not have).
    """
    lowered = []
    for gemm in members:
        node = nodes[gemm.name]
        lowered.append(lower(node, gemm, [value(tensor) if tensor else None for tensor in node.input]))
    names = [gemm.output for gemm in members]
    if len(lowered) == 1:
        return Operands(a=lowered[0].a, b=lowered[0].b, finish=lambda result: {names[0]: lowered[0].finish(result)})
    if product.join is not Join.N or not all(_same(lowered[0].a, other.a) for other in lowered[1:]):
        raise ExecutionError(
            f"its {len(lowered)} members do not share their A operand in this run", where=f"GEMM {members[0].name!r}",
            expected="members of a product that share it", remedy="plan with --without shared",
        )  # fmt: skip
    edges = np.cumsum((0, *product.extents))

    def finish(result: Array) -> dict[str, Value]:
        return {
            name: own.finish(np.ascontiguousarray(result[:, :, start:stop]))
            for name, own, start, stop in zip(names, lowered, edges[:-1], edges[1:], strict=True)
        }

    return Operands(a=lowered[0].a, b=np.concatenate([own.b for own in lowered], axis=-1), finish=finish)


def _same(one: Array, other: Array) -> bool:
    """The same view of the same memory, or the same numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    alike = one.__array_interface__["data"] == other.__array_interface__["data"] and one.strides == other.strides
    return alike or bool(np.array_equal(one, other))
