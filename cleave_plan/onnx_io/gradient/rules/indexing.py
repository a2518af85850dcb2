"""Operators that pick or place elements by index. An element that was picked several times gets the sum of its gradients."""

from __future__ import annotations

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.rules.shape import added_along, places_of, scattered
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("Gather")
def gather(op: Op) -> Partials:
    """Y = X[..., I, ...] along an axis: dX[..., i, ...] = Σ dY where I = i.

    I is one list, added along the axis; a single constant place is padding.
    """
    x, indices = op.x(0), op.x(1)
    axis = op.axis(0, x.rank)

    def of_x() -> Tensor:
        place = op.value(1)
        if place is not None and place.ndim == 0:
            return _one_place(op, axis, int(place.item()))
        flat, sizes = indices.reshape([-1]), op.dy.sizes()
        before = sizes.op("Slice", sizes.ints(0), sizes.ints(axis))
        after = sizes.op("Slice", sizes.ints(axis + indices.rank), sizes.ints(op.dy.rank))
        merged = op.dy.reshape(before.op("Concat", flat.op("Shape"), after, axis=0))
        return added_along(merged, flat, axis, x.size_of(axis))

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
    return {0: lambda: scattered(op, op.again(places_of(op.x(0)), op.x(1))[0])}


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
