"""Small models without attention: a perceptron, and residual convolutional networks in one and two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from models.builder import GraphBuilder, Init
from models.layers import gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Widths from the input to the classes."""

    widths: tuple[int, ...] = (256, 1024, 512, 10)


def build_mlp(g: GraphBuilder, config: MlpConfig) -> None:
    """``x [batch, widths[0]]`` to ``logits [batch, widths[-1]]``: Gemm layers ``fc1``... with ReLU between, then ``head``."""
    x = g.input("x", [g.dims.batch, config.widths[0]])
    steps = list(zip(config.widths, config.widths[1:], strict=False))
    for index, (inputs, outputs) in enumerate(steps[:-1], start=1):
        x = g.add("Relu", gemm(g, x, f"fc{index}", inputs, outputs), name=f"relu{index}")
    g.output(gemm(g, x, "head", *steps[-1]), "logits", [g.dims.batch, config.widths[-1]])


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnConfig:
    """A residual network: ``size`` is the input's extent on each spatial axis, and its length the number of axes.

    Each entry of ``stages`` is the channels of one block, which halves every axis; inner convolutions have ``groups``.
    """

    size: tuple[int, ...]
    channels: int
    stem: int
    stages: tuple[int, ...]
    groups: int
    classes: int = 10


def build_cnn(g: GraphBuilder, config: CnnConfig) -> None:
    """``image [batch, channels, *size]`` to ``logits [batch, classes]``."""
    x = g.input("image", [g.dims.batch, config.channels, *config.size])
    x = g.add("Relu", convolution(g, x, "stem", config.channels, config.stem, config, kernel=5), name="stem.relu")
    channels = config.stem
    for index, outputs in enumerate(config.stages):
        with g.scope(f"blocks.{index}"):
            x = residual_block(g, x, channels, outputs, config)
        channels = outputs
    pooled = g.add("Flatten", g.add("GlobalAveragePool", x, name="pool"), name="flat", axis=1)
    g.output(gemm(g, pooled, "head", channels, config.classes), "logits", [g.dims.batch, config.classes])


def residual_block(g: GraphBuilder, x: str, inputs: int, outputs: int, config: CnnConfig) -> str:
    """Strided 3-tap convolution, grouped and dilated 3-tap convolution with batch norm, and a strided 1-tap shortcut."""
    y = g.add("Relu", convolution(g, x, "conv1", inputs, outputs, config, stride=2), name="relu1")
    y = convolution(g, y, "conv2", outputs, outputs, config, groups=config.groups, dilation=2, bias=False)
    y = batch_norm(g, y, "norm", outputs)
    shortcut = convolution(g, x, "shortcut", inputs, outputs, config, kernel=1, stride=2)
    return g.add("Relu", g.add("Add", y, shortcut, name="residual"), name="relu2")


def convolution(
    g: GraphBuilder,
    x: str,
    name: str,
    inputs: int,
    outputs: int,
    config: CnnConfig,
    *,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> str:
    """Conv with the same taps on every axis, padded so that stride 1 keeps the size."""
    axes = len(config.size)
    taps = kernel**axes
    parameters = [g.parameter(f"{name}.weight", [outputs, inputs // groups, *[kernel] * axes], fan_in=inputs // groups * taps)]
    if bias:
        parameters.append(g.parameter(f"{name}.bias", [outputs], Init.BIAS))
    return g.add(
        "Conv",
        x,
        *parameters,
        name=name,
        kernel_shape=[kernel] * axes,
        strides=[stride] * axes,
        dilations=[dilation] * axes,
        pads=[dilation * (kernel // 2)] * (2 * axes),
        group=groups,
    )


def batch_norm(g: GraphBuilder, x: str, name: str, channels: int) -> str:
    """Inference batch normalisation with its running mean and variance."""
    inits = {"weight": Init.SCALE, "bias": Init.BIAS, "mean": Init.BIAS, "variance": Init.VARIANCE}
    figures = [g.parameter(f"{name}.{part}", [channels], init) for part, init in inits.items()]
    return g.add("BatchNormalization", x, *figures, name=name, epsilon=1e-5)
