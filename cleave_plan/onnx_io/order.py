"""An order of the nodes in which every tensor is made before it is read.

Files are not always sorted. Ours is a stable sort: among nodes that could come next, the one that stands first in the
file does, so a sorted file keeps its order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.attributes import subgraphs


def node_label(node: onnx.NodeProto) -> str:
    """How a node is named to a user: its name, or the tensor that it makes."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({node.op_type})"


def graph_sources(graph: onnx.GraphProto) -> set[str]:
    """Tensors that a graph has before any node runs: inputs and initialisers."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    return names


def captured(node: onnx.NodeProto) -> list[str]:
    """Tensors of the enclosing graph that the subgraphs of ``node`` read, in order of first use."""
    names: dict[str, None] = {}
    for graph in subgraphs(node):
        own = graph_sources(graph)
        for inner in graph.node:
            own.update(inner.output)
        for inner in graph.node:
            for name in reads(inner):
                if name not in own:
                    names[name] = None
        for value in graph.output:
            if value.name not in own:
                names[value.name] = None
    return list(names)


def reads(node: onnx.NodeProto) -> list[str]:
    """Tensors that a node reads: its inputs (absent optional ones left out) and what its subgraphs capture."""
    names = [name for name in node.input if name]
    return names + captured(node) if node.attribute else names


def reads_of(nodes: Iterable[onnx.NodeProto]) -> tuple[tuple[str, ...], ...]:
    """What each node reads (:func:`reads`)."""
    return tuple(tuple(reads(node)) for node in nodes)


def sort_nodes(graph: onnx.GraphProto, where: str) -> tuple[tuple[str, ...], ...]:
    """Sort the nodes of ``graph`` in place, subgraphs included; the result is what each node reads.

    Of several Constants for one tensor the last is kept. Raises InputFileError when a tensor is defined
    twice, is read or given out but never defined, or depends on itself.
    """
    return _sort(graph, set(), where)


def _sort(graph: onnx.GraphProto, outer: Collection[str], where: str) -> tuple[tuple[str, ...], ...]:
    own = graph_sources(graph)
    nodes = _without_repeats(list(graph.node))
    maker = _makers(nodes, own, where)
    sources = own.union(outer)
    for value in graph.output:
        if value.name not in maker and value.name not in sources:
            raise InputFileError(
                f"nothing defines the output {value.name!r}", where=where, expected="an output that a node makes"
            )
    needs = reads_of(nodes)
    order = _stable_order(nodes, needs, maker, sources, where)
    if order != list(range(len(graph.node))):
        # A copy, because emptying the field would empty the nodes that are to go back into it.
        sorted_nodes = [onnx.NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
        del graph.node[:]
        graph.node.extend(sorted_nodes)
    visible: set[str] = set()
    for node in graph.node:
        if node.attribute:
            for inner in subgraphs(node):
                visible = visible or sources.union(maker)
                _sort(inner, visible, f"{where}: {node_label(node)}")
    return tuple(needs[index] for index in order)


def _without_repeats(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Of Constants that define one tensor keep the last: some graph rewriters leave such pairs, and onnxruntime reads them so."""
    last = {node.output[0]: place for place, node in enumerate(nodes) if node.op_type == "Constant" and len(node.output) == 1}
    return [
        node
        for place, node in enumerate(nodes)
        if node.op_type != "Constant" or len(node.output) != 1 or last[node.output[0]] == place
    ]


def _makers(nodes: Iterable[onnx.NodeProto], given: set[str], where: str) -> dict[str, int]:
    """Which node makes each tensor."""
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for output in node.output:
            if not output:
                continue
            if output in maker or output in given:
                raise InputFileError(
                    f"tensor {output!r} is defined twice, the second time by {node_label(node)}", where=where,
                    expected="one definition of each tensor",
                )  # fmt: skip
            maker[output] = index
    return maker


def _stable_order(
    nodes: list[onnx.NodeProto], needs: Sequence[Sequence[str]], maker: dict[str, int], sources: set[str], where: str
) -> list[int]:
    """Indices of ``nodes``, which read ``needs``, in the order they run; Kahn's algorithm with a heap of original positions."""
    links: list[set[int]] = []
    for index, names in enumerate(needs):
        needed = {maker[name] for name in names if name in maker}
        unknown = next((name for name in names if name not in maker and name not in sources), None)
        if unknown is not None:
            raise InputFileError(
                f"{node_label(nodes[index])} reads tensor {unknown!r}, which nothing defines", where=where,
                expected="a graph input, an initialiser or a node's output",
            )  # fmt: skip
        links.append(needed)
    if all(max(needed, default=-1) < index for index, needed in enumerate(links)):
        return list(range(len(nodes)))  # most files are sorted
    return _kahn(nodes, links, where)


def _kahn(nodes: list[onnx.NodeProto], links: list[set[int]], where: str) -> list[int]:
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for index, needed in enumerate(links):
        missing[index] = len(needed)
        for before in needed:
            readers[before].append(index)
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(index for index, count in enumerate(missing) if count)
        raise InputFileError(
            f"{node_label(nodes[stuck])} depends on its own output", where=where, expected="a graph without cycles"
        )
    return order
