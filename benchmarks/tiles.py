"""Random tiles of every kind that a device may be given, good and corrupted, for :mod:`benchmarks.integrity`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.kernels.chain import ChainProduct, Step, Work
from cleave_plan.kernels.quantised import Coding, Companions
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.workload.gemm import ConvWindow, GemmShape

LARGEST = (1024, 4096, 1024)
"""(M, K, N) of the largest tile."""

FAMILIES = ("normal", "positive", "scaled", "cancelling", "sparse", "constant")
"""How the numbers of a tile are distributed; see :func:`_numbers`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """One tile: what it is cut from, whole operands, its box, and the right result as some device gives it."""

    work: Work
    operands: tuple[Array | None, ...]
    box: Box
    result: Array


def sizes(rng: np.random.Generator, *, largest: bool = False) -> tuple[int, int, int]:
    """(M, K, N): the largest, or each drawn evenly on a logarithmic scale from 1 to 256, K to 1024."""
    if largest:
        return LARGEST
    m, k, n = (int(2 ** rng.uniform(0, top)) for top in (8, 10, 8))
    return m, k, n


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], family: str, axis: int) -> Array:
    """float64 numbers; ``axis`` is that of K. Families that round in their own ways:

    "positive" sums only grow; "scaled" rows differ by orders of magnitude; the second half of a "cancelling" K takes away what
    the first brings; "sparse" is half zeros, as after ReLU; "constant" adds one number again and again.
    """
    if family == "constant":
        return np.full(shape, rng.uniform(0.05, 2))
    numbers = rng.random(shape) if family == "positive" else rng.standard_normal(shape)
    if family == "sparse":
        return np.maximum(numbers, 0)
    if family == "scaled":
        other = [1 if place == axis else size for place, size in enumerate(shape)]
        return numbers * rng.lognormal(0, 1.5, other)
    if family == "cancelling" and shape[axis] > 1:
        half = shape[axis] // 2
        first, second = (np.take(numbers, range(start, start + half), axis) for start in (0, half))
        mirrored = first if axis == len(shape) - 1 else -first + 1e-3 * second
        rest = np.take(numbers, range(2 * half, shape[axis]), axis)
        return np.concatenate([first, mirrored, rest], axis)
    return numbers


def float_tile(rng: np.random.Generator, dtype: DType, *, family: str | None = None, largest: bool = False) -> Tile:
    """A product of floats, as one of several devices computes it: at once, K in parts, K in another order, or one by one."""
    m, k, n = sizes(rng, largest=largest)
    kind = numpy_dtype(dtype)
    family = family or str(rng.choice(FAMILIES))
    a = _numbers(rng, (1, m, k), family, 2).astype(kind)
    b = _numbers(rng, (1, k, n), family, 1).astype(kind)
    product = Product(shape=GemmShape(1, m, k, n), a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, window=None)
    sums = np.float64 if dtype is DType.FLOAT64 else np.float32
    how = str(rng.choice(["at once", "in parts", "shuffled", "one by one"])) if not largest else "at once"
    with np.errstate(over="ignore"):
        result = _summed(a.astype(sums), b.astype(sums), how, rng).astype(kind)
    return Tile(work=product, operands=(a, b), box=Box(0, m, 0, n, 0, k, 0, 1), result=result)


