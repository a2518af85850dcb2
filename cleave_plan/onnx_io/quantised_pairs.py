"""Products between DequantizeLinear and QuantizeLinear, written as the quantised products that they stand for.

A MatMul, Gemm or Conv whose operands are both dequantised becomes one node of our own that reads the integers, with their
scales and zero points; a QuantizeLinear that alone reads its result is taken in. A MatMul whose second operand alone is
dequantised (weights of 8 or fewer bits) reads the packed weights. The arithmetic is then that of the integer operators:
integer sums, one multiplication by the scales, one rounding. It differs from dequantising first by rounding in float32 only,
which now and then is a step of the quantised result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.matrix_work import MICROSOFT, OWN
from cleave_plan.onnx_io.views import NodeView, view_of

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

    def __init__(self, nodes: Sequence[NodeView], outputs: Collection[str], facts: Mapping[str, Fact]) -> None:
        self._nodes, self._outputs, self._facts = nodes, outputs, facts
        self._makers = {name: view.node for view in nodes if view.op == "DequantizeLinear" for name in view.made}
        self._readers: dict[str, list[int]] = {}
        for place, view in enumerate(nodes if self._makers else ()):
            for name in view.reads:
                self._readers.setdefault(name, []).append(place)

    def rewrite(self, names: list[str]) -> tuple[list[tuple[str, NodeView]], dict[str, str]]:
        """The nodes of the graph by name, with quantised products in place of the pairs, and the operator that each stood for.

        ``names`` are the names of the graph's nodes; a new node has that of the product.
        """
        made: dict[int, NodeView] = {}
        gone: set[int] = set()
        stood_for: dict[str, str] = {}
        for place, view in enumerate(self._nodes if self._makers else ()):
            product = self._product(view, names[place])
            if product is None:
                continue
            after = self._quantised_after(view)
            at = place if after is None else after
            gone |= {place, at}
            made[at] = view_of(product)
            stood_for[names[place]] = view.op
        if not made:
            return list(zip(names, self._nodes, strict=True)), {}
        nodes = []
        for place, (name, view) in enumerate(zip(names, self._nodes, strict=True)):
            if place in made:
                nodes.append((made[place].name, made[place]))
            elif place not in gone:
                nodes.append((name, view))
        return self._without_unread(nodes), stood_for

    def _without_unread(self, nodes: list[tuple[str, NodeView]]) -> list[tuple[str, NodeView]]:
        """Nodes without the DequantizeLinear that nobody reads any more."""
        used = {tensor for _, view in nodes for tensor in view.reads}.union(self._outputs)
        return [
            (name, view) for name, view in nodes if not _is(view.node, "DequantizeLinear") or not used.isdisjoint(view.outputs)
        ]

    def _product(self, view: NodeView, name: str) -> onnx.NodeProto | None:
        if view.domain or view.op not in ("MatMul", "Gemm", "Conv") or len(view.inputs) < 2 or not view.outputs:
            return None
        node = view.node
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
        place = self._quantised_after(view)
        after = None if place is None else self._nodes[place].node
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

    def _quantised_after(self, view: NodeView) -> int | None:
        """The place of the QuantizeLinear that alone reads the product's result, with one scale for all of it."""
        result = view.outputs[0]
        readers = self._readers.get(result, [])
        if len(readers) != 1 or result in self._outputs or not _is(self._nodes[readers[0]].node, "QuantizeLinear"):
            return None
        after = self._nodes[readers[0]]
        fits = after.inputs[0] == result and self._size(after.inputs[1]) == 1 and self._holds_bytes(after.outputs[0])
        return readers[0] if fits else None

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
