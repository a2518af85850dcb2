"""GroupQueryAttention of onnxruntime: scores and context, see :mod:`cleave_plan.onnx_io.rules.attention_parts`.

Query heads of a group share their key head, which is sent once for all of them. Rotation and the cache are the server's. A
node whose number of keys is not known before the run, or with a quantised cache, sinks or its scores given out, is not expanded:
it runs whole on the server, and is counted with the keys of its past and its own.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import onnx
from onnx import helper

from cleave_plan.onnx_io.attributes import get_float, get_int, get_string
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.attention_parts import Attended, attend, merged_heads, softmax_of
from cleave_plan.onnx_io.rules.builder import Builder, DeclinedError
from cleave_plan.onnx_io.rules.forms import Form, Operator, Sizes, needed

_LONGEST, _BIAS, _SINKS = 6, 10, 11  # places of inputs


def _sized(node: onnx.NodeProto, query: tuple[int, ...], *, packed: bool, keys: int) -> Attended:
    heads, key_heads = get_int(node, "num_heads", 0), get_int(node, "kv_num_heads", 0)
    shares = heads + 2 * key_heads if packed else heads
    if len(query) != 3 or min(heads, key_heads) < 1 or heads % key_heads or query[2] % shares:
        raise ShapeContradictionError(f"query {list(query)} does not fit {heads} heads and {key_heads} key heads")
    size = query[2] // shares
    return Attended(
        batch=query[0], heads=heads, key_heads=key_heads, queries=query[1], keys=keys, size=size, value_size=size
    )  # fmt: skip


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    query = needed(sizes, 0)
    key, past = ((*sizes, *[None] * 4)[place] for place in (1, 3))
    keys = query[1] + (past[2] if past is not None and len(past) == 4 else 0) if len(query) == 3 else 0
    sized = _sized(node, query, packed=key is None, keys=keys)
    return sized.forms(0, None, None)


def _expand(build: Builder) -> None:
    node = build.node
    inputs = [build.optional(place) for place in range(12)]
    query, key, past = inputs[0], inputs[1], inputs[3]
    plain = get_string(node, "k_quant_type", "NONE") == "NONE" and get_string(node, "v_quant_type", "NONE") == "NONE"
    if not plain or inputs[_SINKS].name or get_int(node, "smooth_softmax", 0) or build.output(3):
        raise DeclinedError("a quantised cache, sinks, or scores given out")
    longest, before = build.value(_LONGEST), past.shape[2] if len(past.shape) == 4 else 0
    if (longest is None and before) or (longest is not None and longest.size != 1):
        raise DeclinedError("the number of keys is not known before the run")
    keys = max(before, query.shape[1] if longest is None else int(longest.reshape(-1)[0]))
    try:
        sized = _sized(node, query.shape, packed=not key.name, keys=keys)
    except ShapeContradictionError as error:
        raise DeclinedError(str(error)) from None
    kept = (sized.batch, sized.key_heads, keys, sized.size)
    q, k, v = build.own(
        "GroupedHeads", inputs[:10],
        [("", (sized.batch, sized.heads, sized.queries, sized.size), query.elem), (build.output(1), kept, query.elem),
         (build.output(2), kept, query.elem)],
        heads=sized.heads, key_heads=sized.key_heads, keys=keys, rotated=get_int(node, "do_rotary", 0),
        interleaved=get_int(node, "rotary_interleaved", 0),
    )  # fmt: skip
    (mask,) = build.own(
        "WindowMask", inputs[5:7], [("", (sized.batch, 1, sized.queries, keys), query.elem)], queries=sized.queries, keys=keys,
        window=get_int(node, "local_window_size", -1), dtype=np.dtype(helper.tensor_dtype_to_np_dtype(query.elem)).name,
    )  # fmt: skip
    terms = [term for term in (mask, inputs[_BIAS]) if term.name]
    scale = get_float(node, "scale", 0.0) or 1 / sqrt(sized.size)
    softcap = get_float(node, "softcap", 0.0)
    context = attend(build, q, k, v, scale, lambda scores: softmax_of(build, scores, terms, softcap))
    merged_heads(build, context, out=build.output(0))


GROUP_QUERY = Operator(forms=_forms, expand=_expand, operands=(0,))
