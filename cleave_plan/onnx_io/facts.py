"""What is known of a tensor before anything runs: element type, shape, and the values of small ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Dim = int | str | None
"""A size: known, named (a symbolic dimension that nobody bound), or unknown."""

Value = NDArray[Any]
"""A folded tensor. With dtype object it is a tensor of integers of which some are named or unknown (see Dim)."""

INTEGER_LIMIT = 1024
"""Most elements of an integer or boolean tensor whose values are kept: shapes, axes, indices, masks of them."""

FLOAT_LIMIT = 16
"""Most elements of a float tensor whose values are kept: scales of Resize, steps of Range, factors in shape arithmetic."""


LARGEST = 2**63 - 1
"""The largest size that ONNX can express."""


class ShapeContradictionError(ValueError):
    """A node cannot run on inputs of these shapes."""


_NUMBERS = frozenset({int})


@dataclass(slots=True, init=False)
class Fact:
    """What is known of one tensor.

    ``elem`` is the ONNX element type code (0: unknown); ``shape`` is None when even the rank is unknown; ``other`` holds
    the type of what is not a tensor (a sequence, an optional, a map). ``sizes`` is the shape when every size is known, otherwise
    None; ``key`` is equal for tensors of which the same is known, and None for what is not a tensor. Nobody writes to a fact;
    it is not frozen because a large model has a hundred thousand, and a frozen one takes three times as long to make.
    """

    elem: int
    shape: tuple[Dim, ...] | None
    value: Value | None
    other: onnx.TypeProto | None
    sizes: tuple[int, ...] | None = field(init=False, compare=False, repr=False)
    key: object = field(init=False, compare=False, repr=False)

    def __init__(
        self, *, elem: int = 0, shape: tuple[Dim, ...] | None = None, value: Value | None = None,
        other: onnx.TypeProto | None = None,
    ) -> None:  # fmt: skip
        self.elem, self.shape, self.value, self.other = elem, shape, value, other
        known = shape is not None and _NUMBERS.issuperset(map(type, shape))
        self.sizes = cast("tuple[int, ...]", shape) if known else None
        self.key = None if other is not None else (elem, shape, None if value is None else _fingerprint(value))

    @property
    def whole_value(self) -> Value | None:
        """The values when every one is known."""
        return self.value if self.value is not None and self.value.dtype != object else None

    @property
    def whole_numbers(self) -> Value | None:
        """The values when every one is known and they are of an integer type, as axes, bounds and counts must be."""
        value = self.whole_value
        return value if value is not None and value.dtype.kind in "iu" else None

    @property
    def partial_value(self) -> Value | None:
        """The values when only some are known."""
        return self.value if self.value is not None and self.value.dtype == object else None


def _fingerprint(value: Value) -> object:
    if value.dtype == object:
        return value.shape, tuple(value.ravel().tolist())
    return value.dtype.char, value.tobytes()


UNKNOWN = Fact()


def fact_of_value(value: Value, elem: int) -> Fact:
    """A tensor whose values are known."""
    return Fact(elem=elem, shape=value.shape, value=value)


def fact_of_type(kind: onnx.TypeProto, names: Mapping[str, int] | None = None) -> Fact:
    """What a declared type says. Sizes below 0 are unknown; symbolic ones are looked up in ``names`` when it has them."""
    if not kind.HasField("tensor_type"):
        return Fact(other=kind) if kind.WhichOneof("value") else UNKNOWN
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return Fact(elem=tensor.elem_type)
    return Fact(elem=tensor.elem_type, shape=tuple([declared_dim(dim, names) for dim in tensor.shape.dim[:]]))


# Names that exporters write where they mean "not known": two dimensions called "?" need not be equal.
_NAMELESS = frozenset({"", "?", "-1", "None", "none", "unk", "unknown"})


def declared_dim(dim: onnx.TensorShapeProto.Dimension, names: Mapping[str, int] | None = None) -> Dim:
    """One dimension of a declared type as a Dim."""
    value = int(dim.dim_value)
    if value > 0:
        return value
    if dim.HasField("dim_value"):
        return None if value else 0
    name = str(dim.dim_param).strip()
    if name in _NAMELESS:
        return None
    if name.isascii() and name.isdigit():  # some converters write sizes as names
        return int(name)
    return names[name] if names and name in names else name


def type_of_fact(fact: Fact) -> onnx.TypeProto:
    """The ONNX type that says what ``fact`` says."""
    if fact.other is not None:
        return fact.other
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = fact.elem
    if fact.shape is not None:
        kind.tensor_type.shape.SetInParent()
        for size in fact.shape:
            dim = kind.tensor_type.shape.dim.add()
            if isinstance(size, int):
                if size <= LARGEST:
                    dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    return kind


def as_value(items: Sequence[Dim], shape: tuple[int, ...]) -> Value:
    """A folded tensor of ``items``: of int64 when every one is known. What int64 cannot hold is unknown."""
    items = [None if isinstance(item, int) and not -LARGEST <= item <= LARGEST else item for item in items]
    if all(isinstance(item, int) for item in items):
        return np.array(items, dtype=np.int64).reshape(shape)
    array: np.ndarray[Any, Any] = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


def partial_shape(shape: Sequence[Dim]) -> Value:
    """A shape as the tensor that the Shape operator makes of it."""
    return as_value(shape, (len(shape),))


def is_small(elem: int, sizes: Iterable[int]) -> bool:
    """Whether a tensor of this type and shape is one whose values are kept."""
    count = 1
    for size in sizes:
        count *= size
    if elem in _FLOATS:
        return count <= FLOAT_LIMIT
    return elem in _INTEGERS and count <= INTEGER_LIMIT


_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})
_INTEGERS = frozenset(
    {
        onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.INT16, onnx.TensorProto.INT8,
        onnx.TensorProto.UINT64, onnx.TensorProto.UINT32, onnx.TensorProto.UINT16, onnx.TensorProto.UINT8, onnx.TensorProto.BOOL,
    }
)  # fmt: skip


_PLAIN: dict[int, tuple[np.dtype[Any], str]] = {
    onnx.TensorProto.INT64: (np.dtype("<i8"), "int64_data"), onnx.TensorProto.INT32: (np.dtype("<i4"), "int32_data"),
    onnx.TensorProto.FLOAT: (np.dtype("<f4"), "float_data"),
} if sys.byteorder == "little" else {}  # fmt: skip
"""The types of most tensors that are read: how raw bytes hold them, and the field that holds them otherwise."""

RAW_TYPES = {elem: dtype for elem, (dtype, _) in _PLAIN.items()}
"""NumPy's type of the raw bytes of the element types that most tensors have, where this machine's numbers lie as the file's."""


def tensor_to_array(tensor: onnx.TensorProto) -> Value:
    """Values of a small tensor that lies in the file; raises ValueError when its bytes do not fit its header."""
    plain = _PLAIN.get(tensor.data_type)
    if plain is not None:  # most of them, without a detour
        dtype, field_name = plain
        sizes = tuple(tensor.dims[:])
        raw = tensor.raw_data
        if raw:
            return np.frombuffer(raw, dtype).reshape(sizes)
        items = getattr(tensor, field_name)[:]
        if len(items) == prod(sizes):
            return np.array(items, dtype).reshape(sizes)
    try:
        array: Value = numpy_helper.to_array(tensor)
    except Exception as error:  # to_array reports damage through several unrelated exception types
        raise ValueError(f"tensor {tensor.name!r} cannot be read: {error}") from None
    return array


def array_to_tensor(value: Value, name: str) -> onnx.TensorProto:
    """The ONNX form of a folded value."""
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
