"""Operators that move elements without computing: the gradient moves back, and copies of one element have theirs summed."""

from __future__ import annotations

from functools import partial

import numpy as np

from cleave_plan.onnx_io.gradient.rule import NoRuleError, Op, Partials, gradient_of
from cleave_plan.onnx_io.gradient.tensor import Tensor


@gradient_of("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: Op) -> Partials:
    """Y holds the elements of X in order: dX = dY in the shape of X."""
    return {0: lambda: op.dy.shaped_like(op.x(0))}


@gradient_of("Transpose")
def transpose(op: Op) -> Partials:
    """Y has the axes of X in the order perm: dX has those of dY in the inverse order."""
    perm = op.integers("perm") or tuple(reversed(range(op.x(0).rank)))
    return {0: lambda: op.dy.transpose(*sorted(range(len(perm)), key=lambda axis: perm[axis]))}


@gradient_of("Expand")
def expand(op: Op) -> Partials:
    """Y is X broadcast: dX = dY summed over the axes along which it was."""
    return {0: lambda: op.dy.summed_like(op.x(0))}


@gradient_of("Concat")
def concat(op: Op) -> Partials:
    """Y = [X1 | X2 | ...]: dXi is the part of dY that lies where Xi does."""
    axis = op.axis(0, op.y().rank)
    inputs = [op.x(place) for place in range(len(op.node.input))]

    def part(place: int) -> Tensor:
        sizes = [tensor.size_of(axis) for tensor in inputs]
        split = sizes[0].op("Concat", *sizes[1:], axis=0)
        return op.dy.ops("Split", split, outputs=len(inputs), axis=axis)[place]

    if len(inputs) == 1:
        return {0: lambda: op.dy}
    return {place: partial(part, place) for place in range(len(inputs))}


@gradient_of("Split")
def split(op: Op) -> Partials:
    """[Y1 | Y2 | ...] = X: dX = [dY1 | dY2 | ...], zeros for parts that nothing reads."""

    def of_x() -> Tensor:
        parts = [op.dy_of(place) for place in range(len(op.node.output))]
        return parts[0].op("Concat", *parts[1:], axis=op.integer("axis", 0))

    return {0: of_x}


@gradient_of("Slice")
def cut(op: Op) -> Partials:
    """Y = X[starts:ends:steps]: dX has dY at these places and zeros elsewhere."""
    x = op.x(0)

    def of_x() -> Tensor:
        steps = op.value(4)
        if not op.has(4) or (steps is not None and (steps == 1).all()):
            return _padded_back(op)
        cutting = [Tensor(op.writer, name) for name in op.node.input[1:]]
        return scattered(op, op.again(places_of(x), *cutting)[0])

    return {0: of_x}


def _padded_back(op: Op) -> Tensor:
    """The gradient of a slice with steps of 1: dY with zeros before and after it."""
    x, starts = op.x(0), op.x(1)
    axes = op.value(3)
    if op.has(3) and axes is None:
        raise NoRuleError("the axes of Slice must be constant")
    places = range(starts.rank and len(_known_list(op, 1))) if axes is None else [int(axis) % x.rank for axis in axes.ravel()]
    index = x.ints(*places)
    sizes = x.sizes().op("Gather", index, axis=0)
    begins = starts.cast(sizes.elem)
    begins = (begins + sizes).where(begins < 0, begins).op("Max", sizes * 0).op("Min", sizes)
    lengths = op.dy.sizes().op("Gather", index, axis=0)
    return op.dy.op("Pad", begins.op("Concat", sizes - begins - lengths, axis=0), None, index, mode="constant")


def _known_list(op: Op, place: int) -> list[int]:
    shape = op.x(place).shape
    if shape is None or not isinstance(shape[0], int):
        raise NoRuleError("the number of sliced axes must be known")
    return list(range(shape[0]))


def places_of(x: Tensor) -> Tensor:
    """For each element of ``x`` its place in the flattened tensor."""
    return numbers_below(x.op("Size")).reshape(x.sizes())


def numbers_below(count: Tensor) -> Tensor:
    """0, 1, 2, ... below a scalar."""
    return count.constant(np.int64(0)).op("Range", count, count.constant(np.int64(1)))


def scattered(op: Op, places: Tensor) -> Tensor:
    """dY at ``places`` of the flattened X, where several meet their sum, zeros elsewhere.

    Like every sum at places that repeat it is a ScatterElements: onnxruntime shares the rows of a ScatterND out to its threads
    without a lock, and two rows at one place then lose one of their sums (1.32: up to every run, with two threads).
    """
    x = op.x(0)
    flat = op.dy.like(0).expand(x.op("Size").reshape([1]))
    return flat.op("ScatterElements", places.reshape([-1]), op.dy.reshape([-1]), axis=0, reduction="add").reshape(x.sizes())


@gradient_of("Pad", passive=(2,))
def pad(op: Op) -> Partials:
    """Y is X with a border. Constant border: dX is dY without it (and with zeros where a negative pad had cut X).

    Other modes copy elements of X into the border, along one axis after the other: the gradient of each copy is added back to
    the element that it was copied from.
    """
    mode = op.text("mode", "constant")
    return {0: (lambda: _unpadded(op)) if mode == "constant" else (lambda: _folded_back(op))}


def _pads(op: Op) -> tuple[list[int], list[int], list[int]]:
    known, axes = op.value(1), op.value(3)
    if known is None or (op.has(3) and axes is None):
        raise NoRuleError("the pads must be constant")
    places = list(range(op.x(0).rank)) if axes is None else [int(axis) % op.x(0).rank for axis in axes.ravel()]
    pads = [int(size) for size in known.ravel()]
    return places, pads[: len(places)], pads[len(places) :]


def _unpadded(op: Op) -> Tensor:
    axes, begins, ends = _pads(op)
    gradient = op.dy
    if any(begin > 0 or end > 0 for begin, end in zip(begins, ends, strict=True)):
        stops = [-end if end > 0 else 2**62 for end in ends]
        starts = [max(begin, 0) for begin in begins]
        gradient = gradient.op("Slice", gradient.ints(*starts), gradient.ints(*stops), gradient.ints(*axes))
    lost = [max(-size, 0) for size in (*begins, *ends)]
    return gradient.op("Pad", gradient.ints(*lost), None, gradient.ints(*axes), mode="constant") if any(lost) else gradient


def _folded_back(op: Op) -> Tensor:
    axes, begins, ends = _pads(op)
    gradient = op.dy
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        if begin or end:
            size = op.x(0).size_of(axis)
            numbers = numbers_below(size.op("Squeeze", size.ints(0)))
            sources = numbers.op("Pad", size.ints(begin, end), mode=op.text("mode", ""))
            gradient = added_along(gradient, sources, axis, size)
    return gradient


def added_along(gradient: Tensor, sources: Tensor, axis: int, size: Tensor) -> Tensor:
    """A tensor with ``size`` elements along ``axis``: element j is the sum of those i of ``gradient`` with sources[i] = j."""
    column = sources.reshape([-1] + [1] * (gradient.rank - axis - 1))
    before = gradient.sizes().op("Slice", size.ints(0), size.ints(axis))
    after = gradient.sizes().op("Slice", size.ints(axis + 1), size.ints(gradient.rank))
    shape = before.op("Concat", size, after, axis=0)
    zeros = gradient.like(0).expand(shape)
    return zeros.op("ScatterElements", column.expand(gradient.sizes()), gradient, axis=axis, reduction="add")


@gradient_of("Tile")
def tile(op: Op) -> Partials:
    """Y is X several times along each axis: dX is the sum of the copies' gradients."""

    def of_x() -> Tensor:
        x, repeats = op.x(0), op.x(1)
        both = repeats.op("Unsqueeze", repeats.ints(1)).op("Concat", x.sizes().op("Unsqueeze", repeats.ints(1)), axis=1)
        apart = op.dy.reshape(both.reshape([-1]))
        return apart.sum(*range(0, 2 * x.rank, 2), keep=False).shaped_like(x)

    return {0: of_x}


@gradient_of("Trilu")
def trilu(op: Op) -> Partials:
    """Y is X with zeros on one side of a diagonal: so is dX, of dY."""
    others = [op.x(1)] if op.has(1) else []
    return {0: lambda: op.dy.op("Trilu", *others, upper=op.integer("upper", 1))}


@gradient_of("DepthToSpace")
def depth_to_space(op: Op) -> Partials:
    """Blocks of channels become blocks of pixels, in the order of ``mode``; dX puts them back."""
    block, mode = op.integer("blocksize", 1), op.text("mode", "DCR")

    def of_x() -> Tensor:
        x = op.x(0)
        sizes = x.sizes()
        b = sizes.ints(block)
        n, c, h, w = (sizes.op("Slice", sizes.ints(axis), sizes.ints(axis + 1)) for axis in range(4))
        apart = op.dy.reshape(n.op("Concat", c / sizes.ints(block * block), h, b, w, b, axis=0))
        order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return apart.transpose(*order).shaped_like(x)

    return {0: of_x}


@gradient_of("SpaceToDepth")
def space_to_depth(op: Op) -> Partials:
    """Blocks of pixels become blocks of channels: dX = DepthToSpace of dY."""
    return {0: lambda: op.dy.op("DepthToSpace", blocksize=op.integer("blocksize", 1), mode="DCR")}


@gradient_of("ReverseSequence")
def reverse_sequence(op: Op) -> Partials:
    """The first elements of each sequence in reverse: reversed again in dX."""
    return {0: lambda: op.again(op.dy, op.x(1))[0]}
