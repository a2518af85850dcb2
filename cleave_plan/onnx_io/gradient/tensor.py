"""A tensor of the graph that is being written, with operators: ``dy * (1 - y * y)`` adds the nodes that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.attributes import get_ints
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import Dim
from cleave_plan.onnx_io.gradient.writer import Writer

Operand: TypeAlias = "Tensor | float"
"""What stands at the right of an operator: a tensor, or a number in the type of the left one."""


@dataclass(frozen=True)
class Tensor:
    """A tensor by name, and the writer of its graph. ``wish``: what nodes made from it are called after."""

    writer: Writer
    name: str
    wish: str = "node"

    @cached_property
    def elem(self) -> int:
        """The ONNX element type code; raises InputFileError when nothing says it."""
        elem = self.writer.fact(self.name).elem
        if not elem:
            raise InputFileError(
                f"the element type of tensor {self.name!r} is not known", expected="an element type in the file (value_info)"
            )
        return elem

    @property
    def shape(self) -> tuple[Dim, ...] | None:
        """The sizes as far as they are known; None when even the rank is not."""
        return self.writer.fact(self.name).shape

    @property
    def rank(self) -> int:
        """The number of axes; raises InputFileError when nothing says it."""
        shape = self.shape
        if shape is None:
            raise InputFileError(
                f"the number of axes of tensor {self.name!r} is not known", expected="a rank in the file (value_info)"
            )
        return len(shape)

    @property
    def is_float(self) -> bool:
        """Whether a gradient can flow through it."""
        dtype = dtype_of(self.writer.fact(self.name).elem)
        return dtype is not None and dtype.is_float

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """The element type in NumPy."""
        dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(self.elem)
        return dtype

    def op(self, op: str, *others: Operand | None, phase: str = "", **attributes: Any) -> Tensor:
        """The only output of ``op`` on this tensor and ``others``: numbers take this tensor's type, None is an absent input."""
        return self.ops(op, *others, outputs=1, phase=phase, **attributes)[0]

    def ops(self, op: str, *others: Operand | None, outputs: int, phase: str = "", **attributes: Any) -> tuple[Tensor, ...]:
        """All outputs of ``op``."""
        names = [self.name, *("" if other is None else self.like(other).name for other in others)]
        made = self.writer.add(op, names, wish=self.wish, outputs=outputs, phase=phase, **attributes)
        return tuple(Tensor(self.writer, name, self.wish) for name in made)

    def like(self, other: Operand) -> Tensor:
        """``other`` itself, or a number as a scalar of this tensor's type."""
        return other if isinstance(other, Tensor) else self.constant(np.array(other, self.numpy_type))

    def constant(self, array: Any) -> Tensor:
        """A constant of the graph."""
        return Tensor(self.writer, self.writer.constant(np.asarray(array)), self.wish)

    def ints(self, *values: int) -> Tensor:
        """A constant of int64 with one axis: shapes, axes."""
        return self.constant(np.array(values, np.int64))

    def __add__(self, other: Operand) -> Tensor:
        return self.op("Add", other)

    def __radd__(self, other: float) -> Tensor:
        return self.like(other) + self

    def __sub__(self, other: Operand) -> Tensor:
        return self.op("Sub", other)

    def __rsub__(self, other: float) -> Tensor:
        return self.like(other) - self

    def __mul__(self, other: Operand) -> Tensor:
        return self.op("Mul", other)

    def __rmul__(self, other: float) -> Tensor:
        return self * other

    def __truediv__(self, other: Operand) -> Tensor:
        return self.op("Div", other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.op("Reciprocal") if other == 1 and self.is_float else self.like(other) / self

    def __neg__(self) -> Tensor:
        return self.op("Neg")

    def __lt__(self, other: Operand) -> Tensor:
        return self.op("Less", other)

    def __gt__(self, other: Operand) -> Tensor:
        return self.op("Greater", other)

    def __le__(self, other: Operand) -> Tensor:
        return self.op("LessOrEqual", other)

    def __ge__(self, other: Operand) -> Tensor:
        return self.op("GreaterOrEqual", other)

    def equals(self, other: Operand) -> Tensor:
        """Where the elements are equal, as booleans."""
        return self.op("Equal", other)

    def where(self, condition: Tensor, otherwise: Operand = 0) -> Tensor:
        """This tensor where ``condition`` holds, ``otherwise`` elsewhere."""
        return condition.op("Where", self, self.like(otherwise))

    def cast(self, elem: int) -> Tensor:
        """The values in another element type."""
        return self if elem == self.elem else self.op("Cast", to=elem)

    def exp(self) -> Tensor:
        """e to the power of each element."""
        return self.op("Exp")

    def sqrt(self) -> Tensor:
        """The square root of each element."""
        return self.op("Sqrt")

    def sizes(self) -> Tensor:
        """The shape as a tensor of int64: a constant where every size is known."""
        return self.op("Shape")

    def size_of(self, axis: int) -> Tensor:
        """The size ``[1]`` of one axis."""
        return self.op("Shape", start=axis, end=axis + 1 or None)

    def reshape(self, shape: Tensor | Sequence[int]) -> Tensor:
        """The same elements in the shape that a tensor holds exactly, or in a known one (-1: what is left)."""
        if isinstance(shape, Tensor):
            return self.op("Reshape", shape, allowzero=1)
        return self.op("Reshape", self.ints(*shape))

    def shaped_like(self, other: Tensor) -> Tensor:
        """The same elements in the shape of ``other``."""
        return self if self.shape is not None and self.shape == other.shape else self.reshape(other.sizes())

    def expand(self, shape: Tensor) -> Tensor:
        """Broadcast to the shape that a tensor holds."""
        return self.op("Expand", shape)

    def zeros(self) -> Tensor:
        """Zeros of this tensor's shape and type."""
        return self.like(0).expand(self.sizes())

    def transpose(self, *order: int) -> Tensor:
        """The axes in another order; the transpose of a transpose is one, or none."""
        maker = self.writer.makers.get(self.name)
        if maker is not None and maker.op_type == "Transpose":
            inner = get_ints(maker, "perm") or tuple(reversed(range(len(order))))
            composed = [inner[axis] for axis in order]
            source = Tensor(self.writer, maker.input[0], self.wish)
            return source if composed == sorted(composed) else source.op("Transpose", perm=composed)
        return self if list(order) == sorted(order) else self.op("Transpose", perm=list(order))

    def swapped(self) -> Tensor:
        """The last two axes changed with each other."""
        rank = self.rank
        return self.transpose(*range(rank - 2), rank - 1, rank - 2)

    def moved(self, source: int, target: int) -> Tensor:
        """One axis at another place, the others in their order."""
        order = [axis for axis in range(self.rank) if axis != source]
        order.insert(target, source)
        return self.transpose(*order)

    def sum(self, *axes: int, keep: bool = True) -> Tensor:
        """The sum over some axes (of none: the tensor itself)."""
        return self.op("ReduceSum", self.ints(*axes), keepdims=int(keep)) if axes else self

    def mean(self, *axes: int) -> Tensor:
        """The mean over some axes, which stay with size 1."""
        return self.op("ReduceMean", self.ints(*axes), keepdims=1)

    def count_along(self, axes: Sequence[int], elem: int) -> Tensor:
        """The number of elements along some axes, a scalar of type ``elem``."""
        sizes = [self.shape[axis] if self.shape is not None else None for axis in axes]
        if all(isinstance(size, int) for size in sizes):
            number = np.prod([size for size in sizes if isinstance(size, int)], dtype=np.float64)
            return self.constant(number.astype(helper.tensor_dtype_to_np_dtype(elem)))
        picked = self.sizes().op("Gather", self.ints(*axes), axis=0)
        return picked.op("ReduceProd", self.ints(0), keepdims=0).cast(elem)

    def summed_like(self, other: Tensor) -> Tensor:
        """The sum over the axes along which ``other`` was broadcast to this tensor's shape: broadcasting undone.

        Where sizes are not known the axes are found when the graph runs: those on which the shapes differ.
        """
        mine, wanted = self.shape, other.shape
        if mine is None or wanted is None:
            return self._summed_at_run_time(other)
        lead = len(mine) - len(wanted)
        if mine[lead:] == wanted and lead >= 0:
            return self.sum(*range(lead), keep=False)
        pairs = list(zip(mine[lead:], wanted, strict=True))
        if any(size != target and target != 1 for size, target in pairs):
            return self._summed_at_run_time(other)
        stretched = [lead + axis for axis, (size, target) in enumerate(pairs) if target == 1 and size != 1]
        total = self.sum(*range(lead), *stretched)
        return total.op("Squeeze", self.ints(*range(lead))) if lead else total

    def _summed_at_run_time(self, other: Tensor) -> Tensor:
        mine, wanted = self.sizes(), other.sizes()
        missing = mine.op("Shape") - wanted.op("Shape")
        filled = mine.like(1).expand(missing).op("Concat", wanted, axis=0)
        differ = mine.equals(filled).op("Not").op("NonZero")
        axes = differ.op("Squeeze", self.ints(0))
        return self.op("ReduceSum", axes, keepdims=1, noop_with_empty_axes=1).reshape(wanted)


FLOAT32 = onnx.TensorProto.FLOAT
"""The type in which narrow floating-point numbers are summed."""


def wide(tensor: Tensor) -> Tensor:
    """A tensor of 16-bit floats in float32, any other as it is."""
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return tensor.cast(FLOAT32) if tensor.elem in narrow else tensor
