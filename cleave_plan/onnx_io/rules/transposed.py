"""ConvTranspose: one GEMM for each group, whose products the server adds at their places (col2im).

Rows are the input positions of all images, K the group's input channels, columns (output channel, kernel position). All axes
can be cut. A tile is sent its rows of the input and its columns of the weights; where kernels overlap, the result holds every
product apart, and the server adds them, bias last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every
from math import prod

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_ints
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.workload.gemm import Gemm, GemmShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the products of each input position go: tuples with one entry per axis.

    Kernel position t of input position p is added to output position p * stride + t * dilation - begin, where that exists.
    """

    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    output: tuple[int, ...]

    @classmethod
    def of(cls, node: onnx.NodeProto, size: tuple[int, ...], kernel: tuple[int, ...]) -> Placement:
        """The placement for an input of spatial ``size``; raises ShapeContradictionError for attributes that do not fit."""
        axes = len(size)
        geometry = Convolution.of(node, axes)
        extra = get_ints(node, "output_padding", (0,) * axes) or (0,) * axes
        asked = get_ints(node, "output_shape")
        if len(extra) != axes or (asked is not None and len(asked) < axes):
            raise ShapeContradictionError(f"output_padding {extra} and output_shape {asked} are not for {axes} spatial axes")
        begin, output = [], []
        for axis in range(axes):
            reach = (kernel[axis] - 1) * geometry.dilations[axis] + 1
            whole = geometry.strides[axis] * (size[axis] - 1) + extra[axis] + reach
            wanted = None
            if asked is not None:
                wanted = asked[axis - axes]
            elif geometry.auto_pad.startswith("SAME"):
                wanted = size[axis] * geometry.strides[axis]
            if wanted is None:
                begin.append(geometry.begin[axis])
                output.append(max(0, whole - geometry.begin[axis] - geometry.end[axis]))
                continue
            surplus = max(0, whole - wanted)
            # The odd element is taken off at the end for SAME_UPPER, at the begin otherwise.
            begin.append(surplus // 2 if geometry.auto_pad == "SAME_UPPER" else surplus - surplus // 2)
            output.append(wanted)
        return cls(
            groups=geometry.groups, strides=geometry.strides, dilations=geometry.dilations, begin=tuple(begin),
            output=tuple(output),
        )  # fmt: skip

    def add(self, products: Array) -> Array:
        """The output [images, channels, *output] from ``products`` [images, channels, *input, *kernel]."""
        axes = len(self.output)
        size, kernel = products.shape[2 : 2 + axes], products.shape[2 + axes :]
        result = np.zeros((*products.shape[:2], *self.output), np.promote_types(products.dtype, np.float32))
        for tap in every(*map(range, kernel)):
            source: list[slice | int] = [slice(None), slice(None)]
            target = [slice(None), slice(None)]
            for axis, t in enumerate(tap):
                stride, shift = self.strides[axis], t * self.dilations[axis] - self.begin[axis]
                first = max(0, -(shift // stride))
                last = min(size[axis], -(-(self.output[axis] - shift) // stride))
                last = max(first, last)
                source.append(slice(first, last))
                start = first * stride + shift
                target.append(slice(start, start + (last - first) * stride, stride))
            source += tap
            if all(side.start is None or side.stop > side.start for side in target):
                result[tuple(target)] += products[tuple(source)]
        return result


def _forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    x, w = needed(sizes, 0), needed(sizes, 1)
    if len(x) < 3 or len(w) != len(x):
        raise ShapeContradictionError(f"ConvTranspose needs operands of one rank above 2, these have {len(x)} and {len(w)} axes")
    groups = Placement.of(node, x[2:], w[2:]).groups
    if x[1] != w[0] or x[1] % groups:
        raise ShapeContradictionError(f"{x[1]} input channels do not fit weights for {w[0]} in {groups} groups")
    return (Form(shape=GemmShape(groups, x[0] * prod(x[2:]), x[1] // groups, w[1] * prod(w[2:]))),)


def _lower(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    x, w, bias = operand(arrays, 0), operand(arrays, 1), optional(arrays, 2)
    groups, rows, depth, columns = gemm.shape
    placement = Placement.of(node, x.shape[2:], w.shape[2:])
    a = np.moveaxis(x.reshape(x.shape[0], groups, depth, -1), 1, 0).transpose(0, 1, 3, 2).reshape(groups, rows, depth)

    def finish(result: Array) -> Array:
        apart = result.reshape(groups, x.shape[0], *x.shape[2:], *w.shape[1:])
        axes = x.ndim - 2
        # [groups, images, *input, channels, *kernel] -> [images, groups * channels, *input, *kernel]
        order = (1, 0, 2 + axes, *range(2, 2 + axes), *range(3 + axes, 3 + 2 * axes))
        turned = apart.transpose(order)
        products = turned.reshape(x.shape[0], groups * w.shape[1], *turned.shape[3:])
        output = placement.add(products)
        if bias is not None:
            output = output + bias.reshape(1, -1, *(1,) * axes)
        return in_type(output, result.dtype)

    return Lowered(a=a, b=w.reshape(groups, depth, columns), finish=finish)


CONV_TRANSPOSE = Operator(forms=_forms, lower=_lower)
