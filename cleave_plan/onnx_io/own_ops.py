"""Our own operators, which stand between the GEMMs of an expanded node, for ``onnx.reference``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import dtype_of_array
from cleave_plan.kernels.tile import Product, whole_of
from cleave_plan.onnx_io import masks
from cleave_plan.onnx_io.grouped import Cache, window_mask
from cleave_plan.onnx_io.lowering import lower
from cleave_plan.onnx_io.matrix_work import OWN
from cleave_plan.onnx_io.operators import operator_of
from cleave_plan.onnx_io.recurrence import Array
from cleave_plan.onnx_io.rules.recurrent import take_steps
from cleave_plan.workload.gemm import Gemm, Operand, Role


class Recurrence(OpRun):  # type: ignore[misc]
    """The steps of a recurrent layer: X W^T, R, B, sequence_lens, initial_h, initial_c, P -> Y, Y_h, Y_c."""

    op_domain = OWN

    def _run(self, *arrays: Array | None, **_: Any) -> tuple[Array, ...]:
        return take_steps(self.onnx_node, list(arrays))[: len(self.onnx_node.output)]


class KeyMask(OpRun):  # type: ignore[misc]
    """onnxruntime's mask of the keys, added to the scores."""

    op_domain = OWN

    def _run(
        self, index: Array | None = None, *, shape: Any, queries: int, causal: int, filler: float, dtype: str
    ) -> tuple[Array]:
        made = masks.key_mask(
            index, shape=tuple(map(int, shape)), queries=queries, causal=bool(causal), filler=filler, dtype=np.dtype(dtype)
        )
        return (made,)


class AttentionBias(OpRun):  # type: ignore[misc]
    """ONNX's mask of attention, added to the scores, and which rows see any key."""

    op_domain = OWN

    def _run(
        self, mask: Array | None = None, used: Array | None = None, *, queries: int, keys: int, past: int, causal: int, left: int,
        right: int, dtype: str,
    ) -> tuple[Array, ...]:  # fmt: skip
        return masks.attention_bias(
            mask, used, queries=queries, keys=keys, past=past, causal=bool(causal), left=left, right=right, dtype=np.dtype(dtype)
        )


class GroupedHeads(OpRun):  # type: ignore[misc]
    """What GroupQueryAttention does before its products: q, and the keys and values in the cache."""

    op_domain = OWN

    def _run(
        self, *arrays: Array | None, heads: int, key_heads: int, keys: int, rotated: int, interleaved: int
    ) -> tuple[Array, ...]:
        cache = Cache(heads=heads, key_heads=key_heads, keys=keys, rotated=bool(rotated), interleaved=bool(interleaved))
        return cache.prepared([*arrays, *[None] * 10][:10])


class WindowMask(OpRun):  # type: ignore[misc]
    """GroupQueryAttention's mask, added to the scores."""

    op_domain = OWN

    def _run(self, last: Array, longest: Array, *, queries: int, keys: int, window: int, dtype: str) -> tuple[Array]:
        return (window_mask(last, longest, queries=queries, keys=keys, window=window, dtype=np.dtype(dtype)),)


class _Product(OpRun):  # type: ignore[misc]
    """A product of our own that the server computes as one tile."""

    op_domain = OWN

    def _run(self, *arrays: Array | None, **_: Any) -> tuple[Array]:
        return (whole_product(self.onnx_node, list(arrays), self.result_dtype(arrays)),)

    def result_dtype(self, arrays: Sequence[Array | None]) -> np.dtype[Any]:
        """The type of the result: that of Y's zero point (or uint8) when Y has a scale, else that of A's scale."""
        scale, y_scale, y_zero = ((*arrays, *[None] * 9)[place] for place in (1, 7, 8))
        if y_scale is None:
            return np.dtype(np.float32) if scale is None else scale.dtype
        return np.dtype(np.uint8) if y_zero is None else y_zero.dtype


class QuantisedMatMul(_Product):
    """A MatMul between dequantised operands."""


class QuantisedGemm(_Product):
    """A Gemm between dequantised operands."""


class QuantisedConv(_Product):
    """A Conv between dequantised operands."""


class PackedMatMul(_Product):
    """A MatMul by packed weights."""

    def result_dtype(self, arrays: Sequence[Array | None]) -> np.dtype[Any]:
        """That of A."""
        return np.dtype(np.float32) if arrays[0] is None else arrays[0].dtype


def whole_product(node: onnx.NodeProto, arrays: list[Array | None], dtype: np.dtype[Any]) -> Array:
    """What a node with one GEMM gives, by way of its canonical form; ``dtype`` is the type of its result."""
    operator = operator_of(node)
    if operator is None:
        raise ValueError(f"{node.op_type} has no rule")
    (form,) = operator.forms(node, [None if array is None else array.shape for array in arrays])
    operands = []
    for place in (form.a or 0, form.b or 0):
        array = arrays[place]
        if array is None:
            raise ValueError(f"operand {place} is absent")
        operands.append(Operand(tensor="", role=Role.ACTIVATION, dtype=dtype_of_array(array)))
    gemm = Gemm(
        name=node.name, node=node.name, op=node.op_type, shape=form.shape, a=operands[0], b=operands[1], output="",
        out_dtype=DType(dtype.name), level=0, window=form.window,
    )  # fmt: skip
    lowered = lower(node, gemm, arrays)
    return lowered.finish(whole_of(Product.of(gemm, lowered.coding), (lowered.a, lowered.b, *lowered.along)))


OWN_OPERATORS: list[type] = [
    AttentionBias, GroupedHeads, KeyMask, PackedMatMul, QuantisedConv, QuantisedGemm, QuantisedMatMul, Recurrence, WindowMask,
]  # fmt: skip
