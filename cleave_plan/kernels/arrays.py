"""NumPy arrays and the element types that they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cleave_plan.dtypes import DType

Array = NDArray[Any]


def dtype_of_array(array: Array) -> DType:
    """The element type of an array; raises ValueError when it has none of ours."""
    return DType(array.dtype.name)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of ``dtype``; bfloat16 comes from ml_dtypes, which is loaded only when it is met."""
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype.value)
