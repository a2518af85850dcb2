"""Attention of ONNX (operator set 23 and later): scores and context, see :mod:`cleave_plan.onnx_io.rules.attention_parts`."""

from __future__ import annotations

from math import sqrt

import numpy as np
import onnx
from onnx import helper

from cleave_plan.onnx_io.attributes import get_float, get_int
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.attention_parts import Attended, attend, capped, heads_first, merged_heads, split_heads, with_past
from cleave_plan.onnx_io.rules.builder import ABSENT, Builder, Tensor, broadcast
from cleave_plan.onnx_io.rules.forms import Form, Operator, Sizes, needed

_SCORES_CAPPED, _SCORES_MASKED, _SCORES_WEIGHTS = 1, 2, 3


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """Q, K, V of [batch, heads, length, size], or [batch, length, heads * size] with the heads as attributes."""
    q, k, v = (_heads(node, needed(sizes, place), letter) for place, letter in enumerate("qkv"))
    past = sizes[4] if len(sizes) > 4 else None
    keys = k[2] + (past[2] if past is not None and len(past) == 4 else 0)
    if q[3] != k[3] or k[:3] != v[:3]:
        raise ShapeContradictionError(f"Q {list(q)}, K {list(k)} and V {list(v)} do not fit")
    sized = Attended(
        batch=q[0], heads=q[1], key_heads=k[1], queries=q[2], keys=keys, size=q[3], value_size=v[3]
    )  # fmt: skip
    return sized.forms(0, 1, 2)


def _heads(node: onnx.NodeProto, shape: tuple[int, ...], letter: str) -> tuple[int, ...]:
    if len(shape) == 4:
        return shape
    heads = get_int(node, "q_num_heads" if letter == "q" else "kv_num_heads", 0)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise ShapeContradictionError(f"{letter.upper()} is {list(shape)}, which {heads} heads do not divide")
    return shape[0], heads, shape[1], shape[2] // heads


def _expand(build: Builder) -> None:
    node = build.node
    flat = len(build.input(0).shape) == 3
    q, k, v = (_four_axes(build, place, letter) for place, letter in enumerate("qkv"))
    past = build.optional(4)
    length = past.shape[2] if len(past.shape) == 4 else 0
    k = with_past(build, k, past, out=build.output(1))
    v = with_past(build, v, build.optional(5), out=build.output(2))
    bias, seen = _bias(build, q, k, length)

    def weights(scores: Tensor) -> Tensor:
        mode, wanted = get_int(node, "qk_matmul_output_mode", 0), build.output(3)
        softcap = get_float(node, "softcap", 0.0)
        stages = {0: scores}
        scores = stages[_SCORES_CAPPED] = capped(build, scores, softcap)
        scores = stages[_SCORES_MASKED] = build.both("Add", scores, bias) if bias.name else scores
        precision = get_int(node, "softmax_precision", 0) or scores.elem
        wide = scores if precision == scores.elem else build.add("Cast", [scores], scores.shape, elem=precision, to=precision)
        made = build.add("Softmax", [wide], wide.shape, axis=len(wide.shape) - 1)
        if made.elem != q.elem:
            made = build.add("Cast", [made], made.shape, elem=q.elem, to=q.elem)
        if seen.name:  # a row that sees no key gives zeros
            made = build.add("Where", [seen, made, build.scalar(0.0, made)], made.shape, elem=made.elem)
        stages[_SCORES_WEIGHTS] = made
        if wanted:
            build.add("Identity", [stages[mode]], made.shape, out=wanted)
        return made

    out = build.output(0)
    scale = get_float(node, "scale", 1 / sqrt(q.shape[3]))
    context = attend(build, q, k, v, scale, weights, out="" if flat else out)
    if flat:
        merged_heads(build, context, out=out)


def _four_axes(build: Builder, place: int, letter: str) -> Tensor:
    x = build.input(place)
    if len(x.shape) == 4:
        return x
    heads = get_int(build.node, "q_num_heads" if letter == "q" else "kv_num_heads", 0)
    return heads_first(build, split_heads(build, x, heads))


def _bias(build: Builder, q: Tensor, k: Tensor, past: int) -> tuple[Tensor, Tensor]:
    """The additive mask and which rows see any key; ABSENT both where every query sees every key."""
    node, mask, used = build.node, build.optional(3), build.optional(6)
    causal, left, right = (
        get_int(node, "is_causal", 0),
        get_int(node, "left_window_size", -1),
        get_int(node, "right_window_size", -1),
    )
    if not (mask.name or used.name or causal or left >= 0 or right >= 0):
        return ABSENT, ABSENT
    queries, keys = q.shape[2], k.shape[2]
    shape: tuple[int, ...] = (q.shape[0], 1, queries, keys) if used.name else (queries, keys)
    if mask.name:
        shape = broadcast(shape, (*mask.shape[:-1], keys))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(q.elem)).name
    bias, seen = build.own(
        "AttentionBias", [mask, used], [("", shape, q.elem), ("", (*shape[:-1], 1), onnx.TensorProto.BOOL)],
        queries=queries, keys=keys, past=past, causal=causal, left=left, right=right, dtype=dtype,
    )  # fmt: skip
    return bias, seen


ATTENTION = Operator(forms=_forms, expand=_expand, operands=(0, 1, 2))
