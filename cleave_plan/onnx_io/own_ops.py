"""Our own operators, which stand between the GEMMs of an expanded node, for ``onnx.reference``."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from cleave_plan.onnx_io import masks
from cleave_plan.onnx_io.recurrence import Array
from cleave_plan.onnx_io.rules.builder import OWN
from cleave_plan.onnx_io.rules.recurrent import take_steps


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


OWN_OPERATORS: list[type] = [AttentionBias, KeyMask, Recurrence]
