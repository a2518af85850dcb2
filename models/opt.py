"""OPT: decoder with norms before each block, ReLU, learned positions (the table's first two rows unused), tied head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import GraphBuilder, Init
from models.layers import (
    Heads,
    causal_mask,
    layer_norm,
    linear,
    past_inputs,
    past_positions,
    positions,
    self_attention,
    sequence_length,
    tied_head,
)

POSITION_OFFSET = 2  # the table has two rows more than there are positions; position 0 reads row 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig:
    """Sizes of an OPT model."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int = 50272
    max_positions: int = 2048


def build(g: GraphBuilder, config: OptConfig) -> None:
    """``input_ids [batch, seq]`` to ``logits [batch, seq, vocabulary]``; with a cache, one token and ``past_key_values.*``."""
    width = config.width
    ids = g.input("input_ids", [g.dims.batch, g.dims.seq], np.int64)
    mask = None
    if g.dims.past is not None:  # the new token sees every cached one: no mask
        past_inputs(g, config.layers, Heads(count=config.heads, kv=config.heads, size=width // config.heads))
        places = past_positions(g, first=POSITION_OFFSET)
    else:
        length = sequence_length(g, ids)
        mask = causal_mask(g, length)
        places = positions(g, length, first=POSITION_OFFSET)
    table = g.parameter("embed_tokens.weight", [config.vocabulary, width], Init.EMBEDDING)
    rows = g.parameter("embed_positions.weight", [config.max_positions + POSITION_OFFSET, width], Init.EMBEDDING)
    x = g.add(
        "Add",
        g.add("Gather", table, ids, name="embed_tokens"),
        g.add("Gather", rows, places, name="embed_positions"),
        name="embeddings",
    )
    for layer in range(config.layers):
        with g.scope(f"layers.{layer}"):
            x = block(g, x, config, mask, layer)
    x = layer_norm(g, x, "final_norm", width, 1e-5)
    g.output(tied_head(g, x, ids, table, width, config.vocabulary), "logits", [g.dims.batch, g.dims.seq, config.vocabulary])


def block(g: GraphBuilder, x: str, config: OptConfig, mask: str | None, layer: int) -> str:
    """One decoder layer."""
    normed = layer_norm(g, x, "attention_norm", config.width, 1e-5)
    with g.scope("attention"):
        attended = self_attention(g, normed, config.width, config.heads, mask, layer)
    x = g.add("Add", x, attended, name="attention_residual")
    normed = layer_norm(g, x, "mlp_norm", config.width, 1e-5)
    with g.scope("mlp"):
        hidden = g.add("Relu", linear(g, normed, "fc1", config.width, config.ffn), name="relu")
        y = linear(g, hidden, "fc2", config.ffn, config.width)
    return g.add("Add", x, y, name="mlp_residual")
