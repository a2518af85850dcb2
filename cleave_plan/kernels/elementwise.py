"""Operators that act on each element or along the last axis, in NumPy: what a device runs between two products.

Each follows its ONNX operator. Half-precision values are computed in float32 and rounded to the operator's result type, as
a runtime does that has no half-precision arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array, as_ieee, numpy_dtype

_HALVES = ("float16", "bfloat16")


def softmax(x: Array) -> Array:
    """Along the last axis."""
    with np.errstate(invalid="ignore"):  # a row of -inf alone is NaN, here as in ONNX
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True)
    return result


def _sigmoid(x: Array) -> Array:
    powers = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, powers) / (1 + powers)
    return result


def _same(x: Array) -> Array:
    return x


FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Neg": np.negative, "Abs": np.abs,
    "Max": lambda *x: np.maximum.reduce(np.broadcast_arrays(*x)), "Min": lambda *x: np.minimum.reduce(np.broadcast_arrays(*x)),
    "Tanh": np.tanh, "Exp": np.exp, "Sigmoid": _sigmoid, "Relu": lambda x: np.maximum(x, 0), "Softmax": softmax,
    "Where": np.where, "IsNaN": np.isnan, "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Cast": _same, "Same": _same,
}  # fmt: skip
"""Operator -> its function; "Cast" is done by the result type, "Same" is any that only renames or regroups elements."""


@as_ieee
def apply(op: str, inputs: Sequence[Array], dtype: DType) -> Array:
    """The result of ``op`` in ``dtype``; ``inputs`` broadcast against one another, Softmax is along the last axis."""
    wanted = numpy_dtype(dtype)
    if op in ("Cast", "Same"):
        return inputs[0].astype(wanted, copy=False)
    return FUNCTIONS[op](*(_wide(array) for array in inputs)).astype(wanted, copy=False)


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name in _HALVES else array
