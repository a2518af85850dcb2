"""BERT: encoder with norms after each block, erf GELU, three embeddings, pooler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import GraphBuilder, Init
from models.layers import cast, gelu_erf, gemm, layer_norm, linear, lowest, positions, self_attention, sequence_length

EPSILON = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT model."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int = 30522
    max_positions: int = 512
    token_types: int = 2


def build(g: GraphBuilder, config: BertConfig) -> None:
    """``input_ids``, ``token_type_ids`` and ``attention_mask`` (1 = real token), all ``[batch, seq]``.

    Outputs: ``last_hidden_state [batch, seq, width]`` and ``pooler_output [batch, width]``.
    """
    width = config.width
    shape = [g.dims.batch, g.dims.seq]
    ids, types, present = (g.input(name, shape, np.int64) for name in ("input_ids", "token_type_ids", "attention_mask"))
    x = embeddings(g, ids, types, config)
    mask = padding_mask(g, present)
    for layer in range(config.layers):
        with g.scope(f"layers.{layer}"):
            x = block(g, x, config, mask)
    g.output(x, "last_hidden_state", [*shape, width])
    first = g.add("Gather", x, g.constant(0, np.int64), name="pooler.first_token", axis=1)
    pooled = g.add("Tanh", gemm(g, first, "pooler", width, width), name="pooler.tanh")
    g.output(pooled, "pooler_output", [g.dims.batch, width])


def embeddings(g: GraphBuilder, ids: str, types: str, config: BertConfig) -> str:
    """Normalised sum of word, position and token-type embeddings."""

    def table(name: str, rows: int) -> str:
        return g.parameter(f"{name}.weight", [rows, config.width], Init.EMBEDDING)

    with g.scope("embeddings"):
        words = g.add("Gather", table("word", config.vocabulary), ids, name="word")
        kinds = g.add("Gather", table("token_type", config.token_types), types, name="token_type")
        where = positions(g, sequence_length(g, ids))
        places = g.add("Gather", table("position", config.max_positions), where, name="position")
        total = g.add("Add", g.add("Add", words, kinds, name="word_and_type"), places, name="sum")
        return layer_norm(g, total, "norm", config.width, EPSILON)


def padding_mask(g: GraphBuilder, present: str) -> str:
    """``[batch, 1, 1, seq]``, added to scores: 0 for real tokens, the lowest value for padding."""
    real = cast(g, present, "mask.real")
    padding = g.add("Sub", g.constant(1), real, name="mask.padding")
    flat = g.add("Mul", padding, g.constant(lowest(g)), name="mask.flat")
    return g.add("Unsqueeze", flat, g.integers(1, 2), name="mask")


def block(g: GraphBuilder, x: str, config: BertConfig, mask: str) -> str:
    """One encoder layer."""
    with g.scope("attention"):
        attended = self_attention(g, x, config.width, config.heads, mask)
    x = g.add("Add", x, attended, name="attention_residual")
    x = layer_norm(g, x, "attention_norm", config.width, EPSILON)
    with g.scope("mlp"):
        hidden = gelu_erf(g, linear(g, x, "fc1", config.width, config.ffn), "gelu")
        y = linear(g, hidden, "fc2", config.ffn, config.width)
    return layer_norm(g, g.add("Add", x, y, name="mlp_residual"), "mlp_norm", config.width, EPSILON)
