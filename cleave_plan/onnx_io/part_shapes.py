"""Shapes of operators that take parts of a tensor, for the plain case, as :mod:`common_shapes` explains it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.broadcasting import axis_in
from cleave_plan.onnx_io.facts import Dim, Fact

Facts = Sequence[Fact]


def slices_of(node: onnx.NodeProto, inputs: Facts, shape: tuple[Dim, ...]) -> list[slice] | None:
    """What Slice takes of each axis; None when it is not known. Bounds are clipped as Python clips them."""
    bounds: list[list[int]] = []
    for name, place in (("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)):
        value = inputs[place].whole_numbers if place < len(node.input) and node.input[place] else None
        if value is None and place < len(node.input) and node.input[place]:
            return None
        given = get_ints(node, name, ()) or () if value is None else value.ravel().tolist()
        bounds.append([int(item) for item in given])
    starts, ends, axes, steps = bounds
    axes = axes or list(range(len(starts)))
    steps = steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    taken = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place_of_axis = axis_in(axis, len(shape))
        if place_of_axis is None or taken[place_of_axis] != slice(None):
            return None
        taken[place_of_axis] = slice(start, end, step)
    return taken


def sliced(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Slice, where what it takes is known."""
    shape = inputs[0].shape
    taken = None if shape is None or not inputs[0].elem else slices_of(node, inputs, shape)
    if shape is None or taken is None:
        return None
    sizes: list[Dim] = []
    for size, part in zip(shape, taken, strict=True):
        if part == slice(None):
            sizes.append(size)
        elif isinstance(size, int):
            sizes.append(len(range(*part.indices(size))))
        else:
            return None
    return [Fact(elem=inputs[0].elem, shape=tuple(sizes))]


def gather(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Gather: the shape of the indices in the place of the axis."""
    shape, picked = inputs[0].shape, inputs[1].shape
    axis = None if shape is None else axis_in(get_int(node, "axis", 0), len(shape))
    if shape is None or picked is None or axis is None or not inputs[0].elem:
        return None
    return [Fact(elem=inputs[0].elem, shape=(*shape[:axis], *picked, *shape[axis + 1 :]))]


def gather_nd(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """The last axis of the indices, of a known size, walks along as many axes of the data behind the batch."""
    data, places, batch = inputs[0].shape, inputs[1].shape, get_int(node, "batch_dims", 0)
    deep = places[-1] if places else None
    if data is None or not places or not isinstance(deep, int) or not inputs[0].elem:
        return None
    if batch < 0 or batch >= len(places) or deep < 1 or batch + deep > len(data) or data[:batch] != places[:batch]:
        return None
    return [Fact(elem=inputs[0].elem, shape=(*places[:-1], *data[batch + deep :]))]


def gather_elements(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """GatherElements: the shape of the indices."""
    shape, picked = inputs[0].shape, inputs[1].shape
    if shape is None or picked is None or not inputs[0].elem or len(shape) != len(picked):
        return None
    known = axis_in(get_int(node, "axis", 0), len(shape)) is not None
    return [Fact(elem=inputs[0].elem, shape=picked)] if known else None


def split(node: onnx.NodeProto, inputs: Facts) -> list[Fact] | None:
    """Split, of a known axis, by known parts or into equal ones."""
    shape, count = inputs[0].shape, len(node.output)
    axis = None if shape is None else axis_in(get_int(node, "axis", 0), len(shape))
    whole = None if shape is None or axis is None else shape[axis]
    if shape is None or axis is None or not isinstance(whole, int) or not inputs[0].elem:
        return None
    parts = get_ints(node, "split", ()) or ()
    if len(node.input) > 1 and node.input[1]:
        value = inputs[1].whole_numbers
        parts = () if value is None else tuple(int(item) for item in value.ravel())
        if value is None:
            return None
    if not parts and whole % count == 0:
        parts = (whole // count,) * count
    if len(parts) != count or sum(parts) != whole or min(parts) < 0:
        return None
    return [Fact(elem=inputs[0].elem, shape=(*shape[:axis], part, *shape[axis + 1 :])) for part in parts]
