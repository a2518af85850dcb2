"""ONNX element types and their names in this program."""

from __future__ import annotations

import onnx

from cleave_plan.dtypes import DType

_NAMES = {
    DType.FLOAT64: ("DOUBLE",),
    DType.FLOAT8: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"),
    DType.FLOAT4: ("FLOAT4E2M1",),
    DType.FLOAT6: ("FLOAT6E2M3", "FLOAT6E3M2"),
    DType.FLOAT32: ("FLOAT",),
} | {
    dtype: (dtype.value.upper(),)
    for dtype in DType
    if dtype not in (DType.FLOAT64, DType.FLOAT8, DType.FLOAT6, DType.FLOAT4, DType.FLOAT32)
}  # fmt: skip

# A version of onnx that lacks a type cannot read a model that uses it, so its absence here is no loss.
_BY_CODE: dict[int, DType] = {
    getattr(onnx.TensorProto, name): dtype for dtype, names in _NAMES.items() for name in names if hasattr(onnx.TensorProto, name)
}

WEIGHT_DTYPES = frozenset(
    {
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8, DType.FLOAT4,
        DType.COMPLEX64, DType.COMPLEX128, DType.INT8, DType.UINT8, DType.INT4, DType.UINT4,
        DType.INT2, DType.UINT2, DType.FLOAT6,
    }
)  # fmt: skip
"""Element types that weights have; wider integers, booleans and strings hold shapes, indices and labels."""

FLOAT_CODES = frozenset(code for code, dtype in _BY_CODE.items() if dtype.is_float)
"""Codes of the types that hold floating-point numbers."""


def dtype_of(code: int) -> DType | None:
    """The DType of an ``onnx.TensorProto.DataType`` code; None for 0 (undefined) and for codes without a name here."""
    return _BY_CODE.get(code)
