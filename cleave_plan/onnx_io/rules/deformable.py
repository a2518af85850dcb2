"""DeformConv: the server gathers the input at its displaced positions, the product is that of a convolution.

One GEMM for each group: rows are output positions of all images, K (channel, kernel position), columns the group's output
channels. All axes can be cut; a tile is sent its rows of the gathered input. The interpolation is the server's, as is the bias.
"""

from __future__ import annotations

from itertools import product as every
from math import prod

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.rules.convolutions import conv_form
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.workload.gemm import Gemm


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape, _ = conv_form(node, needed(sizes, 0), needed(sizes, 1))
    return (Form(shape=shape),)


def _lower(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    x, w, offset = (operand(arrays, place) for place in range(3))
    bias, mask = optional(arrays, 3), optional(arrays, 4)
    groups, _, depth, columns = gemm.shape
    _, window = conv_form(node, x.shape, w.shape)
    images, output = x.shape[0], window.output
    gathered = _gathered(node, x, w.shape[2:], offset, mask, output)

    def finish(result: Array) -> Array:
        whole = result.reshape(groups, images, prod(output), columns).transpose(1, 0, 3, 2)
        whole = whole.reshape(images, groups * columns, *output)
        return whole if bias is None else in_type(whole + bias.reshape(1, -1, *(1,) * len(output)), result.dtype)

    # [images, channels, taps, positions] -> [groups, images * positions, channels of the group * taps]
    by_group = gathered.reshape(images, groups, depth, -1).transpose(1, 0, 3, 2)
    return Lowered(
        a=by_group.reshape(groups, -1, depth), b=w.reshape(groups, columns, depth).transpose(0, 2, 1), finish=finish
    )  # fmt: skip


def _gathered(
    node: onnx.NodeProto, x: Array, kernel: tuple[int, ...], offset: Array, mask: Array | None, output: tuple[int, ...]
) -> Array:
    """The input at every displaced kernel position, times its mask: [images, channels, taps, positions]."""
    axes = x.ndim - 2
    geometry = Convolution.of(node, axes)
    shares = get_int(node, "offset_group", 1)
    images, channels = x.shape[:2]
    taps = prod(kernel)
    moved = offset.reshape(images, shares, taps, axes, *output)
    scale = None if mask is None else mask.reshape(images, shares, 1, taps, prod(output))
    parts = x.reshape(images, shares, channels // shares, *x.shape[2:])
    result = np.empty((images, shares, channels // shares, taps, prod(output)), x.dtype)
    grid = np.meshgrid(*(np.arange(size) * step for size, step in zip(output, geometry.strides, strict=True)), indexing="ij")
    for number, tap in enumerate(every(*map(range, kernel))):
        for image, share in every(range(images), range(shares)):
            places = [
                grid[axis] - geometry.begin[axis] + tap[axis] * geometry.dilations[axis] + moved[image, share, number, axis]
                for axis in range(axes)
            ]
            result[image, share, :, number] = _interpolated(parts[image, share], [place.ravel() for place in places])
    if scale is not None:
        result = in_type(result * scale, x.dtype)
    return result.reshape(images, channels, taps, prod(output))


def _interpolated(image: Array, places: list[Array]) -> Array:
    """``image`` [channels, ...] at fractional ``places`` (one array for each axis), linear between neighbours, 0 outside."""
    low = [np.floor(place).astype(np.int64) for place in places]
    total = np.zeros((image.shape[0], places[0].size), np.promote_types(image.dtype, np.float32))
    for corner in every((0, 1), repeat=len(places)):
        at = [start + step for start, step in zip(low, corner, strict=True)]
        weight = np.ones(places[0].size)
        for place, start, step in zip(places, low, corner, strict=True):
            weight = weight * ((place - start) if step else 1 - (place - start))
        inside = np.logical_and.reduce([(x >= 0) & (x < size) for x, size in zip(at, image.shape[1:], strict=True)])
        clipped = [np.clip(x, 0, size - 1) for x, size in zip(at, image.shape[1:], strict=True)]
        flat = np.ravel_multi_index(clipped, image.shape[1:])
        total += np.where(inside, weight, 0) * image.reshape(image.shape[0], -1)[:, flat]
    return total


DEFORM_CONV = Operator(forms=_forms, lower=_lower)
