"""Shapes of the operators that models consist of, for the plain case: what is needed is known and fits.

A rule gets the node and the facts of its inputs. It returns the facts of all outputs, or None to leave the question to onnx's
own inference, which knows every form of every operator, words every contradiction, and takes ten times as long to ask. Rules
hold for operator sets from :data:`FIRST_OPSET` on, where operators broadcast as NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import onnx

from cleave_plan.onnx_io import layer_shapes, part_shapes
from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.broadcasting import axis_in, broadcast
from cleave_plan.onnx_io.facts import Dim, Fact, ShapeContradictionError

Facts = Sequence[Fact]
CommonRule = Callable[[onnx.NodeProto, Facts], list[Fact] | None]

FIRST_OPSET = 7

_BOOL = onnx.TensorProto.BOOL

# An attribute can hold any number; one that names no type is onnx's to refuse.
_ELEMENTS = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def axes_of(node: onnx.NodeProto, inputs: Facts, place: int) -> tuple[int, ...] | None:
    """The attribute ``axes``, or the values of the input at ``place``, which replaced it; () when there is neither, None when
    the values are not known."""
    if place < len(node.input) and node.input[place]:
        value = inputs[place].whole_numbers
        return None if value is None or value.ndim > 1 else tuple(int(axis) for axis in value.ravel())
    return get_ints(node, "axes", ()) or ()


def _like_first(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """One output, of the first input's shape and type."""
    first = inputs[0]
    return [Fact(elem=first.elem, shape=first.shape)] if first.elem and len(node.output) == 1 else None


