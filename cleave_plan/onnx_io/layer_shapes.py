"""Shapes of layers, for the plain case, as :mod:`common_shapes` explains it: products, windows, recurrence, normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.broadcasting import axis_in, matmul_shape
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.facts import Fact, ShapeContradictionError

Facts = Sequence[Fact]
_INT64 = onnx.TensorProto.INT64


def matmul(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Operands of one type whose sizes are known."""
    a, b = inputs[0].sizes, inputs[1].sizes
    if a is None or b is None or not inputs[0].elem or inputs[0].elem != inputs[1].elem:
        return None
    try:
        return [Fact(elem=inputs[0].elem, shape=matmul_shape(a, b))]
    except ShapeContradictionError:
        return None


def batch_norm(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Statistics and factors of one value a channel."""
    sizes = inputs[0].sizes
    if sizes is None or len(sizes) < 2 or any(fact.shape != sizes[1:2] for fact in inputs[1:5]):
        return None
    return [Fact(elem=inputs[0].elem, shape=sizes)] if inputs[0].elem and len(node.output) == 1 else None


def matmul_integer(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Sums of 32 bits."""
    a, b = inputs[0].sizes, inputs[1].sizes
    if a is None or b is None:
        return None
    try:
        return [Fact(elem=onnx.TensorProto.INT32, shape=matmul_shape(a, b))]
    except ShapeContradictionError:
        return None


def gemm(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """A matrix product, turned where the attributes say so."""
    a, b = inputs[0].sizes, inputs[1].sizes
    if a is None or b is None or len(a) != 2 or len(b) != 2 or not inputs[0].elem:
        return None
    m, k = reversed(a) if get_int(node, "transA", 0) else a
    depth, n = reversed(b) if get_int(node, "transB", 0) else b
    return [Fact(elem=inputs[0].elem, shape=(m, n))] if k == depth else None


def global_pool(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """One value a channel."""
    shape = inputs[0].shape
    if shape is None or len(shape) < 3 or not inputs[0].elem:
        return None
    return [Fact(elem=inputs[0].elem, shape=(*shape[:2], *(1,) * (len(shape) - 2)))]


def pool(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Windows that are not rounded up to the last element; places of the largest, where they are asked for, alike."""
    sizes, kernel = inputs[0].sizes, get_ints(node, "kernel_shape", ()) or ()
    if sizes is None or not inputs[0].elem or len(kernel) != len(sizes) - 2 or get_int(node, "ceil_mode", 0):
        return None
    try:
        shape = (*sizes[:2], *Convolution.of(node, len(kernel)).output(sizes[2:], kernel))
    except ShapeContradictionError:
        return None
    return [Fact(elem=inputs[0].elem, shape=shape), Fact(elem=_INT64, shape=shape)][: len(node.output)]


def recurrent(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """LSTM, GRU, RNN: the output of every step, the last one, and the last cell."""
    x, recurrent = inputs[0].sizes, inputs[2].sizes
    if x is None or recurrent is None or len(x) != 3 or len(recurrent) != 3 or not inputs[0].elem:
        return None
    directions, hidden = recurrent[0], recurrent[2]
    if get_int(node, "layout", 0):
        batch, steps = x[:2]
        shapes = [(batch, steps, directions, hidden), *[(batch, directions, hidden)] * 2]
    else:
        steps, batch = x[:2]
        shapes = [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]
    return [Fact(elem=inputs[0].elem, shape=shape) for shape in shapes[: len(node.output)]]


def top_k(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """As many as an attribute, or a known value, says."""
    shape, value = inputs[0].shape, inputs[1].whole_numbers
    axis = None if shape is None else axis_in(get_int(node, "axis", -1), len(shape))
    count = get_int(node, "k", -1) if value is None or value.size != 1 else int(value.item())
    if shape is None or axis is None or count < 0 or not inputs[0].elem:
        return None
    if not isinstance(whole := shape[axis], int) or count > whole:
        return None
    taken = (*shape[:axis], count, *shape[axis + 1 :])
    return [Fact(elem=inputs[0].elem, shape=taken), Fact(elem=_INT64, shape=taken)]
