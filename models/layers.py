"""Layers that several architectures share. Activations are ``[batch, seq, width]`` unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from models.builder import Dim, GraphBuilder, Init


def linear(g: GraphBuilder, x: str, name: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
    """MatMul by ``name.weight [inputs, outputs]``, plus ``name.bias [outputs]``; the MatMul is called ``name``."""
    y = g.add("MatMul", x, g.parameter(f"{name}.weight", [inputs, outputs]), name=name)
    if not bias:
        return y
    return g.add("Add", y, g.parameter(f"{name}.bias", [outputs], Init.BIAS), name=f"{name}.add_bias")


def gemm(g: GraphBuilder, x: str, name: str, inputs: int, outputs: int) -> str:
    """The same for ``x [rows, inputs]`` as a Gemm, with its weight as checkpoints store it: ``[outputs, inputs]``."""
    weight = g.parameter(f"{name}.weight", [outputs, inputs], fan_in=inputs)
    return g.add("Gemm", x, weight, g.parameter(f"{name}.bias", [outputs], Init.BIAS), name=name, transB=1)


def tied_head(g: GraphBuilder, x: str, ids: str, table: str, width: int, vocabulary: int) -> str:
    """Logits ``[batch, seq, vocabulary]`` by the embedding table ``[vocabulary, width]`` itself: a Gemm ``head`` with transB."""
    rows = g.add("Reshape", x, g.integers(-1, width), name="head.rows")
    y = g.add("Gemm", rows, table, name="head", transB=1)
    lead = g.add("Shape", ids, name="head.lead")
    shape = g.add("Concat", lead, g.integers(vocabulary), name="head.shape", axis=0)
    return g.add("Reshape", y, shape, name="head.logits")


def layer_norm(g: GraphBuilder, x: str, name: str, width: int, epsilon: float) -> str:
    """LayerNormalization over the last axis with ``name.weight`` and ``name.bias``."""
    weight = g.parameter(f"{name}.weight", [width], Init.SCALE)
    bias = g.parameter(f"{name}.bias", [width], Init.BIAS)
    return g.add("LayerNormalization", x, weight, bias, name=name, axis=-1, epsilon=epsilon)


def rms_norm(g: GraphBuilder, x: str, name: str, width: int, epsilon: float) -> str:
    """``x / sqrt(mean(x²) + epsilon) * name.weight``; squares are taken in float32, where float16 would overflow."""
    with g.scope(name):
        wide = g.add("Cast", x, name="float32", to=1) if g.dtype != np.float32 else x
        square = g.add("Mul", wide, wide, name="square")
        mean = g.add("ReduceMean", square, name="mean", axes=[-1], keepdims=1)
        root = g.add("Sqrt", g.add("Add", mean, g.constant(epsilon, np.float32), name="add_epsilon"), name="root")
        unit = g.add("Div", wide, root, name="unit")
    if g.dtype != np.float32:
        unit = cast(g, unit, f"{name}.narrow")
    return g.add("Mul", unit, g.parameter(f"{name}.weight", [width], Init.SCALE), name=name)


def gelu_erf(g: GraphBuilder, x: str, name: str) -> str:
    """``x / 2 * (1 + erf(x / √2))``."""
    with g.scope(name):
        erf = g.add("Erf", g.add("Mul", x, g.constant(sqrt(0.5)), name="scaled"), name="erf")
        gate = g.add("Mul", g.add("Add", erf, g.constant(1), name="shifted"), g.constant(0.5), name="gate")
    return g.add("Mul", x, gate, name=name)


def gelu_tanh(g: GraphBuilder, x: str, name: str) -> str:
    """``x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³)))``, the approximation that GPT-2 was trained with."""
    with g.scope(name):
        cube = g.add("Mul", g.add("Mul", x, x, name="square"), x, name="cube")
        inner = g.add("Add", x, g.add("Mul", cube, g.constant(0.044715), name="scaled_cube"), name="inner")
        tanh = g.add("Tanh", g.add("Mul", inner, g.constant(sqrt(2 / pi)), name="scaled"), name="tanh")
        gate = g.add("Mul", g.add("Add", tanh, g.constant(1), name="shifted"), g.constant(0.5), name="gate")
    return g.add("Mul", x, gate, name=name)


def cast(g: GraphBuilder, x: str, name: str) -> str:
    """``x`` in the model's own type."""
    return g.add("Cast", x, name=name, to={"float16": 10, "float32": 1}[g.dtype.name])


def lowest(g: GraphBuilder) -> float:
    """What an additive mask holds where nothing may be seen: the lowest finite value of the model's type."""
    return -65504.0 if g.dtype == np.float16 else float(np.finfo(np.float32).min)


def sequence_length(g: GraphBuilder, ids: str) -> str:
    """The length ``[1]`` of the second axis of ``ids``."""
    return g.add("Shape", ids, name="sequence_length", start=1, end=2)


def positions(g: GraphBuilder, length: str, *, first: int = 0) -> str:
    """``first, first + 1, ...``: one int64 per position, from the length ``[1]``."""
    zero, one = g.constant(0, np.int64), g.constant(1, np.int64)
    count = g.add("Range", zero, g.add("Squeeze", length, name="positions.length"), one, name="positions.from_0")
    return g.add("Add", count, g.constant(first, np.int64), name="positions") if first else count


