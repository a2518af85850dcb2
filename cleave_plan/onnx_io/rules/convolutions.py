"""Conv, and onnxruntime's FusedConv and NhwcConv.

One GEMM for each group: rows are the output positions of all images, columns the group's output channels. Rows, columns and
groups can be cut; K cannot, because a part of it has no input region of its own. A tile is sent the input region that its
rows read and the kernels of its columns; bias, addend and activation are the server's.
"""

from __future__ import annotations

from math import prod

import onnx

from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.rules.activations import activate
from cleave_plan.onnx_io.rules.forms import Array, Arrays, Form, Lowered, Operator, Sizes, in_type, needed, operand, optional
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape


def conv_form(node: onnx.NodeProto, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[GemmShape, ConvWindow]:
    """Conv of 1 to 3 (or more) spatial axes, input [N, C, ...] and weights [M, C/group, ...]."""
    if len(x) < 3 or len(w) != len(x):
        raise ShapeContradictionError(f"Conv needs input and weights of one rank above 2, these have {len(x)} and {len(w)} axes")
    geometry = Convolution.of(node, len(x) - 2)
    images, channels, kernel = x[0], w[1], w[2:]
    if x[1] != channels * geometry.groups or w[0] % geometry.groups:
        raise ShapeContradictionError(
            f"{x[1]} input and {w[0]} output channels do not fit weights for {channels} channels in {geometry.groups} groups"
        )
    places = [geometry.axis(axis, size, kernel[axis]) for axis, size in enumerate(x[2:])]
    window = ConvWindow(
        images=images, channels=channels, input=x[2:], output=tuple(size for size, _ in places if isinstance(size, int)),
        kernel=kernel, strides=geometry.strides, dilations=geometry.dilations, pads=tuple(begin for _, begin in places),
    )  # fmt: skip
    rows = images * prod(window.output)
    return GemmShape(geometry.groups, rows, channels * prod(kernel), w[0] // geometry.groups), window


def kernels_of(gemm: Gemm, weights: Array) -> Array:
    """Weights [M, C/group, ...] as [groups, K, M/group]; raises ValueError when they are not the planned ones."""
    window = window_of(gemm)
    groups, _, depth, columns = gemm.shape
    if weights.shape != (groups * columns, window.channels, *window.kernel):
        raise ValueError(f"the kernel is {list(weights.shape)}")
    return weights.reshape(groups, columns, depth).transpose(0, 2, 1)


def images_of(gemm: Gemm, result: Array) -> Array:
    """The whole result [N, M, positions] as [N, M, *output]."""
    groups, _, _, columns = gemm.shape
    window = window_of(gemm)
    return result.reshape(window.images, groups * columns, *window.output)


def window_of(gemm: Gemm) -> ConvWindow:
    """The window of a convolution; raises ValueError when it has none."""
    if gemm.window is None:
        raise ValueError("the convolution has no window")
    return gemm.window


def _conv_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    shape, window = conv_form(node, needed(sizes, 0), needed(sizes, 1))
    return (Form(shape=shape, window=window),)


def _lower_conv(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    """Conv; FusedConv adds its fourth input and then applies its activation."""
    bias, addend = optional(arrays, 2), optional(arrays, 3)

    def finish(result: Array) -> Array:
        output = images_of(gemm, result)
        if bias is not None:
            output += in_type(bias.reshape(-1, *(1,) * (output.ndim - 2)), output.dtype)
        if addend is not None:
            output = in_type(output + addend, output.dtype)
        return activate(node, output)

    return Lowered(a=operand(arrays, 0), b=kernels_of(gemm, operand(arrays, 1)), finish=finish)


def _channels_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _channels_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _nhwc_forms(node: onnx.NodeProto, sizes: Sizes) -> tuple[Form, ...]:
    """NhwcConv: channels last in input [N, ..., C], weights [M, ..., C/group] and output."""
    x, w = needed(sizes, 0), needed(sizes, 1)
    if len(x) < 3 or len(w) != len(x):
        raise ShapeContradictionError(f"{node.op_type} needs operands of one rank above 2, these have {len(x)} and {len(w)} axes")
    order = _channels_first(len(x))
    shape, window = conv_form(node, tuple(x[axis] for axis in order), tuple(w[axis] for axis in order))
    return (Form(shape=shape, window=window),)


def _lower_nhwc(node: onnx.NodeProto, gemm: Gemm, arrays: Arrays) -> Lowered:
    first = [operand(arrays, place).transpose(_channels_first(operand(arrays, place).ndim)) for place in (0, 1)]
    addend = optional(arrays, 3)
    rest = (optional(arrays, 2), None if addend is None else addend.transpose(_channels_first(addend.ndim)))
    lowered = _lower_conv(node, gemm, [*first, *rest])
    last = _channels_last(first[0].ndim)
    return Lowered(a=lowered.a, b=lowered.b, finish=lambda result: lowered.finish(result).transpose(last))


CONV = Operator(forms=_conv_forms, lower=_lower_conv)
NHWC_CONV = Operator(forms=_nhwc_forms, lower=_lower_nhwc)
