"""Output shapes by our own rules: where onnx's inference is wrong, does not know the operator, or needs what we know.

A rule gets the node and the facts of its inputs (filled up to MOST_INPUTS with UNKNOWN, so that it may ask for any) and
returns the facts of as many outputs as it knows. It raises ShapeContradictionError when the node cannot run on such inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, prod

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.broadcasting import broadcast
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.facts import LARGEST, Dim, Fact, ShapeContradictionError, partial_shape
from cleave_plan.onnx_io.layer_shapes import gemm

Facts = Sequence[Fact]
ShapeRule = Callable[[onnx.NodeProto, Facts], list[Fact]]

MOST_INPUTS = 9
"""No rule asks for more inputs than that."""

_INT64 = onnx.TensorProto.INT64


def _shape(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Shape, also of a tensor of which only some sizes are known."""
    shape = inputs[0].shape
    if shape is None:
        return [Fact(elem=_INT64, shape=(None,))]
    start, end = get_int(node, "start", 0), get_int(node, "end", len(shape))
    value = partial_shape(shape[slice(*slice(start, end).indices(len(shape)))])
    return [Fact(elem=_INT64, shape=value.shape, value=value)]


def _size(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    sizes = inputs[0].sizes
    value = None if sizes is None or prod(sizes) > LARGEST else np.array(prod(sizes), dtype=np.int64)
    return [Fact(elem=_INT64, shape=(), value=value)]


def _dims_of(fact: Fact) -> tuple[Dim, ...] | None:
    """The dimensions that a shape tensor holds; None when even their number is unknown."""
    if fact.value is not None and fact.value.ndim <= 1 and fact.value.dtype.kind in "iuO":
        return tuple(size if size is None or isinstance(size, str) else int(size) for size in fact.value.ravel().tolist())
    if fact.sizes is not None and len(fact.sizes) == 1:
        return (None,) * fact.sizes[0]
    return None


def _sizes_of(fact: Fact) -> tuple[Dim, ...] | None:
    """Like :func:`_dims_of` where no entry has a special meaning."""
    dims = _dims_of(fact)
    if dims is not None and any(isinstance(size, int) and size < 0 for size in dims):
        raise ShapeContradictionError(f"a size below 0 in the shape {list(dims)}")
    return dims


def _reshape(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Reshape; symbolic sizes that stand on both sides cancel, so that -1 is found in spite of them."""
    data = inputs[0]
    # Before opset 5 the shape was an attribute.
    target = _dims_of(inputs[1]) if len(node.input) > 1 else get_ints(node, "shape", ())
    if target is None:
        return [Fact(elem=data.elem)]
    shape = list(target)
    if not get_int(node, "allowzero", 0):
        for axis, size in enumerate(shape):
            if size == 0:
                shape[axis] = data.shape[axis] if data.shape is not None and axis < len(data.shape) else None
    if shape.count(-1) > 1 or any(isinstance(size, int) and size < -1 for size in shape):
        raise ShapeContradictionError(f"cannot reshape to {target}")
    if -1 in shape:
        place = shape.index(-1)
        shape[place] = _missing_size(data.shape, shape[:place] + shape[place + 1 :])
    fact = Fact(elem=data.elem, shape=tuple(shape))
    if data.sizes is not None and fact.sizes is not None and prod(data.sizes) != prod(fact.sizes):
        raise ShapeContradictionError(f"{list(data.sizes)} cannot be reshaped to {list(target)}")
    return [fact]


def _missing_size(whole: tuple[Dim, ...] | None, others: list[Dim]) -> Dim:
    """The size that -1 stands for, None when it cannot be known."""
    if whole is None or None in whole or None in others:
        return None
    left, right = Counter(whole), Counter(others)
    symbols = {size for size in left | right if isinstance(size, str)}
    total = prod(size for size in whole if isinstance(size, int))
    known = prod(size for size in others if isinstance(size, int))
    spare = [size for size in symbols for _ in range(left[size] - right[size])]
    if any(right[size] > left[size] for size in symbols):
        return None
    if known == 0 or total % known:
        if symbols:
            return None
        raise ShapeContradictionError(f"{list(whole)} cannot be divided into blocks of {others}")
    if not spare:
        return total // known
    return spare[0] if len(spare) == 1 and total == known else None


def _constant_of_shape(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    elem = next((attribute.t.data_type for attribute in node.attribute[:] if attribute.name == "value"), onnx.TensorProto.FLOAT)
    return [Fact(elem=elem, shape=_sizes_of(inputs[0]))]


def _expand(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    target = _sizes_of(inputs[1])
    if target is None or inputs[0].shape is None:
        return [Fact(elem=inputs[0].elem)]
    return [Fact(elem=inputs[0].elem, shape=broadcast(inputs[0].shape, target))]


def _range(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Range: from 0 by 1 up to a size that only has a name, there are that many numbers."""
    start, limit, step = (fact.value for fact in inputs[:3])
    known = [value for value in (start, limit, step) if value is not None and value.size == 1]
    if len(known) < 3:
        return [Fact(elem=inputs[0].elem, shape=(None,))]
    first, last, by = (value.ravel()[0] for value in known)
    if all(not isinstance(number, str) and number is not None for number in (first, last, by)) and by:
        return [Fact(elem=inputs[0].elem, shape=(max(ceil((last - first) / by), 0),))]
    size = last if isinstance(last, str) and first == 0 and by == 1 else None
    return [Fact(elem=inputs[0].elem, shape=(size,))]


def conv_outputs(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """Conv: onnx's inference has counted the undilated kernel for auto_pad in some versions."""
    x, w = inputs[0].shape, inputs[1].shape
    if x is None or w is None or len(x) != len(w) or len(x) < 3:
        return [Fact(elem=inputs[0].elem, shape=(x[0], *([None] * (len(x) - 1))) if x else None)]
    geometry = Convolution.of(node, len(x) - 2)
    return [Fact(elem=inputs[0].elem, shape=(x[0], w[0], *geometry.output(x[2:], w[2:])))]


def _conv_transpose(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """ConvTranspose: SAME_* means output = input * stride; output_shape, when given, is the output's."""
    x, w = inputs[0].shape, inputs[1].shape
    if x is None or w is None or len(x) != len(w) or len(x) < 3:
        return [Fact(elem=inputs[0].elem)]
    axes = len(x) - 2
    geometry = Convolution.of(node, axes)
    extra = get_ints(node, "output_padding", (0,) * axes) or (0,) * axes
    asked = get_ints(node, "output_shape")
    spatial: list[Dim] = []
    for axis, (size, kernel) in enumerate(zip(x[2:], w[2:], strict=True)):
        stride = geometry.strides[axis]
        if asked is not None:
            spatial.append(asked[axis - axes])
        elif not isinstance(size, int) or not isinstance(kernel, int):
            spatial.append(None)
        elif geometry.auto_pad.startswith("SAME"):
            spatial.append(size * stride)
        else:
            reach = (kernel - 1) * geometry.dilations[axis] + 1
            spatial.append(stride * (size - 1) + extra[axis] + reach - geometry.begin[axis] - geometry.end[axis])
    channels = w[1] * geometry.groups if isinstance(w[1], int) else None
    return [Fact(elem=inputs[0].elem, shape=(x[0], channels, *spatial))]


def like_first(node: onnx.NodeProto, inputs: Facts) -> list[Fact]:
    """The first output is like the first input; nothing is said of the others."""
    return [Fact(elem=inputs[0].elem, shape=inputs[0].shape)]


SHAPE_RULES: dict[tuple[str, str], ShapeRule] = {
    ("", "Shape"): _shape, ("", "Size"): _size, ("", "Reshape"): _reshape, ("", "ConstantOfShape"): _constant_of_shape,
    ("", "Expand"): _expand, ("", "Conv"): conv_outputs, ("", "ConvTranspose"): _conv_transpose,
    ("", "Range"): _range,
    ("", "SimplifiedLayerNormalization"): like_first,
}  # fmt: skip

EARLY_OPSETS = range(1, 6)
"""Operator sets in which onnx infers nothing of the most common operators."""

EARLY_RULES: dict[str, Callable[[onnx.NodeProto, Facts], list[Fact] | None]] = {
    **dict.fromkeys(
        (
            "Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid",
            "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu",
            "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh",
        ),
        like_first,
    ),
    "Gemm": gemm,
}  # fmt: skip
"""Their shapes there: operands are alike, or the second is stretched to the first (attribute ``broadcast``)."""
