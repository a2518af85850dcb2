"""ResNet with bottleneck blocks, for inference: batch normalisation is folded into each convolution's weight and bias, as
exporters write it. Blocks halve the image in their 3 x 3 convolution (version 1.5)."""

from __future__ import annotations

from dataclasses import dataclass

from models.builder import GraphBuilder, Init
from models.layers import gemm

EXPANSION = 4
"""Output channels of a block for each of its inner ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """``blocks`` in each stage; stage s works on ``width * 2**s`` channels inside, and all but the first halve the image."""

    blocks: tuple[int, ...]
    width: int = 64
    image: int = 224
    classes: int = 1000


def build(g: GraphBuilder, config: ResNetConfig) -> None:
    """``image [batch, 3, image, image]`` to ``logits [batch, classes]``."""
    x = g.input("image", [g.dims.batch, 3, config.image, config.image])
    x = g.add("Relu", convolution(g, x, "stem", 3, config.width, kernel=7, stride=2), name="stem.relu")
    x = g.add("MaxPool", x, name="stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = config.width
    for stage, blocks in enumerate(config.blocks):
        for index in range(blocks):
            with g.scope(f"stages.{stage}.{index}"):
                x = bottleneck(g, x, channels, config.width << stage, stride=2 if stage and not index else 1)
            channels = EXPANSION * config.width << stage
    pooled = g.add("Flatten", g.add("GlobalAveragePool", x, name="pool"), name="flat", axis=1)
    g.output(gemm(g, pooled, "head", channels, config.classes), "logits", [g.dims.batch, config.classes])


def bottleneck(g: GraphBuilder, x: str, inputs: int, inner: int, *, stride: int) -> str:
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut, which is projected where its shape changes."""
    y = g.add("Relu", convolution(g, x, "conv1", inputs, inner), name="relu1")
    y = g.add("Relu", convolution(g, y, "conv2", inner, inner, kernel=3, stride=stride), name="relu2")
    y = convolution(g, y, "conv3", inner, EXPANSION * inner)
    if stride > 1 or inputs != EXPANSION * inner:
        x = convolution(g, x, "shortcut", inputs, EXPANSION * inner, stride=stride)
    return g.add("Relu", g.add("Add", y, x, name="residual"), name="relu3")


def convolution(g: GraphBuilder, x: str, name: str, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> str:
    """Conv with bias, padded so that stride 1 keeps the size."""
    weight = g.parameter(f"{name}.weight", [outputs, inputs, kernel, kernel], fan_in=inputs * kernel**2)
    bias = g.parameter(f"{name}.bias", [outputs], Init.BIAS)
    return g.add(
        "Conv", x, weight, bias, name=name,
        kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
    )  # fmt: skip
