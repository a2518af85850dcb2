"""Random cases of operators that move elements: shapes, slices, pads and indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gradient_cases import Array, Case, chance, shape_of, stretched, values


def _moved(rng: np.random.Generator, op: str, *more: Array, **attributes: Any) -> Case:
    """A tensor of any three sizes and what goes with it, as initialisers."""
    return _placed(op, values(rng, *shape_of(rng, 3)), *more, **attributes)


def _placed(op: str, x: Array, *more: Array, **attributes: Any) -> Case:
    return Case(op=op, inputs=[x, *more], attributes=attributes, wanted=[0], fixed=list(range(1, len(more) + 1)))


def transpose(rng: np.random.Generator) -> Case:
    """Any order of axes."""
    return _moved(rng, "Transpose", perm=[int(axis) for axis in rng.permutation(3)])


def reshape(rng: np.random.Generator) -> Case:
    """One size is what is left; another is copied."""
    return _moved(rng, "Reshape", np.array([0, -1] if chance(rng) else [-1]))


def flatten(rng: np.random.Generator) -> Case:
    """To a matrix, before any axis."""
    return _moved(rng, "Flatten", axis=int(rng.integers(-3, 4)))


def unsqueeze(rng: np.random.Generator) -> Case:
    """New axes at two of five places."""
    places = rng.permutation(5)[:2]
    return _moved(rng, "Unsqueeze", np.array([place - 5 if chance(rng) else place for place in places]))


def squeeze(rng: np.random.Generator) -> Case:
    """An axis of size 1, at any place."""
    place = int(rng.integers(0, 4))
    return _placed("Squeeze", np.expand_dims(values(rng, *shape_of(rng, 3)), place), np.array([place]))


def expand(rng: np.random.Generator) -> Case:
    """Stretched, with a new axis before."""
    shape = shape_of(rng, 3)
    return _placed("Expand", values(rng, *stretched(rng, shape)), np.array([2, *shape]))


def tile(rng: np.random.Generator) -> Case:
    """So many times along each axis."""
    return _moved(rng, "Tile", rng.integers(1, 4, 3))


def concat(rng: np.random.Generator) -> Case:
    """Three tensors that differ along the axis."""
    shape, axis = shape_of(rng, 3), int(rng.integers(-3, 3))
    parts = []
    for _ in range(3):
        shape[axis] = int(rng.integers(1, 4))
        parts.append(values(rng, *shape))
    return Case(op="Concat", inputs=parts, attributes={"axis": axis})


def split(rng: np.random.Generator) -> Case:
    """Parts of different lengths, of which the loss may see one alone."""
    lengths, axis = rng.integers(1, 4, 2), int(rng.integers(-3, 3))
    shape = shape_of(rng, 3)
    shape[axis] = int(lengths.sum())
    return Case(
        op="Split", inputs=[values(rng, *shape), lengths], attributes={"axis": axis}, outputs=2, scored=int(rng.integers(1, 3)),
        fixed=[1],
    )  # fmt: skip


def triangle(rng: np.random.Generator) -> Case:
    """Above or below any diagonal."""
    return _moved(rng, "Trilu", np.array(rng.integers(-2, 3)), upper=int(chance(rng)))


def reverse_sequence(rng: np.random.Generator) -> Case:
    """Sequences of any lengths, along either axis."""
    steps, batch = shape_of(rng, 2)
    time, lengths = int(rng.integers(0, 2)), rng.integers(1, steps + 1, batch)
    x = values(rng, *((batch, steps) if time else (steps, batch)), 2)
    return _placed("ReverseSequence", x, lengths, time_axis=time, batch_axis=1 - time)


def depth_to_space(rng: np.random.Generator) -> Case:
    """Both orders of blocks."""
    block = int(rng.integers(1, 4))
    n, c, h, w = shape_of(rng, 4)
    x = values(rng, n, min(c, 2) * block**2, h, w)
    return _placed("DepthToSpace", x, blocksize=block, mode="DCR" if chance(rng) else "CRD")


def space_to_depth(rng: np.random.Generator) -> Case:
    """And back."""
    block = int(rng.integers(1, 4))
    n, c, h, w = shape_of(rng, 4)
    return _placed("SpaceToDepth", values(rng, n, c, min(h, 2) * block, min(w, 2) * block), blocksize=block)


def cut(rng: np.random.Generator) -> Case:
    """Some axes, from either end, clamped, with steps, backwards too; something may be empty."""
    x = values(rng, *(size + 1 for size in shape_of(rng, 3)))
    axes = rng.permutation(3)[: rng.integers(1, 4)]
    steps = rng.choice([-2, -1, 1, 2, 3], len(axes))
    sizes = np.array(x.shape)[axes]
    low, high = rng.integers(0, sizes), rng.integers(0, 2 * sizes) + 1
    starts, ends = np.where(steps > 0, low, high), np.where(steps > 0, high, low - sizes - 1)
    return _placed("Slice", x, starts, ends, axes, steps)


def pad(rng: np.random.Generator) -> Case:
    """Borders of every kind on all axes, or constant ones on some."""
    x = values(rng, *(size + 1 for size in shape_of(rng, 3)))
    mode = str(rng.choice(["constant", "edge", "reflect", "wrap"]))
    if mode == "constant" and chance(rng):
        return _placed("Pad", x, np.array([2, 1]), np.array(0.5), np.array([rng.integers(-3, 3)]), mode=mode)
    most = np.array(x.shape) - 1
    return _placed("Pad", x, np.concatenate([rng.integers(0, most + 1), rng.integers(0, most + 1)]), mode=mode)


def gather(rng: np.random.Generator) -> Case:
    """Any axis; indices of any rank, repeated and negative, known before the run or not."""
    x, axis = values(rng, *shape_of(rng, 3)), int(rng.integers(-3, 3))
    size = x.shape[axis]
    indices = np.asarray(rng.integers(-size, size, shape_of(rng, int(rng.integers(0, 3)))))
    return Case(op="Gather", inputs=[x, indices], attributes={"axis": axis}, fixed=[1] if chance(rng) else [])


def gather_elements(rng: np.random.Generator) -> Case:
    """Picked elements may repeat."""
    x, axis = values(rng, *shape_of(rng, 3)), int(rng.integers(-3, 3))
    shape = [int(rng.integers(1, size + 1)) for size in x.shape]
    shape[axis] = int(rng.integers(1, 5))
    picked = rng.integers(-x.shape[axis], x.shape[axis], shape)
    return Case(op="GatherElements", inputs=[x, picked], attributes={"axis": axis})


def gather_nd(rng: np.random.Generator) -> Case:
    """Elements, rows or planes by their places, which may repeat; within batches of up to two axes."""
    x, batches = values(rng, *shape_of(rng, 4)), int(rng.integers(0, 3))
    lead = [*x.shape[:batches], *shape_of(rng, int(rng.integers(0, 3)))]
    places = [rng.integers(-size, size, lead) for size in x.shape[batches : rng.integers(batches + 1, 5)]]
    return Case(op="GatherND", inputs=[x, np.stack(places, axis=-1)], attributes={"batch_dims": batches})


def scatter_elements(rng: np.random.Generator) -> Case:
    """Placed elements, no two of them at one place; put there or added."""
    x, axis = values(rng, *shape_of(rng, 3)), int(rng.integers(-3, 3))
    count = [int(rng.integers(1, size + 1)) for size in x.shape]
    places = np.argsort(rng.random(x.shape), axis=axis)[tuple(slice(size) for size in count)]
    attributes = {"axis": axis, "reduction": "add" if chance(rng) else "none"}
    return Case(op="ScatterElements", inputs=[x, places, values(rng, *count)], attributes=attributes)


def scatter_nd(rng: np.random.Generator) -> Case:
    """Placed rows, no two of them at one place; put there or added."""
    x = values(rng, *shape_of(rng, 3))
    rows = rng.permutation(x.shape[0])[: rng.integers(1, x.shape[0] + 1), None]
    attributes = {"reduction": "add" if chance(rng) else "none"}
    return Case(op="ScatterND", inputs=[x, rows, values(rng, len(rows), *x.shape[1:])], attributes=attributes)


def top(rng: np.random.Generator) -> Case:
    """The largest or smallest along any axis."""
    x, axis = values(rng, *shape_of(rng, 3)), int(rng.integers(-3, 3))
    count = np.array([rng.integers(1, x.shape[axis] + 1)])
    return Case(
        op="TopK", inputs=[x, count], attributes={"axis": axis, "largest": int(chance(rng))}, outputs=2, fixed=[1]
    )  # fmt: skip


MOVES: Mapping[str, Callable[[np.random.Generator], Case]] = {
    "Concat": concat, "DepthToSpace": depth_to_space, "Expand": expand, "Flatten": flatten, "Gather": gather,
    "GatherElements": gather_elements, "GatherND": gather_nd, "Pad": pad, "Reshape": reshape,
    "ReverseSequence": reverse_sequence, "ScatterElements": scatter_elements, "ScatterND": scatter_nd, "Slice": cut,
    "SpaceToDepth": space_to_depth, "Split": split, "Squeeze": squeeze, "Tile": tile, "TopK": top, "Transpose": transpose,
    "Trilu": triangle, "Unsqueeze": unsqueeze,
}  # fmt: skip
"""By operator."""
