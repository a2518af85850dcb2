"""Random cases of convolutions, pools and resizing, whose rules must know spatial sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gradient_cases import Case, chance, shape_of, values

Ints = np.ndarray[Any, np.dtype[np.int64]]

SIZED = {"AveragePool", "Conv", "ConvTranspose", "Resize"}
"""Operators whose rules must know the sizes of their inputs."""


def _window(rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Kernel, strides and dilations along one to three axes."""
    axes = int(rng.integers(1, 4))
    kernel, strides, dilations = (rng.integers(1, 4 if axes < 3 else 3, axes) for _ in range(3))
    return kernel, strides, dilations


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups, channels and outputs."""
    groups = int(rng.integers(1, 4))
    return groups, groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))


def conv(rng: np.random.Generator) -> Case:
    """Strides, dilations, unequal paddings, groups, inputs whose last rows no kernel reaches."""
    kernel, strides, dilations = _window(rng)
    groups, channels, outputs = _channels(rng)
    sizes = np.maximum((kernel - 1) * dilations + 1, rng.integers(3, 7, len(kernel)))
    pads = rng.integers(0, 3, 2 * len(kernel))
    attributes = {"strides": strides.tolist(), "dilations": dilations.tolist(), "pads": pads.tolist(), "group": groups}
    inputs = [values(rng, 2, channels, *sizes), values(rng, outputs, channels // groups, *kernel), values(rng, outputs)]
    return Case(op="Conv", inputs=inputs, attributes=attributes)


def conv_transpose(rng: np.random.Generator) -> Case:
    """The same, with rows added behind the output."""
    kernel, strides, dilations = _window(rng)
    groups, channels, outputs = _channels(rng)
    sizes = rng.integers(1, 4, len(kernel))
    whole = (sizes - 1) * strides + (kernel - 1) * dilations + 1
    pads = np.minimum(np.tile((whole - 1) // 2, 2), rng.integers(0, 3, 2 * len(kernel)))
    extra = [int(rng.integers(0, max(stride, dilation))) for stride, dilation in zip(strides, dilations, strict=True)]
    attributes = {
        "strides": strides.tolist(), "dilations": dilations.tolist(), "pads": pads.tolist(), "group": groups,
        "output_padding": extra,
    }  # fmt: skip
    inputs = [values(rng, 2, channels, *sizes), values(rng, channels, outputs // groups, *kernel), values(rng, outputs)]
    return Case(op="ConvTranspose", inputs=inputs, attributes=attributes)


def pool(op: str, rng: np.random.Generator) -> Case:
    """Overlapping windows, dilations, padding that counts or not, windows that hang over the end."""
    axes = int(rng.integers(1, 3))
    kernel, strides, dilations = rng.integers(2, 4, axes), rng.integers(1, 4, axes), rng.integers(1, 3, axes)
    x = values(rng, 2, 2, *((kernel - 1) * dilations + 1 + rng.integers(0, 4, axes)))
    pads = np.concatenate([rng.integers(0, kernel), rng.integers(0, kernel)])
    attributes = {
        "kernel_shape": kernel.tolist(), "strides": strides.tolist(), "dilations": dilations.tolist(), "pads": pads.tolist(),
        "ceil_mode": int(chance(rng)), **({"count_include_pad": int(chance(rng))} if op == "AveragePool" else {}),
    }  # fmt: skip
    return Case(op=op, inputs=[x], attributes=attributes, opset=22)


def global_pool(op: str, rng: np.random.Generator) -> Case:
    """Over all positions along one to three axes."""
    return Case(op=op, inputs=[values(rng, *shape_of(rng, int(rng.integers(3, 6))))])


def resize(rng: np.random.Generator) -> Case:
    """To other sizes, larger and smaller, with every way of reading between pixels that has a rule."""
    x = values(rng, *shape_of(rng, 2), *(size + 1 for size in shape_of(rng, 2)))
    mode = str(rng.choice(["nearest", "linear", "cubic"]))
    coordinates = str(rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    sizes = np.array([*x.shape[:2], *rng.integers(2, 8, 2)])
    return Case(op="Resize", inputs=[x, None, np.zeros(0, np.float32), sizes], attributes=attributes, wanted=[0], fixed=[2, 3])


SPATIAL: Mapping[str, Callable[[np.random.Generator], Case]] = {
    **{op: partial(pool, op) for op in ("AveragePool", "MaxPool")},
    **{op: partial(global_pool, op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    "Conv": conv, "ConvTranspose": conv_transpose, "Resize": resize,
}  # fmt: skip
"""By operator."""