def _summed(a: Array, b: Array, how: str, rng: np.random.Generator) -> Array:
    k = a.shape[2]
    if how == "shuffled":
        order = rng.permutation(k)
        a, b = np.ascontiguousarray(a[:, :, order]), b[:, order]
    if how in ("at once", "shuffled"):
        return a @ b
    step = max(1, k // 200) if how == "one by one" else max(1, k // 7)
    total = np.zeros((1, a.shape[1], b.shape[2]), a.dtype)
    for start in range(0, k, step):
        total += a[:, :, start : start + step] @ b[:, start : start + step]
    return total


def integer_tile(rng: np.random.Generator, dtype: DType, *, largest: bool = False) -> Tile:
    """A product of integers over their whole range, which wraps around where it has to.

    Wide integers are multiplied without BLAS, so that their largest tile is smaller.
    """
    m, k, n = (128, 1024, 128) if largest and dtype.bits >= 32 else sizes(rng, largest=largest)
    kind = numpy_dtype(dtype)
    limits = np.iinfo(kind)
    a, b = (rng.integers(limits.min, limits.max, shape, kind, endpoint=True) for shape in ((1, m, k), (1, k, n)))
    product = Product(
        shape=GemmShape(1, m, k, n),
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=DType.INT32 if dtype.bits < 32 else dtype,
        window=None,
    )
    return _run(product, (a, b))


def requantised_tile(rng: np.random.Generator, *, largest: bool = False) -> Tile:
    """uint8 times int8, requantised to uint8."""
    m, k, n = sizes(rng, largest=largest)
    a = rng.integers(0, 256, (1, m, k), np.uint8)
    b = rng.integers(-128, 128, (1, k, n), np.int8)
    along = Companions(
        a_zero=np.full((1, 1, 1), 128, np.uint8), bias=rng.integers(-1000, 1000, (1, 1, n), np.int32),
        scale=np.full((1, 1, n), 0.005 / np.sqrt(k), np.float32), y_zero=np.full((1, 1, 1), 120, np.uint8),
    )  # fmt: skip
    product = Product(shape=GemmShape(1, m, k, n), a_dtype=DType.UINT8, b_dtype=DType.INT8, out_dtype=DType.UINT8, window=None)
    return _run(product, (a, b, *along))


def packed_tile(rng: np.random.Generator, *, largest: bool = False) -> Tile:
    """float32 times weights of 4 bits in blocks of 32."""
    m, k, n = sizes(rng, largest=largest)
    k = -(-k // 32) * 32
    a = rng.standard_normal((1, m, k)).astype(np.float32)
    codes = rng.integers(0, 256, (1, n, k // 2), np.uint8)
    along = Companions(
        b_scale=rng.uniform(0.01, 0.1, (1, n, k // 32)).astype(np.float32), b_offset=np.full((1, 1, 1), 8, np.float32)
    )
    product = Product(
        shape=GemmShape(1, m, k, n), a_dtype=DType.FLOAT32, b_dtype=DType.UINT4, out_dtype=DType.FLOAT32, window=None,
        coding=Coding(bits=4, block=32),
    )  # fmt: skip
    return _run(product, (a, codes, *along))


def convolution_tile(rng: np.random.Generator, *, largest: bool = False) -> Tile:
    """A 3 x 3 convolution in one or two groups, some of its rows."""
    size, channels, n, groups = (28, 256, 256, 1) if largest else (int(rng.integers(4, 16)), int(rng.integers(1, 24)), 16, 2)
    window = ConvWindow(
        images=2, channels=channels, input=(size, size), output=(size, size), kernel=(3, 3), strides=(1, 1), dilations=(1, 1),
        pads=(1, 1),
    )  # fmt: skip
    x = _numbers(rng, (2, groups * channels, size, size), str(rng.choice(["normal", "sparse"])), 1).astype(np.float32)
    w = rng.standard_normal((groups, channels * 9, n)).astype(np.float32)
    rows = 2 * size * size
    product = Product(
        shape=GemmShape(groups, rows, channels * 9, n), a_dtype=DType.FLOAT32, b_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32,
        window=window,
    )  # fmt: skip
    start = int(rng.integers(0, rows // 2))
    return _run(product, (x, w), rows=(start, int(rng.integers(start + 1, rows + 1))))


def chain_tile(rng: np.random.Generator, dtype: DType, *, largest: bool = False) -> Tile:
    """Attention: scale, softmax, context; some rows of two items."""
    rows, depth, length = (512, 64, 512) if largest else (int(2 ** rng.uniform(0, 7)), int(2 ** rng.uniform(2, 7)), 64)
    steps = (Step("Mul", (0, 1), dtype), Step("Softmax", (2,), dtype))
    chain = ChainProduct(
        shape=GemmShape(2, rows, length * 2 * depth, 1), d_k=depth, length=length, d_v=depth, dtype=dtype, scores_dtype=dtype,
        out_dtype=dtype, steps=steps, result=3, constant=(True,),
    )  # fmt: skip
    shapes = ((2, rows, depth), (2, depth, length), (2, length, depth))
    q, k, v = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes)
    box = Box(0, rows, 0, 1, 0, chain.shape.k, 0, 2)
    operands = (q, k, v, np.full((1, 1, 1), depth**-0.5, numpy_dtype(dtype)))
    return Tile(work=chain, operands=operands, box=box, result=chain.run(operands, box)[1])


def _run(product: Product, operands: tuple[Array | None, ...], rows: tuple[int, int] | None = None) -> Tile:
    batch, m, k, n = product.shape
    box = Box(*(rows or (0, m)), 0, n, 0, k, 0, batch)
    return Tile(work=product, operands=operands, box=box, result=product.run(operands, box)[1])


KINDS: dict[str, Callable[..., Tile]] = {
    **{dtype.value: lambda rng, dtype=dtype, **how: float_tile(rng, dtype, **how)
       for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)},
    **{dtype.value: lambda rng, dtype=dtype, **how: integer_tile(rng, dtype, **how)
       for dtype in (DType.INT8, DType.INT16, DType.INT32)},
    "4-bit weights": packed_tile,
    "convolution": convolution_tile,
    "requantised": requantised_tile,
    "attention": lambda rng, **how: chain_tile(rng, DType.FLOAT32, **how),
    "attention float16": lambda rng, **how: chain_tile(rng, DType.FLOAT16, **how),
}  # fmt: skip
"""Kind of tile -> a function that draws one (``rng``, ``largest``)."""


def corrupted(tile: Tile, how: str, rng: np.random.Generator, error: float) -> Array:
    """The tile's result with something wrong: "element" (one is off by ``error`` times the root mean square), "zeros" (a block of
    at least a quarter of the rows and of the columns), "stale" (another tile's result) or "nan" (one element)."""
    result = tile.result.copy()
    place = tuple(int(rng.integers(size)) for size in result.shape)
    if how == "element":
        result[place] = _moved(result, place, error, rng)
    elif how == "nan":
        result[place] = np.nan
    elif how == "zeros":
        item, *block = place[0], *(_range(size, rng) for size in result.shape[1:])
        result[(item, *block)] = 0
    else:
        result = _stale(result, rng)
    return result


def _moved(result: Array, place: tuple[int, ...], error: float, rng: np.random.Generator) -> Any:
    old = result[place]
    if result.dtype.kind in "iu":
        return old + result.dtype.type(1 if old < np.iinfo(result.dtype).max else -1)
    wide = result.astype(np.float64)
    return old + result.dtype.type(error * np.sqrt(np.mean(wide**2)) * rng.choice([-1, 1]))


def _range(size: int, rng: np.random.Generator) -> slice:
    length = int(rng.integers(-(-size // 4), size + 1))
    start = int(rng.integers(0, size - length + 1))
    return slice(start, start + length)


def _stale(result: Array, rng: np.random.Generator) -> Array:
    """The same numbers in other places: what a device has that kept an older tile of the layer."""
    order = rng.permutation(result.size)
    return result.reshape(-1)[order].reshape(result.shape)
