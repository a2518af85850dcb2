r"""Is a tile what it should be? A check that costs far less than the tile, for results from devices that are not trusted.

**Freivalds' method** (R. Freivalds, "Probabilistic machines can use less running time", 1977). For C[r,c] = A[r,k] B[k,c] draw
s = :data:`VECTORS` vectors X of random signs and form the residual

    R = C X - A (B X)                    s (rc + kc + rk) multiply-adds instead of rkc

A row of C that is wrong leaves a residual, whatever the error, but with probability 2^-s (one wrong element: always). Columns
are taken some hundreds (:data:`PANEL`) at a time, so that rounding does not grow with the width of a tile.

**Integers** are exact: R must be 0. Where sums may wrap around at 2^bits, X is of 0 and 1 and R is compared modulo 2^bits (with
signs, two errors of 2^(bits-1) in a row would cancel every time).

**Floating point** leaves residuals of rounding, so R only says *where to look*. The :data:`SUSPECTS` rows of the largest

    sum_v R[i,v]^2 / (u_s^2 |C_i|^2 + u^2 |A_i|^2 |BX|^2 / s)      (norms; u, u_s: units of roundoff of sums and of storage)

are multiplied again, and in each the elements that differ most are compared with the exact product e (in float64) by

    |C_ij - e| <= 4 max(sqrt(k + 1) u (|A_i| . |B_j|), d) + 1.01 u_s |e| + spacing at 0      (absolute values, element by element)

The first term is the error of an inner product in any order of summation when roundings are independent with mean 0: N. Higham
and T. Mary ("A new approach to probabilistic rounding error analysis", SISC 2019) prove lambda sqrt(k) u (|A_i| . |B_j|) up to
a probability of 2 exp(-lambda^2 / 2), which lets every rounding be as large as it can be; uniform ones have a third of that
variance, so that 4 stands for 6.9 standard deviations in the worst order and for hundreds in a real one. Roundings are not
independent where one number is added again and again: d is how far this very sum drifts when it is added up one by one. The
second term is the rounding to the storage type. So a tile is called wrong for one element that no honest device rounds so, and
an error that passes is about as small as rounding: benchmarks/integrity.py measures both.

Rows whose residual is not finite are not judged by it: up to :data:`ODD_ROWS` of them, at random, are multiplied again.

Requantised results and attention are not linear in both operands: :mod:`cleave_plan.kernels.spotcheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, accumulator, numpy_dtype
from cleave_plan.kernels.conv import convolved, patch
from cleave_plan.kernels.flaw import Flaw
from cleave_plan.kernels.quantised import Companions, decoded, shifted
from cleave_plan.kernels.tile import Box, Pieces, Product, cut

VECTORS = 12
"""Random vectors: a wrong row escapes all of them with probability 1/4096."""

PANEL, COARSE_PANEL = 1024, 256
"""Columns that are checked together: fewer where results are stored so coarsely that roundings of many hide one error."""

SUSPECTS = 2
"""Rows that are multiplied again, whatever their residuals."""

ODD_ROWS = 16
"""Rows with NaN or infinities that are multiplied again."""

ELEMENTS = 8
"""Elements of a suspect row that are computed exactly."""

LAMBDA = 4.0
"""Multiple of sqrt(k) roundings by which an honest inner product may be off."""

ROUNDOFF = {DType.FLOAT64: 2.0**-53, DType.FLOAT32: 2.0**-24, DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8}
"""Largest relative error of one rounding to each type."""

_SPACING = {DType.FLOAT64: 2.0**-1074, DType.FLOAT32: 2.0**-149, DType.FLOAT16: 2.0**-24, DType.BFLOAT16: 2.0**-133}
_LARGEST = {DType.FLOAT64: 1.79e308, DType.FLOAT32: 3.4e38, DType.FLOAT16: 65504.0, DType.BFLOAT16: 3.38e38}
"""Numbers from which on a value may have become infinite."""

_EXACT = 2**53


def check_product(
    product: Product, operands: Sequence[Array | None], box: Box, result: Array, draw: np.random.Generator
) -> Flaw | None:
    """What is wrong with ``result`` as the tile ``box`` of a product that is linear in its operands; None if nothing is found.

    ``operands`` are canonical and whole (A, B, companions), as :meth:`Product.run` takes them; ``result`` [batch, rows, columns]
    has the tile's shape and type. ``draw`` must be unknown to whoever computed the tile.
    """
    if not result.size:
        return None
    judge = _judge_floats if accumulator(product.a_dtype).is_float else _judge_integers
    width = COARSE_PANEL if product.result_dtype(box) is DType.BFLOAT16 else PANEL
    for start in range(0, result.shape[2], width):
        stop = min(start + width, result.shape[2])
        panel = box._replace(n_start=box.n_start + start, n_stop=box.n_start + stop)
        flaw = judge(_Factors(product, operands, panel), result[:, :, start:stop], draw)
        if flaw is not None:
            return flaw
    return None


class _Factors:
    """A [g, r, k] and B [g, k, c] of one tile in the types that a check computes in. A's rows may be places in images."""

    def __init__(self, product: Product, operands: Sequence[Array | None], box: Box) -> None:
        self.product, self.box, self._operands = product, box, operands
        self.depth = box.k_stop - box.k_start
        self._pieces = self._cut(box)
        self._converted: tuple[Array, ...] | None = None

    def _cut(self, box: Box) -> Pieces:
        a, b, *along = self._operands
        assert a is not None, "A is never absent"
        assert b is not None, "B is never absent"
        return cut(self.product, a, b, box, Companions(*along))

    def b(self, working: np.dtype[Any]) -> Array:
        """B decoded, less its zero point."""
        pieces = self._pieces
        if self.product.coding is None:
            return shifted(pieces.b, pieces.along.b_zero, working)
        return decoded(self.product.coding, pieces.b, pieces.along, self.box.inner, working)

    def a_times(self, right: Array) -> Array:
        """A times ``right`` [g, k, s], in the type of ``right``."""
        a = self._a(right.dtype)
        if self.product.window is not None:
            return convolved(self.product.window, a, right, rows=self.box.rows)
        found: Array = np.matmul(a[0], right)
        return found

    def row(self, item: int, row: int) -> Array:
        """Row ``row`` of item ``item`` of A, [k], less its zero point, in the type that the operand has or that it takes."""
        m, g = self.box.m_start + row, self.box.batch_start + item
        box = self.box._replace(m_start=m, m_stop=m + 1, batch_start=g, batch_stop=g + 1)
        pieces = self._cut(box)
        (a,) = _shifted(pieces, numpy_dtype(accumulator(self.product.a_dtype)))
        return a[0, 0] if self.product.window is None else patch(self.product.window, a, row=m)

    def _a(self, working: np.dtype[Any]) -> tuple[Array, ...]:
        """The whole of A, converted once."""
        if self._converted is None or self._converted[0].dtype != working:
            self._converted = _shifted(self._pieces, working)
        return self._converted

    def row_energy(self, energy: Array) -> Array:
        """Squared norms of A's rows, [g, r], to a common factor; of images the mean of C's (``energy``) stands for them."""
        if self.product.window is not None:
            mean: Array = np.broadcast_to(energy.mean(axis=1, keepdims=True), energy.shape)
            return mean
        (a,) = self._a(energy.dtype)
        squares: Array = np.einsum("grk,grk->gr", a, a)
        return squares

    def flaw(self, item: int, row: int, column: int, found: Any, expected: Any) -> Flaw:
        """A wrong element, by its place in the whole product."""
        box = self.box
        return Flaw(
            item=box.batch_start + item, row=box.m_start + row, column=box.n_start + column, found=found.item(), expected=expected
        )


