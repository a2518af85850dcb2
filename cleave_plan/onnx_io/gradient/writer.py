"""Adding nodes to a graph: names that are new, expressions built once, constants folded, shapes known as far as they can be."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.phases import PHASE
from cleave_plan.onnx_io.shapes import ShapeWalk


class Writer:
    """Appends nodes to ``nodes``, none twice.

    ``facts`` holds what is known of every tensor and grows with the nodes; ``taken`` are names that exist. An expression
    (operator, inputs, attributes) that is asked for again is not built again. Small tensors of integers whose values follow
    from known sizes become constants. ``outer``: the writer of the graph around this one, when this is the body of a node.
    ``prefix`` is put before every name.
    """

    def __init__(
        self, walk: ShapeWalk, facts: MutableMapping[str, Fact], taken: Iterable[str], outer: Writer | None = None, *,
        prefix: str = "grad/",
    ) -> None:  # fmt: skip
        self.nodes: list[onnx.NodeProto] = []
        self.facts = facts
        self.walk = walk
        self.outer = outer
        self.prefix: str = prefix if outer is None else outer.prefix
        self.makers: dict[str, onnx.NodeProto] = {}
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        self._built: dict[object, tuple[str, ...]] = {}
        self._constants: dict[object, str] = {}

    def fact(self, name: str) -> Fact:
        """What is known of a tensor."""
        return self.facts.get(name, UNKNOWN)

    def fresh(self, wish: str) -> str:
        """A name that no tensor and no node has: ``wish`` itself, or with a number behind it."""
        if self.outer is not None:
            return self.outer.fresh(wish)
        name = wish
        while name in self._taken:
            self._numbers[wish] = number = self._numbers.get(wish, 0) + 1
            name = f"{wish}#{number}"
        self._taken.add(name)
        return name

    def keep(self, node: onnx.NodeProto) -> None:
        """Append a node as it is, whose outputs' facts are known already."""
        self.nodes.append(node)
        self.makers.update((name, node) for name in node.output if name)

    def constant(self, array: NDArray[Any]) -> str:
        """A Constant node; equal values share one."""
        if self.outer is not None:
            return self.outer.constant(array)
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(f"{self.prefix}constant")
            tensor = numpy_helper.from_array(array, name)
            node = helper.make_node("Constant", [], [name], name=name, value=tensor)
            self.nodes.append(node)
            self.facts[name] = Fact(elem=tensor.data_type, shape=array.shape, value=array)
            self._constants[key] = name
        return self._constants[key]

    def add(
        self, op: str, inputs: Sequence[str], *, wish: str, outputs: int = 1, phase: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Append a node with ``outputs`` outputs and return their names, which begin with ``wish``.

        An attribute whose value is None is left out. ``phase`` marks matrix work (:data:`PHASE`).
        """
        given = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(op, list(inputs), [""] * outputs, **given)
        key = (op, tuple(inputs), outputs, tuple(attribute.SerializeToString() for attribute in node.attribute))
        if key in self._built:
            return self._built[key]
        names = tuple(self.fresh(f"{self.prefix}{wish}") for _ in range(outputs))
        node.output[:] = names
        node.name = names[0]
        if phase:
            node.metadata_props.add(key=PHASE, value=phase)
        self.walk.add(node, self.facts)
        value = self.fact(names[0]).whole_value if outputs == 1 else None
        if value is not None and value.dtype.kind in "ib":
            names = (self.constant(value),)
        else:
            self.keep(node)
        self._built[key] = names
        return names
