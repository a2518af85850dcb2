"""Llama 2: decoder with RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases, a head of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import GraphBuilder, Init
from models.layers import (
    Heads,
    attend,
    cast,
    causal_mask,
    linear,
    past_inputs,
    past_positions,
    positions,
    rms_norm,
    sequence_length,
    split_heads,
    with_past,
)

EPSILON = 1e-5
ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama model; ``kv_heads`` key-value heads are shared by ``heads / kv_heads`` query heads each."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int = 32000
    max_positions: int = 4096

    @property
    def attention(self) -> Heads:
        """The shape of the attention heads."""
        return Heads(count=self.heads, kv=self.kv_heads, size=self.width // self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Cosines and sines ``[seq, size]`` of the rotation angles, each angle twice."""

    cos: str
    sin: str


def build(g: GraphBuilder, config: LlamaConfig) -> None:
    """``input_ids [batch, seq]`` to ``logits [batch, seq, vocabulary]``; with a cache, one token and ``past_key_values.*``."""
    ids = g.input("input_ids", [g.dims.batch, g.dims.seq], np.int64)
    mask = None
    if g.dims.past is not None:  # the new token sees every cached one: no mask
        past_inputs(g, config.layers, config.attention)
        places = past_positions(g)
    else:
        length = sequence_length(g, ids)
        mask = causal_mask(g, length)
        places = positions(g, length)
    angles = rotary_angles(g, places, config.attention.size)
    table = g.parameter("embed_tokens.weight", [config.vocabulary, config.width], Init.EMBEDDING)
    x = g.add("Gather", table, ids, name="embed_tokens")
    for layer in range(config.layers):
        with g.scope(f"layers.{layer}"):
            x = block(g, x, config, angles, mask, layer)
    x = rms_norm(g, x, "final_norm", config.width, EPSILON)
    logits = linear(g, x, "head", config.width, config.vocabulary, bias=False)
    g.output(logits, "logits", [g.dims.batch, g.dims.seq, config.vocabulary])


def rotary_angles(g: GraphBuilder, where: str, size: int) -> Rotary:
    """Angle of pair j at position p: ``p * base^(-2j/size)``, computed in float32."""
    frequencies = ROTARY_BASE ** (-np.arange(0, size, 2) / size)
    with g.scope("rotary"):
        column = g.add("Unsqueeze", g.add("Cast", where, name="position", to=1), g.integers(1), name="column")
        half = g.add("Mul", column, g.constant(frequencies, np.float32), name="half")
        angles = g.add("Concat", half, half, name="angles", axis=-1)
        cos, sin = g.add("Cos", angles, name="cos"), g.add("Sin", angles, name="sin")
        if g.dtype != np.float32:
            cos, sin = cast(g, cos, "cos_narrow"), cast(g, sin, "sin_narrow")
    return Rotary(cos=cos, sin=sin)


def rotate(g: GraphBuilder, x: str, name: str, size: int, angles: Rotary) -> str:
    """Turn element pairs (j, j + size/2) of the last axis of ``[..., seq, size]`` by their angle."""
    halves = [g.path(f"{name}.first_half"), g.path(f"{name}.second_half")]
    first, second = g.add_many("Split", x, g.integers(size // 2, size // 2), name=f"{name}.split", outputs=halves, axis=-1)
    turned = g.add("Concat", g.add("Neg", second, name=f"{name}.negated"), first, name=f"{name}.turned", axis=-1)
    straight = g.add("Mul", x, angles.cos, name=f"{name}.times_cos")
    return g.add("Add", straight, g.add("Mul", turned, angles.sin, name=f"{name}.times_sin"), name=f"{name}.rotated")


def block(g: GraphBuilder, x: str, config: LlamaConfig, angles: Rotary, mask: str | None, layer: int) -> str:
    """One decoder layer."""
    normed = rms_norm(g, x, "attention_norm", config.width, EPSILON)
    with g.scope("attention"):
        attended = grouped_attention(g, normed, config, angles, mask, layer)
    x = g.add("Add", x, attended, name="attention_residual")
    normed = rms_norm(g, x, "mlp_norm", config.width, EPSILON)
    with g.scope("mlp"):
        y = swiglu(g, normed, config.width, config.ffn)
    return g.add("Add", x, y, name="mlp_residual")


def grouped_attention(g: GraphBuilder, x: str, config: LlamaConfig, angles: Rotary, mask: str | None, layer: int) -> str:
    """Attention with rotated queries and keys; keys are rotated before they are cached and transposed."""
    heads = config.attention
    kv_width = heads.kv * heads.size
    q = split_heads(g, linear(g, x, "q", config.width, config.width, bias=False), "q", heads, queries=True)
    cached = g.dims.past is not None
    plain = Heads(count=heads.kv, kv=heads.kv, size=heads.size) if cached else heads  # a cache has no axis for the group
    k = split_heads(g, linear(g, x, "k", config.width, kv_width, bias=False), "k", plain, queries=False)
    v = split_heads(g, linear(g, x, "v", config.width, kv_width, bias=False), "v", plain, queries=False)
    q = rotate(g, q, "q", heads.size, angles)
    k = rotate(g, k, "k", heads.size, angles)
    if cached:
        k, v = with_past(g, k, "key", layer, heads), with_past(g, v, "value", layer, heads)
        if heads.group > 1:
            k, v = (g.add("Unsqueeze", x, g.integers(2), name=f"{name}.shared") for x, name in ((k, "k"), (v, "v")))
    order = [0, 1, 3, 2] if heads.group == 1 else [0, 1, 2, 4, 3]
    context = attend(g, q, g.add("Transpose", k, name="k.transposed", perm=order), v, heads, mask)
    return linear(g, context, "out", config.width, config.width, bias=False)


def swiglu(g: GraphBuilder, x: str, width: int, ffn: int) -> str:
    """``down(silu(gate(x)) * up(x))``."""
    gate = linear(g, x, "gate", width, ffn, bias=False)
    silu = g.add("Mul", gate, g.add("Sigmoid", gate, name="sigmoid"), name="silu")
    hidden = g.add("Mul", silu, linear(g, x, "up", width, ffn, bias=False), name="gated")
    return linear(g, hidden, "down", ffn, width, bias=False)
