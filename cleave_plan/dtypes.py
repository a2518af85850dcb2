"""Element types by their ONNX/NumPy names, with the bits that one element takes on a link and in memory."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """Element types by their ONNX/NumPy names; ``bits`` is the size on the link and in memory."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"
    INT64 = "int64"
    UINT64 = "uint64"
    INT32 = "int32"
    UINT32 = "uint32"
    INT16 = "int16"
    UINT16 = "uint16"
    INT8 = "int8"
    UINT8 = "uint8"
    INT4 = "int4"
    UINT4 = "uint4"
    FLOAT4 = "float4"
    FLOAT6 = "float6"
    INT2 = "int2"
    UINT2 = "uint2"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"

    __hash__ = str.__hash__  # Enum's own is written in Python, and types are keys everywhere

    @property
    def bits(self) -> int:
        """Bits of one element; a string counts as a 64-bit reference."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether gradients flow through values of this type."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def accumulator_bits(self) -> int:
        """Bits of one partial sum of products of this type: 64 for float64, otherwise at least 32."""
        return max(32, self.bits)

    def bytes_of(self, elements: int) -> int:
        """Bytes of ``elements`` packed elements, rounded up."""
        return -(-elements * self.bits // 8)


_BITS: dict[DType, int] = {
    DType.FLOAT64: 64, DType.INT64: 64, DType.UINT64: 64, DType.COMPLEX64: 64, DType.STRING: 64,
    DType.FLOAT32: 32, DType.INT32: 32, DType.UINT32: 32,
    DType.FLOAT16: 16, DType.BFLOAT16: 16, DType.INT16: 16, DType.UINT16: 16,
    DType.FLOAT8: 8, DType.INT8: 8, DType.UINT8: 8, DType.BOOL: 8,
    DType.INT4: 4, DType.UINT4: 4, DType.FLOAT4: 4, DType.COMPLEX128: 128,
    DType.FLOAT6: 6, DType.INT2: 2, DType.UINT2: 2,
}  # fmt: skip
