"""Attention, QAttention and MultiHeadAttention of onnxruntime: projections (where they hold them), scores and context.

Attention and QAttention multiply their input by the weights of q, k and v side by side: one GEMM, all axes of which can be
cut. The rest is in :mod:`cleave_plan.onnx_io.rules.attention_parts`. Buffers that past and present share, rotations inside the
node and masks of four axes are not expanded: such a node runs whole on the server.
"""

from __future__ import annotations

from math import sqrt

import onnx

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.attributes import get_float, get_int, get_ints
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.attention_parts import (
    WHOLE,
    Attended,
    attend,
    heads_first,
    key_mask,
    merged_heads,
    softmax_of,
    split_heads,
    with_past,
)
from cleave_plan.onnx_io.rules.builder import ABSENT, Builder, DeclinedError, Tensor
from cleave_plan.onnx_io.rules.forms import Form, Operator, Sizes, needed
from cleave_plan.onnx_io.rules.products import matmul_shape

_FILLER = -10000.0


def _widths(node: onnx.NodeProto, columns: int) -> tuple[int, int, int]:
    """How the columns of the weights are shared by q, k and v."""
    split = get_ints(node, "qkv_hidden_sizes") or (columns // 3,) * 3
    if len(split) != 3 or sum(split) != columns or min(split) < 0:
        raise ShapeContradictionError(f"{columns} columns of weights do not hold q, k and v of {split}")
    return split[0], split[1], split[2]


def _projected_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """Attention and QAttention: input [batch, length, width], weights [width, q + k + v]."""
    x, w = needed(sizes, 0), needed(sizes, 1)
    heads = get_int(node, "num_heads", 0)
    if len(x) != 3 or len(w) != 2 or heads < 1:
        raise ShapeContradictionError(f"input {list(x)} and weights {list(w)} do not fit {heads} heads")
    widths = _widths(node, w[1])
    place = 8 if node.op_type == "QAttention" else 4
    past = sizes[place] if len(sizes) > place else None
    keys = x[1] + (past[3] if past is not None and len(past) == 5 else 0)
    sized = Attended(
        batch=x[0], heads=heads, key_heads=heads, queries=x[1], keys=keys, size=widths[0] // heads, value_size=widths[2] // heads
    )  # fmt: skip
    quantised = node.op_type == "QAttention"
    inside = DType.FLOAT32 if quantised else None
    rest = tuple(
        Form(shape=form.shape, a=None, b=None, a_dtype=inside, b_dtype=inside, part=form.part, pinned=form.pinned)
        for form in sized.forms(None, None, None)
    )
    out = DType.INT32 if quantised else None
    return (Form(shape=matmul_shape(x, w), out_dtype=out, part="qkv", pinned=WHOLE), *rest)


def _expand_attention(build: Builder) -> None:
    """Inputs: input, weights, bias, mask, past [2, batch, heads, length, size], bias of the scores, length of the past."""
    x, w, bias = build.input(0), build.input(1), build.optional(2)
    projected = build.matmul(x, w, "qkv")
    _expand_projected(build, projected, bias, mask=build.optional(3), past=build.optional(4), added=build.optional(5))


def _expand_qattention(build: Builder) -> None:
    """Inputs: input, weights, bias, their scales (input, weights), mask, their zero points, past."""
    x, w, bias, x_scale, w_scale = (build.input(place) for place in range(5))
    mask, x_zero, w_zero, past = (build.optional(place) for place in range(5, 9))
    kind = onnx.TensorProto.INT32
    zero = build.reshape(x_zero, ()) if x_zero.name else ABSENT
    sums = build.add("MatMulInteger", [x, w, zero, w_zero], (*x.shape[:2], w.shape[1]), elem=kind, part="qkv")
    wide = build.add("Cast", [sums], sums.shape, elem=x_scale.elem, to=x_scale.elem)
    projected = build.both("Mul", wide, build.both("Mul", w_scale, x_scale))
    _expand_projected(build, projected, bias, mask=mask, past=past, added=ABSENT)


def _expand_projected(build: Builder, projected: Tensor, bias: Tensor, *, mask: Tensor, past: Tensor, added: Tensor) -> None:
    """From q, k and v side by side to the outputs (result, present)."""
    node = build.node
    if get_int(node, "past_present_share_buffer", 0) or get_int(node, "do_rotary", 0):
        raise DeclinedError("it keeps its past in one buffer, or rotates inside")
    heads = get_int(node, "num_heads", 0)
    if bias.name:
        projected = build.both("Add", projected, bias)
    try:
        widths = _widths(node, projected.shape[2])
    except ShapeContradictionError as error:
        raise DeclinedError(str(error)) from None
    parts, start = [], 0
    for width in widths:
        part = build.slice(projected, 2, start, start + width)
        parts.append(heads_first(build, split_heads(build, part, heads)))
        start += width
    q, k, v = parts
    if past.name:
        if len(past.shape) != 5:
            raise DeclinedError(f"the past is {list(past.shape)}")
        halves = [build.reshape(build.slice(past, 0, half, half + 1), past.shape[1:]) for half in (0, 1)]
        k, v = with_past(build, k, halves[0], out=""), with_past(build, v, halves[1], out="")
    present = build.output(1)
    if present:
        build.concatenated([build.reshape(tensor, (1, *tensor.shape)) for tensor in (k, v)], 0, out=present)
    _attend_masked(build, q, k, v, mask, added, causal=bool(get_int(node, "unidirectional", 0)))


def _attend_masked(build: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, added: Tensor, *, causal: bool) -> None:
    """The result of attention under onnxruntime's masks."""
    node = build.node
    scale = get_float(node, "scale", 0.0) or 1 / sqrt(q.shape[3])
    hidden = key_mask(
        build, q, mask, queries=q.shape[2], keys=k.shape[2], causal=causal, filler=get_float(node, "mask_filter_value", _FILLER)
    )
    terms = [term for term in (hidden, added) if term.name]
    context = attend(build, q, k, v, scale, lambda scores: softmax_of(build, scores, terms))
    merged_heads(build, context, out=build.output(0))


def _multi_head_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """MultiHeadAttention: query, key and value apart, or packed into query [.., heads, 3, size] or key [.., heads, 2, size]."""
    q = needed(sizes, 0)
    heads = get_int(node, "num_heads", 0)
    key, value, past = ((*sizes, *[None] * 7)[place] for place in (1, 2, 6))
    if len(q) not in (3, 5) or heads < 1:
        raise ShapeContradictionError(f"query {list(q)} does not fit {heads} heads")
    if any(x is not None and len(x) not in (3, 4, 5) for x in (key, value)):
        raise ShapeContradictionError("key and value need 3 to 5 axes")
    size = q[4] if len(q) == 5 else q[2] // heads
    keys, value_size = q[1], size
    if key is not None:
        keys = key[2] if len(key) == 4 else key[1]
    if value is not None:
        value_size = value[3] if len(value) == 4 else value[2] // heads
    keys += past[2] if past is not None and len(past) == 4 else 0
    sized = Attended(batch=q[0], heads=heads, key_heads=heads, queries=q[1], keys=keys, size=size, value_size=value_size)
    return sized.forms(0, 1 if key is not None else 0, 2 if value is not None else 0)


def _expand_multi_head(build: Builder) -> None:
    """Inputs: query, key, value, bias, mask, bias of the scores, past of keys and of values, two of shared buffers."""
    node = build.node
    if build.optional(8).name or build.optional(9).name or build.output(3):
        raise DeclinedError("it keeps its past in one buffer, or gives its scores out")
    q, k, v = _three_heads(build)
    k = with_past(build, k, build.optional(6), out=build.output(1))
    v = with_past(build, v, build.optional(7), out=build.output(2))
    causal = bool(get_int(node, "unidirectional", 0))
    _attend_masked(build, q, k, v, build.optional(4), build.optional(5), causal=causal)


def _three_heads(build: Builder) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of MultiHeadAttention with heads first, biases added."""
    heads = get_int(build.node, "num_heads", 0)
    query, key, value, bias = (build.optional(place) for place in range(4))
    if len(query.shape) == 5 and not bias.name:
        q, k, v = (_unpacked(build, query, place) for place in range(3))
        return q, k, v
    if len(query.shape) != 3 or not key.name:
        raise DeclinedError(f"query {list(query.shape)} without a key, or packed with a bias")
    parts, start = [], 0
    for x in (query, key, value):
        if len(x.shape) == 4:  # keys and values of another model part: heads first, without bias
            parts.append(x)
            continue
        width = query.shape[2] if len(x.shape) != 3 else x.shape[2]
        if bias.name and len(x.shape) == 3:
            x = build.both("Add", x, build.slice(bias, 0, start, start + width))
        start += width
        if len(x.shape) == 3:
            parts.append(heads_first(build, split_heads(build, x, heads)))
    if len(key.shape) == 5 and not value.name and not bias.name:
        return parts[0], _unpacked(build, key, 0), _unpacked(build, key, 1)
    if len(parts) != 3:
        raise DeclinedError(f"key {list(key.shape)} and value {list(value.shape)}")
    return parts[0], parts[1], parts[2]


def _unpacked(build: Builder, packed: Tensor, place: int) -> Tensor:
    """One of [batch, length, heads, parts, size] with heads first."""
    batch, length, heads, _, size = packed.shape
    return heads_first(build, build.reshape(build.slice(packed, 3, place, place + 1), (batch, length, heads, size)))


ATTENTION = Operator(forms=_projected_forms, expand=_expand_attention)
QATTENTION = Operator(forms=_projected_forms, expand=_expand_qattention)
MULTI_HEAD = Operator(forms=_multi_head_forms, expand=_expand_multi_head, operands=(0, 1, 2))