def _along_axis(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Like the first input, which has the axis that is named."""
    shape = inputs[0].shape
    if shape is None or axis_in(get_int(node, "axis", -1), len(shape)) is None:
        return None
    return _like_first(node, inputs)


def _broadcast_all(shapes: Iterable[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """The common shape of ``shapes``; None unless they are the same or of known sizes that broadcast."""
    result: tuple[Dim, ...] | None = None
    for shape in shapes:
        if shape is None or None in shape:
            return None
        if result is None or result == shape:
            result = shape
        elif all(isinstance(size, int) for size in (*result, *shape)):
            try:
                result = broadcast(result, shape)
            except ShapeContradictionError:
                return None
        else:
            return None
    return result


def _elementwise(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Operands of one type, which is the result's."""
    used = inputs[: len(node.input)]
    shape = _broadcast_all([fact.shape for fact in used])
    if shape is None or len({fact.elem for fact in used}) != 1 or not used[0].elem or node.attribute:
        return None
    return [Fact(elem=used[0].elem, shape=shape)]


def _power(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape = _broadcast_all([inputs[0].shape, inputs[1].shape])
    return None if shape is None or not inputs[0].elem else [Fact(elem=inputs[0].elem, shape=shape)]


def _comparison(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    found = _elementwise(node, inputs)
    return None if found is None else [Fact(elem=_BOOL, shape=found[0].shape)]


def _where(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape = _broadcast_all([fact.shape for fact in inputs[:3]])
    fits = inputs[0].elem == _BOOL and inputs[1].elem == inputs[2].elem != 0
    return [Fact(elem=inputs[1].elem, shape=shape)] if fits and shape is not None else None


def _cast(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    elem = get_int(node, "to", 0)
    return [Fact(elem=elem, shape=inputs[0].shape)] if inputs[0].elem and elem in _ELEMENTS else None


def _transpose(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape = inputs[0].shape
    if shape is None or not inputs[0].elem:
        return None
    order = get_ints(node, "perm") or tuple(range(len(shape)))[::-1]
    if sorted(order) != list(range(len(shape))):
        return None
    return [Fact(elem=inputs[0].elem, shape=tuple(shape[axis] for axis in order))]


def _concat(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    used = inputs[: len(node.input)]
    sizes = [fact.sizes for fact in used]
    first = sizes[0] if sizes else None
    axis = None if first is None else axis_in(get_int(node, "axis", 1), len(first))
    if first is None or axis is None or len({fact.elem for fact in used}) != 1 or not used[0].elem:
        return None
    total = 0
    for size in sizes:
        if size is None or len(size) != len(first) or size[:axis] != first[:axis] or size[axis + 1 :] != first[axis + 1 :]:
            return None
        total += size[axis]
    return [Fact(elem=used[0].elem, shape=(*first[:axis], total, *first[axis + 1 :]))]


def _unsqueeze(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape, axes = inputs[0].shape, axes_of(node, inputs, 1)
    if shape is None or not axes or not inputs[0].elem:
        return None
    rank = len(shape) + len(axes)
    places = {axis_in(axis, rank) for axis in axes}
    if len(places) != len(axes) or None in places:
        return None
    rest = iter(shape)
    return [Fact(elem=inputs[0].elem, shape=tuple(1 if axis in places else next(rest) for axis in range(rank)))]


def _squeeze(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape, axes = inputs[0].shape, axes_of(node, inputs, 1)
    if shape is None or axes is None or not inputs[0].elem:
        return None
    if not axes:  # every axis of size 1; an empty list of axes is for onnx to judge
        sizes = inputs[0].sizes
        listed = len(node.input) > 1 and node.input[1]
        return None if sizes is None or listed else [Fact(elem=inputs[0].elem, shape=tuple(size for size in sizes if size != 1))]
    places = {axis_in(axis, len(shape)) for axis in axes}
    if any(axis is None or shape[axis] != 1 for axis in places):
        return None
    return [Fact(elem=inputs[0].elem, shape=tuple(size for axis, size in enumerate(shape) if axis not in places))]


def _flatten(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    sizes, axis = inputs[0].sizes, get_int(node, "axis", 1)
    if sizes is None or not -len(sizes) <= axis <= len(sizes) or not inputs[0].elem:
        return None
    axis = axis if axis >= 0 else axis + len(sizes)
    return [Fact(elem=inputs[0].elem, shape=(prod(sizes[:axis]), prod(sizes[axis:])))]


def _pad(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    sizes = inputs[0].sizes
    if sizes is None or not inputs[0].elem or (len(node.input) > 3 and node.input[3]):
        return None
    value = inputs[1].whole_numbers if len(node.input) > 1 else None
    pads = get_ints(node, "pads", ()) or () if value is None else tuple(int(item) for item in value.ravel())
    if len(pads) != 2 * len(sizes) or not pads:
        return None
    padded = tuple(size + before + after for size, before, after in zip(sizes, pads, pads[len(sizes) :], strict=False))
    return None if min(padded) < 0 else [Fact(elem=inputs[0].elem, shape=padded)]


def _reduce(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    shape, axes = inputs[0].shape, axes_of(node, inputs, 1)
    if shape is None or axes is None or not inputs[0].elem or (not axes and get_int(node, "noop_with_empty_axes", 0)):
        return None
    places = {axis_in(axis, len(shape)) for axis in axes} or set(range(len(shape)))
    if None in places:
        return None
    if get_int(node, "keepdims", 1):
        left = tuple(1 if axis in places else size for axis, size in enumerate(shape))
    else:
        left = tuple(size for axis, size in enumerate(shape) if axis not in places)
    return [Fact(elem=inputs[0].elem, shape=left)]


def _range(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Whole numbers whose bounds are known."""
    bounds = [fact.whole_value for fact in inputs[:3]]
    if any(value is None or value.size != 1 or value.dtype.kind != "i" for value in bounds):
        return None
    start, limit, step = (int(value.item()) for value in bounds if value is not None)
    return [Fact(elem=inputs[0].elem, shape=(len(range(start, limit, step)),))] if step else None


def _dequantize(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    elem = get_int(node, "output_dtype", 0) or inputs[1].elem
    return [Fact(elem=elem, shape=inputs[0].shape)] if elem and inputs[0].elem else None


def _quantize(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    elem = inputs[2].elem if len(node.input) > 2 else 0
    return [Fact(elem=elem, shape=inputs[0].shape)] if elem and inputs[0].elem else None


_LIKE_FIRST = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Clip", "Cos", "Cosh", "CumSum",
    "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish",
    "Neg", "Not", "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare",
)  # fmt: skip

COMMON_RULES: dict[str, CommonRule] = {
    **dict.fromkeys(_LIKE_FIRST, _like_first),
    **dict.fromkeys(("Hardmax", "LayerNormalization", "LogSoftmax", "Softmax"), _along_axis),
    **dict.fromkeys(("Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Sub", "Sum", "Xor"), _elementwise),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _comparison),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), layer_shapes.global_pool),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), layer_shapes.recurrent),
    **dict.fromkeys(("AveragePool", "MaxPool"), layer_shapes.pool),
    "BatchNormalization": layer_shapes.batch_norm, "Gemm": layer_shapes.gemm, "MatMul": layer_shapes.matmul,
    "MatMulInteger": layer_shapes.matmul_integer, "TopK": layer_shapes.top_k,
    "Gather": part_shapes.gather, "GatherElements": part_shapes.gather_elements, "GatherND": part_shapes.gather_nd,
    "Slice": part_shapes.sliced, "Split": part_shapes.split,
    "Cast": _cast, "Concat": _concat, "DequantizeLinear": _dequantize, "Flatten": _flatten, "Pad": _pad, "Pow": _power,
    "QuantizeLinear": _quantize, "Range": _range, "Squeeze": _squeeze, "Transpose": _transpose, "Unsqueeze": _unsqueeze,
    "Where": _where,
}  # fmt: skip
"""Rules by operator of the standard domain."""