def _shifted(pieces: Pieces, working: np.dtype[Any]) -> tuple[Array, ...]:
    return tuple(shifted(piece, pieces.along.a_zero, working) for piece in pieces.a)


def _judge_integers(factors: _Factors, result: Array, draw: np.random.Generator) -> Flaw | None:
    product, bits = factors.product, accumulator(factors.product.a_dtype).bits
    largest = factors.depth * (2**product.a_dtype.bits - 1) * (2**product.b_dtype.bits - 1)
    may_wrap = largest >= 2 ** (bits - 1)
    exact = max(largest, 2**bits) * result.shape[2] <= _EXACT
    working = np.dtype(np.float64 if exact else np.int64)
    vectors = draw.integers(0, 2, (result.shape[2], VECTORS)).astype(working)
    if not may_wrap:
        vectors = 2 * vectors - 1
    residual = result.astype(working) @ vectors - factors.a_times(factors.b(working) @ vectors)
    if may_wrap:
        residual = residual.astype(np.int64) & np.int64(-1 if bits == 64 else 2**bits - 1)
    wrong = residual.any(axis=2)
    if not wrong.any():
        return None
    item, row = (int(place) for place in np.argwhere(wrong)[0])
    expected = (factors.row(item, row).astype(working) @ factors.b(working)[item]).astype(np.int64).astype(result.dtype)
    column = int(np.argmax(result[item, row] != expected))
    return factors.flaw(item, row, column, result[item, row, column], expected[column].item())


