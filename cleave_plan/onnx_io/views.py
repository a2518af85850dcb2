"""Nodes as Python values: the parts of a node that every pass over a graph asks for, taken out of protobuf once.

A pass over 100,000 nodes that reads names through protobuf takes a second; over these it takes a twentieth. Repeated fields
are taken by ``field[:]``: protobuf copies a slice in one go, and ends a loop over the field itself with an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx

from cleave_plan.onnx_io.attributes import graphs_in, subgraphs
from cleave_plan.onnx_io.matrix_work import STANDARD


class NodeView(NamedTuple):
    """One node. ``domain`` is "" for standard ONNX under either of its names, ``kind`` that and the operator; ``inputs`` and
    ``outputs`` have "" where an optional one is absent; ``made`` are the outputs without those; ``reads`` the tensors that it
    reads, with what its subgraphs capture; ``attributes`` its attributes; ``bodies`` its subgraphs."""

    node: onnx.NodeProto
    op: str
    domain: str
    kind: tuple[str, str]
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    made: tuple[str, ...]
    reads: tuple[str, ...]
    attributes: tuple[onnx.AttributeProto, ...]
    bodies: tuple[onnx.GraphProto, ...]

    @property
    def is_constant(self) -> bool:
        """Whether this is a Constant of the standard domain."""
        return self.op == "Constant" and not self.domain

    @property
    def first_output(self) -> str:
        """The first tensor that the node makes, "" when it makes none."""
        return self.made[0] if self.made else ""


def view_of(node: onnx.NodeProto) -> NodeView:
    """The view of one node."""
    inputs, outputs, domain = tuple(node.input[:]), tuple(node.output[:]), node.domain
    reads = tuple(filter(None, inputs)) if "" in inputs else inputs
    made = tuple(filter(None, outputs)) if "" in outputs else outputs
    attributes, bodies = tuple(node.attribute[:]), ()
    if attributes and (graphs := graphs_in(attributes)):
        bodies = tuple(graphs)
        reads += tuple(_captured(bodies))
    if domain in STANDARD:
        domain = ""
    # What NodeView(...) does, without its call of eleven arguments: this runs once for each node of a model.
    op = node.op_type
    fields = (node, op, domain, (domain, op), node.name, inputs, outputs, made, reads, attributes, bodies)
    return tuple.__new__(NodeView, fields)


def views_of(nodes: Iterable[onnx.NodeProto]) -> tuple[NodeView, ...]:
    """The views of ``nodes``."""
    return tuple(map(view_of, nodes))


def captured(node: onnx.NodeProto) -> list[str]:
    """Tensors of the enclosing graph that the subgraphs of ``node`` read, in order of first use."""
    return _captured(subgraphs(node))


def _captured(graphs: Iterable[onnx.GraphProto]) -> list[str]:
    names: dict[str, None] = {}
    for graph in graphs:
        own = graph_sources(graph)
        for inner in graph.node[:]:
            own.update(inner.output[:])
        for inner in graph.node[:]:
            names.update(dict.fromkeys(name for name in reads(inner) if name not in own))
        names.update(dict.fromkeys(value.name for value in graph.output[:] if value.name not in own))
    return list(names)


def reads(node: onnx.NodeProto) -> list[str]:
    """Tensors that a node reads: its inputs (absent optional ones left out) and what its subgraphs capture."""
    names = [name for name in node.input[:] if name]
    return names + captured(node) if node.attribute else names


def graph_sources(graph: onnx.GraphProto) -> set[str]:
    """Tensors that a graph has before any node runs: inputs and initialisers."""
    names = {value.name for value in graph.input[:]}
    names.update(tensor.name for tensor in graph.initializer[:])
    names.update(tensor.values.name for tensor in graph.sparse_initializer[:])
    return names
