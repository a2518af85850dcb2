"""Pooling and resizing of ``[N, C, *sizes]``; sizes of the spatial axes must be known."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from cleave_plan.onnx_io.attributes import get_ints
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.rules.convolution import spatial
from cleave_plan.onnx_io.gradient.rules.shape import added_along, numbers_below
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("MaxPool")
def max_pool(op: Op) -> Partials:
    """Y = the largest element of each window, I its place: dX[I] = Σ dY (of several largest, the one that I names)."""
    if op.integer("storage_order", 0):
        raise NoRuleError("MaxPool with indices in column-major order")

    def of_x() -> Tensor:
        x = op.x(0)
        flat = x.like(0).expand(x.op("Size").reshape([1]))
        placed = flat.op("ScatterElements", op.y(1).reshape([-1]), op.dy.reshape([-1]), axis=0, reduction="add")
        return placed.reshape(x.sizes())

    return {0: of_x}


@gradient_of("AveragePool")
def average_pool(op: Op) -> Partials:
    """Y = the mean of each window: each of its elements gets dY / n, n the number that counts there (Col2Im adds them up)."""
    x, dy = op.x(0), op.dy
    sizes, outputs = spatial(x), spatial(op.y())
    kernel = get_ints(op.node, "kernel_shape") or ()
    geometry = Convolution.of(op.node, len(sizes))
    begin = [geometry.axis(axis, size, window)[1] for axis, (size, window) in enumerate(zip(sizes, kernel, strict=True))]

    def of_x() -> Tensor:
        counts = _counted(op, geometry, sizes, outputs, kernel, begin)
        share = dy / dy.constant(counts.astype(dy.numpy_type))
        windows = share.reshape([0, 0, 1, prod(outputs)]).expand(dy.ints(1, 1, prod(kernel), prod(outputs)))
        reach = [(window - 1) * step + 1 for window, step in zip(kernel, geometry.dilations, strict=True)]
        ends = [
            max(0, (out - 1) * stride + span - size - before)
            for out, stride, span, size, before in zip(outputs, geometry.strides, reach, sizes, begin, strict=True)
        ]
        return windows.reshape([0, -1, prod(outputs)]).op(
            "Col2Im", dy.ints(*sizes), dy.ints(*kernel), strides=geometry.strides, dilations=geometry.dilations,
            pads=[*begin, *ends],
        )  # fmt: skip

    return {0: of_x}


def _counted(
    op: Op, geometry: Convolution, sizes: tuple[int, ...], outputs: tuple[int, ...], kernel: tuple[int, ...], begin: list[int]
) -> NDArray[np.float64]:
    """How many elements each window counts, ``[1, 1, *outputs]``: those inside the input, or inside its padding too."""
    padded = bool(op.integer("count_include_pad", 0))
    counts = np.ones((1, 1), np.float64)
    for axis, size in enumerate(sizes):
        first = np.arange(outputs[axis])[:, None] * geometry.strides[axis] - begin[axis]
        places = first + np.arange(kernel[axis]) * geometry.dilations[axis]
        low, high = (-begin[axis], size + geometry.end[axis]) if padded else (0, size)
        along = ((places >= low) & (places < high)).sum(1)
        counts = counts[..., None] * along
    return counts


@gradient_of("GlobalAveragePool")
def global_average_pool(op: Op) -> Partials:
    """Y = the mean of each channel: dX = dY / n everywhere."""

    def of_x() -> Tensor:
        x = op.x(0)
        return (op.dy / x.count_along(range(2, x.rank), op.dy.elem)).expand(x.sizes())

    return {0: of_x}


@gradient_of("GlobalMaxPool")
def global_max_pool(op: Op) -> Partials:
    """Y = the largest element of each channel: dY goes where X = Y, in equal parts where several are."""

    def of_x() -> Tensor:
        hits = op.x(0).equals(op.y()).cast(op.dy.elem)
        return hits * (op.dy / hits.sum(*range(2, op.x(0).rank)))

    return {0: of_x}


@gradient_of("Resize", passive=(1, 2))
def resize(op: Op) -> Partials:
    """Y is X interpolated, along one axis after the other: Y = X R on each, so dX = dY R^T.

    R comes from the operator itself: nearest neighbours of the numbers 0, 1, 2, ... (whose gradients are added up), otherwise
    the interpolation of the identity matrix.
    """
    if op.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise NoRuleError("Resize with a region (tf_crop_and_resize)")
    nearest = op.text("mode", "nearest") == "nearest"

    def of_x() -> Tensor:
        gradient = op.dy
        for axis, size, output, scale in _resized_axes(op):
            if nearest:
                numbers = numbers_below(gradient.constant(np.int64(size))).cast(gradient.elem)
                sources = _again(op, numbers, [output], [scale]).cast(gradient.ints(0).elem)
                gradient = added_along(gradient, sources, axis, gradient.ints(size))
            else:
                identity = gradient.constant(np.eye(size, dtype=gradient.numpy_type))
                matrix = _again(op, identity, [size, output], [1.0, scale])
                moved = gradient.moved(axis, gradient.rank - 1)
                moved = moved.op("MatMul", matrix.swapped(), phase=op.phase(0))
                gradient = moved.moved(gradient.rank - 1, axis)
        return gradient

    return {0: of_x}


def _resized_axes(op: Op) -> list[tuple[int, int, int, float | None]]:
    """``(axis, input size, output size, scale)`` of the axes that change; the scale is None where sizes are given."""
    x, y = op.x(0).shape or (), op.y().shape or ()
    axes = [axis % len(x) for axis in op.integers("axes") or range(len(x))]
    scales = op.value(2) if op.has(2) else None
    if op.has(2) and scales is None:
        raise NoRuleError("the scales of Resize must be constant")
    factors: list[float | None] = [None] * len(axes) if scales is None or not scales.size else [float(scale) for scale in scales]
    found = []
    for axis, scale in zip(axes, factors, strict=True):
        size, output = x[axis], y[axis]
        if scale == 1.0 or (scale is None and size == output):
            continue
        if not isinstance(size, int) or not isinstance(output, int):
            raise NoRuleError("the sizes of resized axes must be known: bind them with --dim or --shape")
        found.append((axis, size, output, scale))
    return found


def _again(op: Op, x: Tensor, sizes: list[int], scales: list[float | None]) -> Tensor:
    """The operator on another tensor, to ``sizes`` or by ``scales``."""
    by_scale = None if scales[-1] is None else x.constant(np.array(scales, np.float32))
    to_size = x.ints(*sizes) if by_scale is None else None
    return op.again(x, None, by_scale, to_size, axes=None, keep_aspect_ratio_policy=None)[0]
