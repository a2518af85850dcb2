"""ViT: image patches by a convolution, a class token, encoder with norms before each block, erf GELU, a linear head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.builder import GraphBuilder, Init
from models.layers import gelu_erf, gemm, layer_norm, linear, self_attention

CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """Sizes of a vision transformer; ``image`` and ``patch`` are the sides of squares, in pixels."""

    layers: int
    width: int
    heads: int
    ffn: int
    image: int = 224
    patch: int = 16
    classes: int = 1000
    epsilon: float = 1e-12

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.image // self.patch) ** 2 + 1


def build(g: GraphBuilder, config: VitConfig) -> None:
    """``pixel_values [batch, 3, image, image]`` to ``logits [batch, classes]``."""
    pixels = g.input("pixel_values", [g.dims.batch, CHANNELS, config.image, config.image])
    x = embeddings(g, pixels, config)
    for layer in range(config.layers):
        with g.scope(f"layers.{layer}"):
            x = block(g, x, config)
    x = layer_norm(g, x, "final_norm", config.width, config.epsilon)
    first = g.add("Gather", x, g.constant(0, np.int64), name="head.class_token", axis=1)
    g.output(gemm(g, first, "head", config.width, config.classes), "logits", [g.dims.batch, config.classes])


def embeddings(g: GraphBuilder, pixels: str, config: VitConfig) -> str:
    """``[batch, tokens, width]``: the class token, then the patches, plus positions."""
    width, patch = config.width, config.patch
    with g.scope("embeddings"):
        kernel = g.parameter("patch.weight", [width, CHANNELS, patch, patch], fan_in=CHANNELS * patch * patch)
        bias = g.parameter("patch.bias", [width], Init.BIAS)
        grid = g.add("Conv", pixels, kernel, bias, name="patch", kernel_shape=[patch, patch], strides=[patch, patch])
        flat = g.add("Reshape", grid, g.integers(0, width, -1), name="patch.flat")
        patches = g.add("Transpose", flat, name="patch.tokens", perm=[0, 2, 1])
        batch = g.add("Shape", pixels, name="batch", start=0, end=1)
        shape = g.add("Concat", batch, g.integers(1, width), name="class_token.shape", axis=0)
        token = g.add("Expand", g.parameter("class_token", [1, 1, width], Init.EMBEDDING), shape, name="class_token.expanded")
        tokens = g.add("Concat", token, patches, name="tokens", axis=1)
        return g.add("Add", tokens, g.parameter("positions", [1, config.tokens, width], Init.EMBEDDING), name="sum")


def block(g: GraphBuilder, x: str, config: VitConfig) -> str:
    """One encoder layer."""
    normed = layer_norm(g, x, "attention_norm", config.width, config.epsilon)
    with g.scope("attention"):
        attended = self_attention(g, normed, config.width, config.heads, None)
    x = g.add("Add", x, attended, name="attention_residual")
    normed = layer_norm(g, x, "mlp_norm", config.width, config.epsilon)
    with g.scope("mlp"):
        hidden = gelu_erf(g, linear(g, normed, "fc1", config.width, config.ffn), "gelu")
        y = linear(g, hidden, "fc2", config.ffn, config.width)
    return g.add("Add", x, y, name="mlp_residual")
