"""Which check fits a tile: projections where the result is linear in the operands, lines computed again where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, accumulator, numpy_dtype
from cleave_plan.kernels.chain import ChainProduct, Work
from cleave_plan.kernels.flaw import Flaw
from cleave_plan.kernels.freivalds import ROUNDOFF, check_product
from cleave_plan.kernels.spotcheck import check_chain, check_lines
from cleave_plan.kernels.tile import Box, Product

_WHOLE_NUMBERS = (DType.INT32, DType.INT64, DType.UINT32, DType.UINT64)


def check_tile(work: Work, operands: Sequence[Array | None], box: Box, result: Array, draw: np.random.Generator) -> Flaw | None:
    """What is wrong with ``result`` as the tile ``box`` of ``work``, or None.

    ``operands`` are canonical and whole, as ``work.run`` takes them; ``draw`` gives the random choices, which must be unknown
    to whoever computed the tile. Raises ValueError when ``result`` has not the tile's shape and type.
    """
    work = replace(work, grid=None)  # a check computes lines of its own choice
    shape, dtype = work.result_shape(box), numpy_dtype(work.result_dtype(box))
    if result.shape != shape or result.dtype != dtype:
        raise ValueError(f"a result of {result.dtype}{list(result.shape)} instead of {dtype}{list(shape)}")
    if not result.size:
        return None
    if isinstance(work, ChainProduct):
        return check_chain(work, operands, box, result, draw)
    check = check_product if _is_linear(work, operands, box) else check_lines
    return check(work, operands, box, result, draw)


def _is_linear(product: Product, operands: Sequence[Array | None], box: Box) -> bool:
    """Whether the result is the sums themselves, or these rounded once."""
    sums, kept = accumulator(product.a_dtype), product.result_dtype(box)
    requantised = len(operands) > _SCALE and operands[_SCALE] is not None and box.k_stop - box.k_start == product.shape.k
    if requantised:
        return False
    return kept in ROUNDOFF if sums in ROUNDOFF else sums is kept and sums in _WHOLE_NUMBERS


_SCALE = 2 + 3
"""Place of the requantising scale among the operands: after A, B, both zero points and the bias."""
