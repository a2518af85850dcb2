"""Products between DequantizeLinear and QuantizeLinear, written as the quantised products that they stand for.

A MatMul, Gemm or Conv whose operands are both dequantised becomes one node of our own that reads the integers, with their
scales and zero points; a QuantizeLinear that alone reads its result is taken in. A MatMul whose second operand alone is
dequantised (weights of 8 or fewer bits) reads the packed weights. The arithmetic is then that of the integer operators:
integer sums, one multiplication by the scales, one rounding. It differs from dequantising first by rounding in float32 only,
which now and then is a step of the quantised result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.matrix_work import MICROSOFT, OWN, domain_of
from cleave_plan.onnx_io.order import reads

_BYTES = frozenset({DType.INT8, DType.UINT8})
_LONGEST = (2**31 - 1) // 255**2
"""Longest K whose sums of byte products fit int32 whatever the values; longer ones are left as they are."""

_PACKED = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequantised:
    """A tensor behind a DequantizeLinear: its integers, scale and zero point ("": none)."""

    codes: str
    scale: str
    zero: str
    node: onnx.NodeProto


class Pairs:
    """Finds the quantised products of one graph; :meth:`rewrite` gives its new nodes."""

    def __init__(self, graph: onnx.GraphProto, facts: Mapping[str, Fact]) -> None:
        self._graph, self._facts = graph, facts
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in graph.output}

    def rewrite(self, names: list[str]) -> tuple[list[tuple[str, onnx.NodeProto]], dict[str, str]]:
        """The nodes of the graph by name, with quantised products in place of the pairs, and the operator that each stood for.

        ``names`` are the names of the graph's nodes; a new node has that of the product.
        """
        made: dict[int, onnx.NodeProto] = {}
        gone: set[int] = set()
        stood_for: dict[str, str] = {}
        places = {id(node): place for place, node in enumerate(self._graph.node)}
        for place, node in enumerate(self._graph.node):
            product = self._product(node, names[place])
            if product is None:
                continue
            after = self._quantised_after(node)
            at = places[id(after)] if after is not None else place
            gone |= {place, at}
            made[at] = product
            stood_for[names[place]] = node.op_type
        nodes = []
        for place, (name, node) in enumerate(zip(names, self._graph.node, strict=True)):
            if place in made:
                nodes.append((made[place].name, made[place]))
            elif place not in gone:
                nodes.append((name, node))
        return (self._without_unread(nodes), stood_for) if made else (nodes, {})

    def _without_unread(self, nodes: list[tuple[str, onnx.NodeProto]]) -> list[tuple[str, onnx.NodeProto]]:
        """Nodes without the DequantizeLinear that nobody reads any more."""
        used = {tensor for _, node in nodes for tensor in reads(node)} | self._outputs
        return [(name, node) for name, node in nodes if not _is(node, "DequantizeLinear") or used.intersection(node.output)]

    def _product(self, node: onnx.NodeProto, name: str) -> onnx.NodeProto | None:
        if domain_of(node) or node.op_type not in ("MatMul", "Gemm", "Conv") or len(node.input) < 2:
            return None
        a, b = self._dequantised(node.input[0]), self._dequantised(node.input[1])
        if b is None or not self._along_columns(node, b):
            return None
        if a is None:
            return self._weights_only(node, name, b) if node.op_type == "MatMul" else None
        if not self._holds_bytes(a.codes) or not self._holds_bytes(b.codes) or self._size(a.scale) != 1:
            return None
        if self._depth(node, b) > _LONGEST:
            return None
        if get_int(b.node, "block_size", 0) or get_int(a.node, "block_size", 0):
            return None
        after = self._quantised_after(node)
        bias = node.input[2] if len(node.input) > 2 else ""
        inputs = [a.codes, a.scale, a.zero, b.codes, b.scale, b.zero, bias]
        if after is not None:
            inputs += [after.input[1], after.input[2] if len(after.input) > 2 else ""]
        made = helper.make_node(f"Quantised{node.op_type}", inputs, [after.output[0] if after else node.output[0]], name=name)
        made.domain = OWN
        made.attribute.extend(node.attribute)
        return made

    def _weights_only(self, node: onnx.NodeProto, name: str, b: Dequantised) -> onnx.NodeProto | None:
        """A MatMul of floats by packed weights [K, N]."""
        sizes, dtype = self._fact(b.codes).sizes, dtype_of(self._fact(b.codes).elem)
        data = self._fact(node.input[0])
        if sizes is None or len(sizes) != 2 or dtype not in _PACKED or not data.sizes:
            return None
        inputs = [node.input[0], b.codes, b.scale, b.zero]
        block = get_int(b.node, "block_size", 0) or sizes[0]
        return helper.make_node("PackedMatMul", inputs, list(node.output), name=name, domain=OWN, block_size=block)

    def _dequantised(self, tensor: str) -> Dequantised | None:
        maker = self._makers.get(tensor)
        if maker is None or not _is(maker, "DequantizeLinear") or self._fact(maker.input[0]).sizes is None:
            return None
        zero = maker.input[2] if len(maker.input) > 2 else ""
        return Dequantised(codes=maker.input[0], scale=maker.input[1], zero=zero, node=maker)

    def _along_columns(self, node: onnx.NodeProto, b: Dequantised) -> bool:
        """Whether B has one scale, one for each column, or blocks along K with one each."""
        sizes = self._fact(b.codes).sizes or ()
        if self._size(b.scale) == 1:
            return True
        if not sizes:
            return False
        axis = get_int(b.node, "axis", 1) % len(sizes)
        if get_int(b.node, "block_size", 0):
            return node.op_type == "MatMul" and axis == 0 and len(sizes) == 2
        columns = {"MatMul": len(sizes) - 1, "Gemm": 0 if get_int(node, "transB", 0) else 1, "Conv": 0}[node.op_type]
        return axis == columns and self._size(b.scale) == sizes[axis]

    def _quantised_after(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The QuantizeLinear that alone reads the product's result, with one scale for all of it."""
        readers = self._readers.get(node.output[0], [])
        if len(readers) != 1 or node.output[0] in self._outputs or not _is(readers[0], "QuantizeLinear"):
            return None
        after = readers[0]
        fits = after.input[0] == node.output[0] and self._size(after.input[1]) == 1 and self._holds_bytes(after.output[0])
        return after if fits else None

    def _fact(self, tensor: str) -> Fact:
        return self._facts.get(tensor, UNKNOWN)

    def _holds_bytes(self, tensor: str) -> bool:
        return dtype_of(self._fact(tensor).elem) in _BYTES

    def _depth(self, node: onnx.NodeProto, b: Dequantised) -> int:
        """An upper bound of K, which is 1 or more axes of B."""
        sizes = self._fact(b.codes).sizes or (1,)
        return prod(sizes[1:]) if node.op_type == "Conv" else max(sizes[-2:])

    def _size(self, tensor: str) -> int | None:
        sizes = self._fact(tensor).sizes
        return None if sizes is None else prod(sizes)


def _is(node: onnx.NodeProto, op: str) -> bool:
    return node.op_type == op and node.domain in ("", "ai.onnx", MICROSOFT)
