"""Multiplying one tile from its pieces: all that a device does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cleave_plan.kernels.arrays import Array, accumulator, as_ieee, numpy_dtype
from cleave_plan.kernels.blocks import convolve_blocks, multiply_blocks
from cleave_plan.kernels.channel_blocks import plain
from cleave_plan.kernels.conv import Rooms, convolve, rooms_of_tile
from cleave_plan.kernels.gemm import multiply_block
from cleave_plan.kernels.quantised import Companions, decoded, exact_type, narrowed, requantised, shifted

if TYPE_CHECKING:
    from cleave_plan.kernels.tile import Box, Pieces, Product


@as_ieee
def multiply(product: Product, pieces: Pieces, box: Box, out: Array | None = None) -> Array:
    """The tile's result, [batch, rows, columns] in ``product.result_dtype(box)``, from its pieces alone; in ``out`` if given.

    Raises ValueError when ``out`` has another shape or type.
    """
    kind = numpy_dtype(product.result_dtype(box))
    if out is None:
        out = np.empty(box.result_shape, kind)
    elif out.shape != box.result_shape or out.dtype != kind:
        raise ValueError(f"room for {out.dtype}{list(out.shape)} where {box} has {kind}{list(box.result_shape)}")
    if not out.size:
        return out
    if is_direct(product, pieces, box):  # sums are the result as they are, and are formed where they belong
        return _sums(product, pieces, box, kind, out)
    working = _working(product, box)
    sums = _sums(product, pieces, box, working, np.empty(box.result_shape, working))
    sums = narrowed(sums, numpy_dtype(accumulator(product.a_dtype)))
    out[...] = complete(product, sums, pieces.along) if product.holds_inner(box) else sums
    return out


def _working(product: Product, box: Box) -> np.dtype[Any]:
    """The type in which products are formed and summed."""
    exact = exact_type(product.a_dtype, product.b_dtype, box.k_stop - box.k_start)
    return exact or numpy_dtype(accumulator(product.a_dtype))


def is_direct(product: Product, pieces: Pieces, box: Box) -> bool:
    """Whether the sums of a tile are its result as they are."""
    return _working(product, box) == numpy_dtype(product.result_dtype(box)) and pieces.along.scale is None


def complete(product: Product, sums: Array, along: Companions) -> Array:
    """Finished sums in the storage type, requantised where the product is."""
    stored = numpy_dtype(product.out_dtype)
    return sums.astype(stored, copy=False) if along.scale is None else requantised(sums, along, stored)


def _sums(product: Product, pieces: Pieces, box: Box, working: np.dtype[Any], out: Array) -> Array:
    """Sums of products in ``working``, in ``out``."""
    if product.window is not None:
        convolve_tile(product, pieces, box, working, rooms_of_tile(out, product.window, box.rows))
        return out
    a = shifted(pieces.a[0], pieces.along.a_zero, working)
    b = _weights(product, pieces, box, working)
    if product.grid is None:
        return multiply_block(a, b, working, out)
    return multiply_blocks(product.grid, a, b, out, rows=box.rows, columns=box.columns, inner=box.inner)


@as_ieee
def convolve_tile(product: Product, pieces: Pieces, box: Box, working: np.dtype[Any], rooms: Rooms) -> None:
    """The sums of a convolution's tile, in ``working``, into ``rooms``."""
    assert product.window is not None
    blocked = product.blocks.a
    images = tuple(shifted(plain(piece) if blocked else piece, pieces.along.a_zero, working) for piece in pieces.a)
    weights = _weights(product, pieces, box, working)
    if product.grid is None:
        convolve(product.window, images, weights, rows=box.rows, rooms=rooms)
    else:
        convolve_blocks(
            product.grid, product.window, images, weights, rows=box.rows, columns=box.columns, rooms=rooms
        )  # fmt: skip


def _weights(product: Product, pieces: Pieces, box: Box, working: np.dtype[Any]) -> Array:
    """The tile's part of B, [batch, K, columns] in ``working``."""
    if product.coding is None:
        return shifted(pieces.b, pieces.along.b_zero, working)
    return decoded(product.coding, pieces.b, pieces.along, box.inner, working)
