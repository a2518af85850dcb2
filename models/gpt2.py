"""GPT-2: decoder with norms before each block, tanh GELU, fused q, k, v (``c_attn``), learned positions, tied head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import GraphBuilder, Init
from models.layers import (
    Heads,
    attend,
    causal_mask,
    gelu_tanh,
    layer_norm,
    linear,
    positions,
    sequence_length,
    split_heads,
    tied_head,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config:
    """Sizes of a GPT-2 model; the inner width of its MLP is four times ``width``."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    max_positions: int = 1024


def build(g: GraphBuilder, config: Gpt2Config) -> None:
    """``input_ids [batch, seq]`` to ``logits [batch, seq, vocabulary]``."""
    width = config.width
    ids = g.input("input_ids", [g.dims.batch, g.dims.seq], np.int64)
    length = sequence_length(g, ids)
    mask = causal_mask(g, length)
    table = g.parameter("wte.weight", [config.vocabulary, width], Init.EMBEDDING)
    rows = g.parameter("wpe.weight", [config.max_positions, width], Init.EMBEDDING)
    x = g.add(
        "Add",
        g.add("Gather", table, ids, name="wte"),
        g.add("Gather", rows, positions(g, length), name="wpe"),
        name="embeddings",
    )
    for layer in range(config.layers):
        with g.scope(f"layers.{layer}"):
            x = block(g, x, config, mask)
    x = layer_norm(g, x, "ln_f", width, 1e-5)
    g.output(tied_head(g, x, ids, table, width, config.vocabulary), "logits", [g.dims.batch, g.dims.seq, config.vocabulary])


def block(g: GraphBuilder, x: str, config: Gpt2Config, mask: str) -> str:
    """One decoder layer."""
    width = config.width
    normed = layer_norm(g, x, "ln_1", width, 1e-5)
    with g.scope("attention"):
        attended = fused_attention(g, normed, config, mask)
    x = g.add("Add", x, attended, name="attention_residual")
    normed = layer_norm(g, x, "ln_2", width, 1e-5)
    with g.scope("mlp"):
        hidden = gelu_tanh(g, linear(g, normed, "c_fc", width, 4 * width), "gelu")
        y = linear(g, hidden, "c_proj", 4 * width, width)
    return g.add("Add", x, y, name="mlp_residual")


def fused_attention(g: GraphBuilder, x: str, config: Gpt2Config, mask: str) -> str:
    """Attention whose q, k and v are thirds of one product."""
    width = config.width
    heads = Heads(count=config.heads, kv=config.heads, size=width // config.heads)
    thirds = linear(g, x, "c_attn", width, 3 * width)
    q, k, v = g.add_many(
        "Split", thirds, g.integers(width, width, width), name="split", outputs=[g.path(part) for part in "qkv"], axis=-1
    )
    context = attend(
        g,
        split_heads(g, q, "q", heads, queries=True),
        split_heads(g, k, "k", heads, queries=False, transposed=True),
        split_heads(g, v, "v", heads, queries=False),
        heads,
        mask,
    )
    return linear(g, context, "c_proj", width, width)