def causal_mask(g: GraphBuilder, length: str) -> str:
    """``[seq, seq]``, added to scores: 0 on and below the diagonal, :func:`lowest` above (no position sees a later one)."""
    square = g.add("Concat", length, length, name="causal_mask.shape", axis=0)
    full = g.add("Expand", g.constant(lowest(g), np.float32), square, name="causal_mask.full")
    mask = g.add("Trilu", full, g.constant(1, np.int64), name="causal_mask.float32", upper=1)
    return mask if g.dtype == np.float32 else cast(g, mask, "causal_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads: ``count`` query heads of ``size`` elements; each ``count / kv`` of them share a key-value head."""

    count: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.count // self.kv


def split_heads(g: GraphBuilder, x: str, name: str, heads: Heads, *, queries: bool, transposed: bool = False) -> str:
    """``[batch, seq, n * size]`` to heads first; ``transposed`` swaps the last two axes (keys).

    Without sharing ``[batch, heads, seq, size]``; with it queries become ``[batch, kv, group, seq, size]`` and keys and
    values ``[batch, kv, 1, seq, size]``, so that MatMul broadcasts a key-value head over its group and sends it once.
    """
    if heads.group == 1:
        shape, order = [0, 0, heads.count, heads.size], [0, 2, 3, 1] if transposed else [0, 2, 1, 3]
    else:
        shape = [0, 0, heads.kv, heads.group if queries else 1, heads.size]
        order = [0, 2, 3, 4, 1] if transposed else [0, 2, 3, 1, 4]
    apart = g.add("Reshape", x, g.integers(*shape), name=f"{name}.heads")
    return g.add("Transpose", apart, name=f"{name}.heads_first", perm=order)


def past_positions(g: GraphBuilder, *, first: int = 0) -> str:
    """The position ``[1]`` of the token that a decoding step adds: the length of the first layer's cache."""
    length = g.add("Shape", past_name(0, "key"), name="past_length", start=2, end=3)
    return g.add("Add", length, g.integers(first), name="positions") if first else length


def past_name(layer: int, part: str) -> str:
    """The graph input that holds the cached ``part`` ("key" or "value") of a layer."""
    return f"past_key_values.{layer}.{part}"


def past_inputs(g: GraphBuilder, layers: int, heads: Heads) -> None:
    """Declare every layer's cache as graph inputs ``[batch, kv heads, past, size]``."""
    for layer in range(layers):
        for part in ("key", "value"):
            g.input(past_name(layer, part), [g.dims.batch, heads.kv, g.dims.past or 0, heads.size])


def with_past(g: GraphBuilder, x: str, part: str, layer: int, heads: Heads) -> str:
    """The cached keys or values of ``layer`` with ``x [batch, kv heads, 1, size]`` after them; output as ``present.*`` too."""
    past = g.dims.past
    longer: Dim = past + 1 if isinstance(past, int) else f"{past} + 1"
    joined = g.add("Concat", past_name(layer, part), x, name=f"{part}.with_past", axis=2)
    g.output(joined, f"present.{layer}.{part}", [g.dims.batch, heads.kv, longer, heads.size])
    return joined


def attend(g: GraphBuilder, q: str, k: str, v: str, heads: Heads, mask: str | None) -> str:
    """softmax(q·k/√size + mask)·v as ``scores`` and ``context``, then back to ``[batch, seq, count * size]``.

    ``q``, ``k`` (transposed) and ``v`` come from :func:`split_heads`; ``mask`` is added to the scores. The scale is put
    on q, which is smaller than the scores.
    """
    scaled = g.add("Mul", q, g.constant(heads.size**-0.5), name="scale")
    scores = g.add("MatMul", scaled, k, name="scores")
    if mask is not None:
        scores = g.add("Add", scores, mask, name="masked")
    context = g.add("MatMul", g.add("Softmax", scores, name="softmax", axis=-1), v, name="context")
    order = [0, 2, 1, 3] if heads.group == 1 else [0, 3, 1, 2, 4]
    together = g.add("Transpose", context, name="context.sequence_first", perm=order)
    return g.add("Reshape", together, g.integers(0, 0, heads.count * heads.size), name="context.joined")


def self_attention(g: GraphBuilder, x: str, width: int, heads: int, mask: str | None, layer: int = 0) -> str:
    """Multi-head attention with biased ``q``, ``k``, ``v`` and ``out``; a decoding step attends over the cache of ``layer``."""
    shape = Heads(count=heads, kv=heads, size=width // heads)
    q, k, v = (linear(g, x, name, width, width) for name in ("q", "k", "v"))
    cached = g.dims.past is not None
    keys = split_heads(g, k, "k", shape, queries=False, transposed=not cached)
    values = split_heads(g, v, "v", shape, queries=False)
    if cached:
        keys = g.add("Transpose", with_past(g, keys, "key", layer, shape), name="k.transposed", perm=[0, 1, 3, 2])
        values = with_past(g, values, "value", layer, shape)
    context = attend(g, split_heads(g, q, "q", shape, queries=True), keys, values, shape, mask)
    return linear(g, context, "out", width, width)
