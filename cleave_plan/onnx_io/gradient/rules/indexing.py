"""Operators that pick or place elements by index. An element that was picked several times gets the sum of its gradients."""

from __future__ import annotations

import numpy as np

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("Gather")
def gather(op: Op) -> Partials:
    """Y = X[..., I, ...] along an axis: dX[..., i, ...] = Σ dY where I = i.

    An embedding table (axis 0) gets its rows added by ScatterND; along another axis I is one list, added by ScatterElements;
    a single constant place is padding.
    """
    x, indices = op.x(0), op.x(1)
    axis = op.axis(0, x.rank)

    def of_x() -> Tensor:
        place = op.value(1)
        if place is not None and place.ndim == 0:
            return _one_place(op, axis, int(place.item()))
        if axis == 0:
            rows = indices.op("Unsqueeze", x.ints(-1))
            return x.zeros().op("ScatterND", rows, op.dy, reduction="add")
        flat, sizes = indices.reshape([-1]), op.dy.sizes()
        before = sizes.op("Slice", sizes.ints(0), sizes.ints(axis))
        after = sizes.op("Slice", sizes.ints(axis + indices.rank), sizes.ints(op.dy.rank))
        merged = op.dy.reshape(before.op("Concat", flat.op("Shape"), after, axis=0))
        column = flat.reshape([-1] + [1] * (x.rank - axis - 1)).expand(merged.sizes())
        return x.zeros().op("ScatterElements", column, merged, axis=axis, reduction="add")

    return {0: of_x}


def _one_place(op: Op, axis: int, place: int) -> Tensor:
    x = op.x(0)
    size = x.size_of(axis)
    before = size.ints(place) if place >= 0 else size + size.ints(place)
    pads = before.op("Concat", size - before - size.ints(1), axis=0)
    return op.dy.op("Unsqueeze", x.ints(axis)).op("Pad", pads, None, x.ints(axis), mode="constant")


@gradient_of("GatherElements")
def gather_elements(op: Op) -> Partials:
    """Y[i, j] = X[I[i, j], j] (axis 0): dX[I[i, j], j] += dY[i, j]."""
    return {
        0: lambda: op.x(0).zeros().op(
            "ScatterElements", op.x(1), op.dy, axis=op.axis(0, op.x(0).rank), reduction="add"
        )
    }  # fmt: skip


@gradient_of("GatherND")
def gather_nd(op: Op) -> Partials:
    """Y[b, i] = X[b, I[b, i]], b over the first ``batch_dims`` axes: dX[b, I[b, i]] += dY[b, i]."""

    def of_x() -> Tensor:
        places = _with_batches(op.x(1), op.integer("batch_dims", 0))
        return op.x(0).zeros().op("ScatterND", places, op.dy, reduction="add")

    return {0: of_x}


def _with_batches(indices: Tensor, axes: int) -> Tensor:
    """Places within a batch (along the last axis) with those along the first ``axes`` axes before them."""
    if not axes:
        return indices
    sizes = indices.sizes()
    column = sizes.op("Slice", sizes.ints(0), sizes.ints(-1)).op("Concat", sizes.ints(1), axis=0)
    batches = [
        indices.constant(np.array(0))
        .op("Range", indices.size_of(axis).op("Squeeze"), indices.constant(np.array(1)))
        .reshape([-1] + [1] * (indices.rank - axis - 1))
        .expand(column)
        for axis in range(axes)
    ]
    return batches[0].op("Concat", *batches[1:], indices, axis=-1)


@gradient_of("ScatterElements", "ScatterND")
def scatter(op: Op) -> Partials:
    """Y is X with U at the places I. dU = dY at I; dX = dY with zeros at I, or all of dY when U is added to X."""
    elements = op.node.op_type == "ScatterElements"
    axis = op.integer("axis", 0) if elements else None
    mode = op.text("reduction", "none")
    if mode not in ("none", "add"):
        raise NoRuleError(f"{op.node.op_type} with reduction {mode}")

    def of_x() -> Tensor:
        return op.dy if mode == "add" else op.dy.op(op.node.op_type, op.x(1), op.x(2).zeros(), axis=axis)

    return {0: of_x, 2: lambda: op.dy.op("GatherElements" if elements else "GatherND", op.x(1), axis=axis)}


@gradient_of("TopK")
def top_k(op: Op) -> Partials:
    """Y = X at the places I of the k largest along an axis: dX[I] = dY, zeros elsewhere."""
    axis = op.axis(-1, op.x(0).rank)
    return {0: lambda: op.x(0).zeros().op("ScatterElements", op.y(1), op.dy, axis=axis)}
