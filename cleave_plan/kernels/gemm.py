"""The product of two blocks in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleave_plan.kernels.arrays import Array


def multiply_block(a: Array, b: Array, working: np.dtype[Any], out: Array | None = None) -> Array:
    """``a[g, r, k] @ b[g, k, c]`` in the type ``working``, in ``out`` where it is given.

    Half-precision blocks are widened first, so that products are summed in float32 whatever the processor offers;
    integers are multiplied in the accumulator, whose wrap-around is that of the whole product.
    """
    result: Array = np.matmul(a.astype(working, copy=False), b.astype(working, copy=False), out=out)
    return result
