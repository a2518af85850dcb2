"""Writing the nodes that a fused node stands for: its GEMMs as MatMul nodes, everything else between them.

A fused node (an attention, a recurrent layer) holds several products with work between them that only the server does. It is
replaced by nodes that say so, before levels are reckoned; every size is known by then and is written down. Only operators
whose meaning is the same in operator sets 7 to the newest are used, and a few of our own (:mod:`cleave_plan.onnx_io.own_ops`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.matrix_work import OWN


class Tensor(NamedTuple):
    """A tensor of the expansion: its name, shape and ONNX element type."""

    name: str
    shape: tuple[int, ...]
    elem: int


ABSENT = Tensor("", (), 0)
"""An optional input that is not there."""


class DeclinedError(Exception):
    """The node cannot be expanded (a size is unknown, a form that is not supported): it stays as it is."""


class Builder:
    """Collects the nodes and constants that take the place of ``node``, whose name is ``name``."""

    def __init__(self, node: onnx.NodeProto, name: str, facts: Mapping[str, Fact], opset: int) -> None:
        self.node, self.name, self.opset = node, name, opset
        self._given = facts
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.facts: dict[str, Fact] = {}
        self._made: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}

    def input(self, place: int) -> Tensor:
        """A required input; raises DeclinedError when it is absent or its shape is not known."""
        found = self.optional(place)
        if not found.name:
            raise DeclinedError(f"input {place} is absent")
        return found

    def optional(self, place: int) -> Tensor:
        """An input, ABSENT when it is not there; raises DeclinedError when its shape is not known."""
        name = self.node.input[place] if place < len(self.node.input) else ""
        if not name:
            return ABSENT
        fact = self._given.get(name, UNKNOWN)
        if fact.sizes is None or not fact.elem:
            raise DeclinedError(f"the shape of {name!r} is not known")
        return Tensor(name, fact.sizes, fact.elem)

    def value(self, place: int) -> NDArray[Any] | None:
        """The values of an input where they are known."""
        name = self.node.input[place] if place < len(self.node.input) else ""
        return self._given.get(name, UNKNOWN).whole_value

    def output(self, place: int) -> str:
        """The name of an output, "" when nobody wants it."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def constant(self, array: NDArray[Any]) -> Tensor:
        """A constant of the model; the same one for the same numbers."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key in self._made:
            return self._made[key]
        name = f"{self.name}:c{len(self.constants)}"
        tensor = numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        self.facts[name] = Fact(elem=tensor.data_type, shape=array.shape)
        self._made[key] = made = Tensor(name, array.shape, tensor.data_type)
        return made

    def add(
        self, op: str, inputs: Sequence[Tensor], shape: Sequence[int], *, elem: int = 0, out: str = "", part: str = "",
        domain: str = "", **attributes: Any,
    ) -> Tensor:  # fmt: skip
        """A node with one output of ``shape`` (named ``out`` if given), of type ``elem`` or that of its first input."""
        (made,) = self.add_all(
            op, inputs, [(out, tuple(shape), elem or inputs[0].elem)], part=part, domain=domain, attributes=attributes
        )
        return made

    def add_all(
        self, op: str, inputs: Sequence[Tensor], outputs: Sequence[tuple[str, tuple[int, ...], int]], *, part: str = "",
        domain: str = "", attributes: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """A node with several outputs, each (name or "", shape, element type)."""
        label = part or f"{op.lower()}{len(self.nodes)}"
        made = [
            Tensor(name or f"{self.name}:{label}{place or ''}", shape, elem) for place, (name, shape, elem) in enumerate(outputs)
        ]
        names = [tensor.name for tensor in inputs], [tensor.name for tensor in made]
        node = onnx.NodeProto(op_type=op, input=names[0], output=names[1], name=f"{self.name}/{label}", domain=domain or None)
        if attributes:
            node.attribute.extend([_attribute(key, value) for key, value in sorted(attributes.items())])
        self.nodes.append(node)
        self.facts.update((tensor.name, Fact(elem=tensor.elem, shape=tensor.shape)) for tensor in made)
        return made

    def reshape(self, x: Tensor, shape: Sequence[int], *, out: str = "") -> Tensor:
        """The same elements in another shape."""
        shape = tuple(shape)
        if prod(shape) != prod(x.shape):
            raise DeclinedError(f"{x.name!r} is {list(x.shape)}, not of the size of {list(shape)}")
        if 0 in shape:
            raise DeclinedError("a size is 0")  # Reshape would take it for "as it is"
        return self.add("Reshape", [x, self.constant(np.array(shape, np.int64))], shape, out=out)

    def transpose(self, x: Tensor, *order: int, out: str = "") -> Tensor:
        """The axes in another order."""
        _need_axes(x, len(order), len(order))
        return self.add("Transpose", [x], [x.shape[axis] for axis in order], perm=list(order), out=out)

    def matmul(self, a: Tensor, b: Tensor, part: str, *, out: str = "") -> Tensor:
        """The product of two stacks of matrices, the GEMM ``part`` of the node."""
        _need_axes(a, 2)
        _need_axes(b, 2)
        if a.shape[-1] != b.shape[-2]:
            raise DeclinedError(f"inner sizes differ: {a.shape[-1]} and {b.shape[-2]}")
        lead = broadcast(a.shape[:-2], b.shape[:-2])
        return self.add("MatMul", [a, b], (*lead, a.shape[-2], b.shape[-1]), part=part, out=out)

    def both(self, op: str, x: Tensor, y: Tensor, *, out: str = "") -> Tensor:
        """An elementwise operator of two operands that broadcast; the result has the type of ``x``."""
        return self.add(op, [x, y], broadcast(x.shape, y.shape), out=out)

    def concatenated(self, parts: Sequence[Tensor], axis: int, *, out: str = "") -> Tensor:
        """Tensors one after the other along ``axis``."""
        for part in parts:
            _need_axes(part, max(axis + 1, len(parts[0].shape)), len(parts[0].shape))
            if any(size != first for at, (size, first) in enumerate(zip(part.shape, parts[0].shape, strict=True)) if at != axis):
                raise DeclinedError(f"{part.name!r} is {list(part.shape)}, beside {list(parts[0].shape)}")
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.add("Concat", parts, shape, axis=axis, out=out)

    def slice(self, x: Tensor, axis: int, start: int, stop: int, *, out: str = "") -> Tensor:
        """A range of one axis."""
        _need_axes(x, axis + 1)
        if not 0 <= start <= stop <= x.shape[axis]:
            raise DeclinedError(f"{x.name!r} is {list(x.shape)}, without {start} to {stop} on axis {axis}")
        shape = [stop - start if place == axis else size for place, size in enumerate(x.shape)]
        if self.opset < 10:
            return self.add("Slice", [x], shape, starts=[start], ends=[stop], axes=[axis], out=out)
        numbers = [self.constant(np.array([number], np.int64)) for number in (start, stop, axis)]
        return self.add("Slice", [x, *numbers], shape, out=out)

    def scalar(self, number: float, like: Tensor) -> Tensor:
        """A number in the type of ``like``."""
        return self.constant(np.array(number, helper.tensor_dtype_to_np_dtype(like.elem)))

    def own(
        self, op: str, inputs: Sequence[Tensor], outputs: Sequence[tuple[str, tuple[int, ...], int]], **kw: Any
    ) -> list[Tensor]:
        """One of our own operators; ``kw`` are its attributes (and ``part``)."""
        part = kw.pop("part", "")
        return self.add_all(op, inputs, outputs, part=part, domain=OWN, attributes=kw)


def _attribute(key: str, value: Any) -> onnx.AttributeProto:
    """As onnx's helper, which takes ten times as long for whole numbers: those of axes and orders."""
    if type(value) is int:
        return onnx.AttributeProto(name=key, type=onnx.AttributeProto.INT, i=value)
    if type(value) is list and value and all(type(item) is int for item in value):
        return onnx.AttributeProto(name=key, type=onnx.AttributeProto.INTS, ints=value)
    return helper.make_attribute(key, value)


def _need_axes(x: Tensor, least: int, most: int = 99) -> None:
    if not least <= len(x.shape) <= most:
        raise DeclinedError(f"{x.name!r} has {len(x.shape)} axes")


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two operands broadcast to; raises DeclinedError when they do not."""
    if left == right:
        return left
    try:
        return np.broadcast_shapes(left, right)
    except ValueError as error:
        raise DeclinedError(str(error)) from None
