"""Values of the operators that exporters compute shapes with, in NumPy, for the plain case.

A rule gets the node, the facts of its inputs and the shape of its output, and returns the output's values, or None to leave the
node to onnx's reference implementation: that knows every operator, and takes twenty times as long (and fifteen megabytes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints, get_tensor
from cleave_plan.onnx_io.common_shapes import COMMON_RULES
from cleave_plan.onnx_io.facts import INTEGER_LIMIT, UNKNOWN, Fact, ShapeContradictionError, Value, tensor_to_array
from cleave_plan.onnx_io.part_shapes import slices_of
from cleave_plan.onnx_io.shape_rules import MOST_INPUTS, SHAPE_RULES

ValueRule = Callable[[onnx.NodeProto, Sequence[Fact], Sequence[Value]], Value | None]

_PLAIN: dict[np.dtype[Any], int] = {
    np.dtype(np.int64): onnx.TensorProto.INT64, np.dtype(np.int32): onnx.TensorProto.INT32,
    np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.float64): onnx.TensorProto.DOUBLE,
    np.dtype(np.bool_): onnx.TensorProto.BOOL,
}  # fmt: skip
"""Types that shapes are computed in; values of any other are left alone."""


def plain_fact(node: onnx.NodeProto, values: Sequence[Value | None]) -> Fact | None:
    """The one output of ``node``, an operator of the standard domain, on these inputs; None when no rule covers it."""
    known = []
    for value in values:
        elem = None if value is None else _PLAIN.get(value.dtype)
        if value is None or elem is None:
            return None
        known.append(Fact(elem=elem, shape=value.shape, value=value))
    return fact_on(node, known)


def is_plain(fact: Fact) -> bool:
    """Whether the values of ``fact`` are known, and of a type that shapes are computed in."""
    return fact.value is not None and _PLAIN.get(fact.value.dtype) == fact.elem


def fact_on(node: onnx.NodeProto, known: Sequence[Fact]) -> Fact | None:
    """As :func:`plain_fact`, on inputs of which each :func:`is_plain`."""
    rule = VALUE_RULES.get(node.op_type)
    if rule is None or len(node.output) != 1:
        return None
    try:
        output = _output(node, known)
        found = None if output is None else rule(node, known, [fact.value for fact in known if fact.value is not None])
    except (ShapeContradictionError, ValueError, IndexError, OverflowError):  # the node cannot run; onnx says why
        return None
    if output is None or output.sizes is None or found is None or _PLAIN.get(found.dtype) != output.elem:
        return None
    return Fact(elem=output.elem, shape=output.shape, value=found.reshape(output.sizes))


def _output(node: onnx.NodeProto, known: Sequence[Fact]) -> Fact | None:
    """Shape and type of the output."""
    facts = [*known, *(UNKNOWN,) * (MOST_INPUTS - len(known))]
    common = COMMON_RULES.get(node.op_type)
    outputs = SHAPE_RULES["", node.op_type](node, facts) if common is None else common(node, facts)
    return outputs[0] if outputs else None


def _operation(compute: Callable[[Value, Value], Value]) -> ValueRule:
    def apply(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
        with np.errstate(all="ignore"):
            return compute(values[0], values[1]) if len(values) == 2 else None

    return apply


def _quotient(left: Value, right: Value) -> Value:
    """ONNX divides integers towards zero."""
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    if not right.all():
        raise ZeroDivisionError
    quotient = np.abs(left) // np.abs(right)
    return np.asarray(np.where((left < 0) == (right < 0), quotient, -quotient))


def _divide(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    try:
        with np.errstate(all="ignore"):
            return _quotient(values[0], values[1])
    except ZeroDivisionError:
        return None


def _concat(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    return np.concatenate(values, axis=get_int(node, "axis", 0))


def _gather(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    data, places = values
    return np.take(data, places, axis=get_int(node, "axis", 0))


def _gather_elements(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """Along the axis by the indices, which go as far as the data along the others."""
    data, places = values
    axis = get_int(node, "axis", 0) % data.ndim
    alike = all(size == places.shape[other] for other, size in enumerate(data.shape) if other != axis)
    return np.take_along_axis(data, places, axis) if alike else None


def _gather_nd(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    data, places = values
    return None if get_int(node, "batch_dims", 0) else data[tuple(np.moveaxis(places, -1, 0))]


def _cumulative(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """Of whole numbers: sums up to each element, or without it (``exclusive``), from the other end (``reverse``)."""
    data, axis = values[0], int(values[1].item())
    if data.dtype.kind != "i":
        return None
    turned = np.flip(data, axis) if get_int(node, "reverse", 0) else data
    sums = np.cumsum(turned, axis, dtype=data.dtype) - (turned if get_int(node, "exclusive", 0) else 0)
    return np.flip(sums, axis) if get_int(node, "reverse", 0) else sums


def _same(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """The same elements in another shape."""
    return values[0]


def _slice(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    taken = slices_of(node, inputs, values[0].shape)
    return None if taken is None else values[0][tuple(taken)]


def _cast(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """Between plain types; floats that no integer can be are left alone."""
    dtype = next((dtype for dtype, elem in _PLAIN.items() if elem == get_int(node, "to", 0)), None)
    if dtype is None or (values[0].dtype.kind == "f" and dtype.kind == "i" and not (np.abs(values[0]) < 2**31).all()):
        return None
    return values[0].astype(dtype)


def _transpose(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    return values[0].transpose(get_ints(node, "perm") or None)


def _where(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    return np.where(*values)


def _not(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    return np.logical_not(values[0])


def _expand(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """Broadcast to a shape, both ways; of as many elements as are worth keeping."""
    sizes = np.broadcast_shapes(values[0].shape, tuple(int(size) for size in values[1].ravel()))
    return np.broadcast_to(values[0], sizes) if prod(sizes) <= INTEGER_LIMIT else None


def _product(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """Of all elements."""
    axes = get_ints(node, "axes", ()) or ()
    whole = len(values) == 1 and sorted(axis % max(values[0].ndim, 1) for axis in axes) in ([], list(range(values[0].ndim)))
    return np.asarray(values[0].prod(dtype=values[0].dtype)) if whole else None


def _filled(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    """ConstantOfShape, of as many elements as are worth keeping."""
    tensor = get_tensor(node, "value")
    sizes = tuple(int(size) for size in values[0].ravel())
    return (
        np.full(sizes, np.float32(0) if tensor is None else tensor_to_array(tensor).ravel()[0])
        if prod(sizes) <= INTEGER_LIMIT
        else None
    )


def _range(node: onnx.NodeProto, inputs: Sequence[Fact], values: Sequence[Value]) -> Value | None:
    start, limit, step = (int(value.item()) for value in values)
    return np.arange(start, limit, step, dtype=values[0].dtype) if len(range(start, limit, step)) <= INTEGER_LIMIT else None


VALUE_RULES: dict[str, ValueRule] = {
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same),
    "Add": _operation(np.add), "Sub": _operation(np.subtract), "Mul": _operation(np.multiply), "Div": _divide,
    "Max": _operation(np.maximum), "Min": _operation(np.minimum), "Equal": _operation(np.equal), "Less": _operation(np.less),
    "Greater": _operation(np.greater), "LessOrEqual": _operation(np.less_equal),
    "GreaterOrEqual": _operation(np.greater_equal), "And": _operation(np.logical_and), "Or": _operation(np.logical_or),
    "Concat": _concat, "CumSum": _cumulative, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "Slice": _slice, "Cast": _cast, "Transpose": _transpose, "Where": _where,
    "Not": _not, "Expand": _expand, "ReduceProd": _product, "ConstantOfShape": _filled, "Range": _range,
}  # fmt: skip
"""Rules by operator of the standard domain, in any operator set whose shape is known by then."""
