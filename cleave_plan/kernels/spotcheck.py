r"""Checking tiles whose result is not linear in their operands, by computing parts of them again.

**Attention**, C = P V, is linear in V alone. The server computes the probabilities P itself, and with random signs X compares
C X with P (V X): s vectors in place of the columns of V, so that the check costs rows * S (d_k + s) multiply-adds and the
operators between, about as much as the first half of the tile. As in :mod:`cleave_plan.kernels.freivalds` residuals only say
where to look: the :data:`SUSPECTS` rows that stand out most, and as many at random, are computed again in float64. A row may be
off by :data:`SLACK` (:data:`HALF_SLACK`) times what this machine's own arithmetic in the working type is off by in those rows,
and by the rounding to the storage type.

**Requantised products** give no projection that is cheaper than the tile. Of those, :data:`LINES` rows and as many columns,
drawn at random, are computed again here: LINES (kc + rk) multiply-adds. An error is found where it lies in a drawn line: with
probability 1 - (1 - f)^LINES if it touches a share f of the rows or of the columns. Stale data, noise, or a block of zeros over
half of the rows are found with 1 - 2^-16; **one wrong element of a large tile is mostly not** (about LINES/r + LINES/c), though a
device that goes on lying is found in the end.

Values that are not finite are looked for everywhere, and their rows are looked at first. Whole numbers must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, accumulator, numpy_dtype
from cleave_plan.kernels.chain import ChainPieces, ChainProduct
from cleave_plan.kernels.flaw import Flaw
from cleave_plan.kernels.tile import Box, Product

Ints = NDArray[np.intp]

LINES = 16
"""Rows, and columns, that are computed again."""

VECTORS, SUSPECTS = 12, 8
"""Of attention: random vectors, and rows of the largest residuals that are computed again."""

SLACK, HALF_SLACK = 32.0, 8.0
"""How much more than this machine's own rounding a device's may be, where there is no error model; the second of results in half
precision, whose rounding to storage hides that of the sums. With 8 for float32 too, 3 of 20,000 good attention tiles were
refused."""


def check_lines(
    product: Product, operands: Sequence[Array | None], box: Box, result: Array, draw: np.random.Generator
) -> Flaw | None:
    """What is wrong in some rows and columns of ``result`` as the tile ``box``; arguments as of ``check_product``."""
    for part in (*_rows(box, result, draw), *_columns(box, draw)):
        wanted = product.run(operands, part)[1]
        found = result[_within(part, box)]
        flaw = _compare(part, found, wanted, SLACK * _unit(wanted) * _largest(wanted))
        if flaw is not None:
            return flaw
    return None


def check_chain(
    chain: ChainProduct, operands: Sequence[Array | None], box: Box, result: Array, draw: np.random.Generator
) -> Flaw | None:
    """What is wrong with ``result`` as the tile ``box`` of a chain; arguments as of ``check_product``."""
    precise = _in_double(chain)
    slack = HALF_SLACK if chain.out_dtype in (DType.FLOAT16, DType.BFLOAT16) else SLACK
    parts = list(_rows(box, result, draw, first=_suspects(chain, operands, box, result, draw)))
    pieces = [chain.cut(operands, part) for part in parts]
    own = [chain.compute(given, part) for given, part in zip(pieces, parts, strict=True)]
    exact = [precise.compute(_widened(given), part) for given, part in zip(pieces, parts, strict=True)]
    with np.errstate(invalid="ignore"):
        usual = max((_largest(mine - right) for mine, right in zip(own, exact, strict=True)), default=0.0)
    for part, mine, right in zip(parts, own, exact, strict=True):
        wanted = np.where(np.isfinite(mine), right, mine)
        allowed = slack * max(usual, _unit(mine) * _largest(right))
        flaw = _compare(part, result[_within(part, box)], wanted, allowed)
        if flaw is not None:
            return flaw
    return None


def _suspects(
    chain: ChainProduct, operands: Sequence[Array | None], box: Box, result: Array, draw: np.random.Generator
) -> Ints:  # fmt: skip
    """Rows of the tile, counted over its items, whose residuals stand out most."""
    pieces = chain.cut(operands, box)
    working = numpy_dtype(accumulator(chain.dtype))
    signs = (2 * draw.integers(0, 2, (chain.d_v, VECTORS)) - 1).astype(working)
    # V X in place of V makes the chain compute P (V X).
    narrow = replace(chain, d_v=VECTORS, out_dtype=accumulator(chain.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        projected = narrow.compute(pieces._replace(v=pieces.v.astype(working) @ signs), box)
        wide = result.astype(working, copy=False)
        residual = np.square(wide @ signs - projected).sum(axis=2).reshape(-1)
        energy = np.square(wide).sum(axis=2).reshape(-1)
        score = residual / np.maximum(energy, np.finfo(working).tiny)
    return np.argsort(-np.where(np.isnan(score), -1.0, score), kind="stable")[:SUSPECTS]


def _rows(box: Box, result: Array, draw: np.random.Generator, *, first: Ints | None = None) -> Iterator[Box]:
    """Rows of the tile as boxes of their own: those with NaN or infinities, then ``first`` ones, then others at random."""
    rows = box.m_stop - box.m_start
    finite = np.isfinite(result).all(axis=2).reshape(-1)
    rank = np.where(finite, 2, 0)
    if first is not None:
        rank[first] = np.minimum(rank[first], 1)
    order = draw.permutation(len(finite))
    for place in order[np.argsort(rank[order], kind="stable")][:LINES]:
        item, row = divmod(int(place), rows)
        m, g = box.m_start + row, box.batch_start + item
        yield box._replace(m_start=m, m_stop=m + 1, batch_start=g, batch_stop=g + 1)


def _columns(box: Box, draw: np.random.Generator) -> Iterator[Box]:
    """Columns of one item each."""
    columns, items = box.n_stop - box.n_start, box.batch_stop - box.batch_start
    for place in draw.permutation(columns * items)[:LINES]:
        item, column = divmod(int(place), columns)
        n, g = box.n_start + column, box.batch_start + item
        yield box._replace(n_start=n, n_stop=n + 1, batch_start=g, batch_stop=g + 1)


def _within(part: Box, box: Box) -> tuple[slice, ...]:
    """Where ``part`` stands in the result of the tile ``box`` (a chain's columns are all there)."""
    items = slice(part.batch_start - box.batch_start, part.batch_stop - box.batch_start)
    rows = slice(part.m_start - box.m_start, part.m_stop - box.m_start)
    if (part.n_start, part.n_stop) == (box.n_start, box.n_stop):
        return items, rows, slice(None)
    return items, rows, slice(part.n_start - box.n_start, part.n_stop - box.n_start)


def _compare(part: Box, found: Array, wanted: Array, allowed: float) -> Flaw | None:
    """The first element that is not what it should be; NaN and infinities belong where this machine has them too."""
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    exact = wanted.dtype.kind in "iub"
    with np.errstate(invalid="ignore"):
        near = found == wanted if exact else np.abs(found.astype(wide) - wanted.astype(wide)) <= allowed
    wrong = ~(near | (~np.isfinite(found) & ~np.isfinite(wanted)))
    if not wrong.any():
        return None
    item, row, column = (int(axis[0]) for axis in np.nonzero(wrong))
    return Flaw(
        item=part.batch_start + item, row=part.m_start + row, column=part.n_start + column,
        found=found[item, row, column].item(), expected=wanted[item, row, column].item(),
    )  # fmt: skip


def _largest(array: Array) -> float:
    """Largest absolute value that is finite."""
    sizes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    return float(np.max(sizes[np.isfinite(sizes)], initial=0.0))


def _unit(array: Array) -> float:
    """Unit of roundoff of an array's type; 0 for whole numbers."""
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "complex64": 24, "complex128": 53}
    return 2.0 ** -bits[array.dtype.name] if array.dtype.name in bits else 0.0


def _in_double(chain: ChainProduct) -> ChainProduct:
    steps = tuple(step._replace(dtype=_doubled(step.dtype)) for step in chain.steps)
    return replace(
        chain, dtype=DType.FLOAT64, scores_dtype=_doubled(chain.scores_dtype), out_dtype=_doubled(chain.out_dtype), steps=steps
    )


def _doubled(dtype: DType) -> DType:
    return DType.FLOAT64 if dtype.is_float else dtype


def _widened(pieces: ChainPieces) -> ChainPieces:
    sides = tuple(side.astype(np.float64) if side.dtype.kind not in "iub" else side for side in pieces.sides)
    return pieces._replace(
        q=pieces.q.astype(np.float64), k=pieces.k.astype(np.float64), v=pieces.v.astype(np.float64), sides=sides
    )