def _judge_floats(factors: _Factors, result: Array, draw: np.random.Generator) -> Flaw | None:
    working = numpy_dtype(accumulator(factors.product.a_dtype))
    vectors = (2 * draw.integers(0, 2, (result.shape[2], VECTORS)) - 1).astype(working)
    with np.errstate(over="ignore", invalid="ignore"):
        b = factors.b(working)
        wide = result.astype(working, copy=False)
        projected = b @ vectors
        residual = wide @ vectors - factors.a_times(projected)
        score = _scores(factors, wide, projected, residual)
        for item, row in _rows_to_look_at(residual, score, draw):
            flaw = _judge_row(factors, item, row, b[item], result[item, row])
            if flaw is not None:
                return flaw
    return None


def _scores(factors: _Factors, result: Array, projected: Array, residual: Array) -> Array:
    """How far each row's residual stands out, [g, r]; see the module's second formula."""
    u, stored = _roundoffs(factors)
    energy = np.einsum("grc,grc->gr", result, result)
    spread = np.square(projected).sum(axis=(1, 2)) / VECTORS
    noise = stored**2 * energy + u**2 * factors.row_energy(energy) * (spread[:, None] if factors.product.window is None else 1.0)
    score: Array = np.square(residual).sum(axis=2) / np.maximum(noise, np.finfo(noise.dtype).tiny)
    return score


def _roundoffs(factors: _Factors) -> tuple[float, float]:
    """Units of roundoff of the sums and, where the result is rounded once more, of its type (else 0)."""
    sums, kept = accumulator(factors.product.a_dtype), factors.product.result_dtype(factors.box)
    return ROUNDOFF[sums], ROUNDOFF[kept] if kept is not sums else 0.0


def _rows_to_look_at(residual: Array, score: Array, draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    rows = score.shape[1]
    odd = np.flatnonzero(~np.isfinite(residual).all(axis=2))
    for place in draw.permutation(odd)[:ODD_ROWS]:
        yield divmod(int(place), rows)
    ranked = np.where(np.isnan(score), -1.0, score).reshape(-1)
    ranked[odd] = -1.0
    count = min(SUSPECTS, len(ranked) - len(odd))
    for place in np.argpartition(-ranked, max(count - 1, 0))[:count]:
        yield divmod(int(place), rows)


def _judge_row(factors: _Factors, item: int, row: int, b: Array, found: Array) -> Flaw | None:
    """Compare the elements of a row that differ most with the exact product."""
    a = factors.row(item, row)
    again = a @ b
    apart = np.abs(found.astype(b.dtype, copy=False) - again)
    regular = np.isfinite(found) & np.isfinite(again)
    apart = np.where(regular, apart, np.where(np.isfinite(found) == np.isfinite(again), -1.0, np.inf))
    count = min(ELEMENTS, len(apart))
    columns = np.argpartition(-apart, count - 1)[:count]

    part, got = b[:, columns], found[columns].astype(np.float64)
    u, stored = _roundoffs(factors)
    sums, kept = accumulator(factors.product.a_dtype), factors.product.result_dtype(factors.box)
    usual = LAMBDA * np.sqrt(factors.depth + 1.0) * u * (np.abs(a) @ np.abs(part)).astype(np.float64)
    if (apart[columns] <= usual / 2 + 1.01 * stored * np.abs(again[columns])).all():
        return None
    exact, drift = _added_up(a, part)
    allowed = np.fmax(usual, LAMBDA * drift) + 1.01 * stored * np.abs(exact) + _SPACING[kept]
    may_overflow = ~np.isfinite(exact) | ~(usual < u * _LARGEST[sums]) | (np.abs(exact) + allowed >= _LARGEST[kept])
    right = np.where(np.isfinite(got) & np.isfinite(exact), np.abs(got - exact) <= allowed, ~np.isfinite(got) & may_overflow)
    if right.all():
        return None
    worst = int(np.argmin(right))
    return factors.flaw(item, row, int(columns[worst]), found[columns[worst]], float(exact[worst]))


def _added_up(a: Array, b: Array) -> tuple[Array, Array]:
    """The exact products of a[k] and the columns of b[k, n], and how far their sums drift when they are added one by one."""
    products = a[:, None].astype(np.longdouble) * b
    sums = np.add.accumulate(products, axis=0)
    errors = (np.add.accumulate(products.astype(b.dtype), axis=0) - sums).astype(np.float64)
    return sums[-1].astype(np.float64), np.maximum(errors.max(axis=0), 0) - np.minimum(errors.min(axis=0), 0)
