"""An order of the nodes in which every tensor is made before it is read.

Files are not always sorted. Ours is a stable sort: among nodes that could come next, the one that stands first in the
file does, so a sorted file keeps its order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.text import refuse_damaged
from cleave_plan.onnx_io.views import NodeView, graph_sources, views_of


def node_label(node: onnx.NodeProto) -> str:
    """How a node is named to a user: its name, or the tensor that it makes."""
    name = node.name or next((output for output in node.output if output), "")
    return f"node {name!r} ({node.op_type})"


def sort_nodes(graph: onnx.GraphProto, where: str) -> tuple[NodeView, ...]:
    """Sort the nodes of ``graph`` in place, subgraphs included; the result is their views.

    Of several Constants for one tensor the last is kept. Raises InputFileError when a tensor is defined
    twice, is read or given out but never defined, or depends on itself.
    """
    return _sort(graph, set(), where)


def _sort(graph: onnx.GraphProto, outer: Collection[str], where: str) -> tuple[NodeView, ...]:
    own = graph_sources(graph)
    nodes = views_of(graph.node)
    # What is read, and what the graph gives out, is one of these.
    refuse_damaged([*own, *_given_names(nodes)], where)
    there = own.union(outer)
    if not _stand_in_order(nodes, there):
        nodes = _put_in_order(graph, nodes, own, own.union(outer), where)
        there.update(*[view.made for view in nodes])
    for value in graph.output[:]:
        if (name := value.name) not in there:
            raise InputFileError(f"nothing defines the output {name!r}", where=where, expected="an output that a node makes")
    for view in nodes:
        for inner in view.bodies:
            _sort(inner, there, f"{where}: {node_label(view.node)}")
    return nodes


def _given_names(nodes: Sequence[NodeView]) -> list[str]:
    """The names that nodes give: their own, their operators', those of their attributes and of what they make."""
    return [
        *[view.op for view in nodes], *[view.domain for view in nodes], *[view.name for view in nodes],
        *chain.from_iterable([view.outputs for view in nodes]),
        *[attribute.name for view in nodes for attribute in view.attributes],
    ]  # fmt: skip


def _without_repeats(nodes: tuple[NodeView, ...]) -> tuple[NodeView, ...]:
    """Of Constants that define one tensor keep the last: some graph rewriters leave such pairs, and onnxruntime reads them so."""
    constants = [(view.made[0], place) for place, view in enumerate(nodes) if view.op == "Constant" and view.made]
    last = dict(constants)
    if len(last) == len(constants):
        return nodes
    return tuple(
        view for place, view in enumerate(nodes) if view.op != "Constant" or not view.made or last[view.made[0]] == place
    )


def _refuse_repeats(nodes: Iterable[NodeView], own: Iterable[str], where: str) -> None:
    """Raise InputFileError for the first tensor that a node makes although it is there already."""
    there = set(own)
    for view in nodes:
        for output in view.made:
            if output in there:
                raise InputFileError(
                    f"tensor {output!r} is defined twice, the second time by {node_label(view.node)}", where=where,
                    expected="one definition of each tensor",
                )  # fmt: skip
            there.add(output)


def _stand_in_order(nodes: Iterable[NodeView], there: set[str]) -> bool:
    """Whether each node reads only what is ``there`` at first or made before it, and makes only what is not there yet.

    Then ``there`` holds what they make, too.
    """
    count = len(there)
    for view in nodes:
        if not there.issuperset(view.reads):
            return False
        made = view.made
        there.update(made)
        count += len(made)
    return len(there) == count


def _put_in_order(
    graph: onnx.GraphProto, nodes: tuple[NodeView, ...], own: Collection[str], sources: Collection[str], where: str
) -> tuple[NodeView, ...]:
    """The views of the nodes of ``graph`` after they were sorted; it has the tensors ``own`` by itself, ``sources`` with those of
    the graphs around it. Errors are those of :func:`sort_nodes`."""
    kept = _without_repeats(nodes)
    _refuse_repeats(kept, own, where)
    maker = {name: index for index, view in enumerate(kept) for name in view.made}
    for view in kept:
        for name in view.reads:
            if name not in maker and name not in sources:
                raise InputFileError(
                    f"{node_label(view.node)} reads tensor {name!r}, which nothing defines", where=where,
                    expected="a graph input, an initialiser or a node's output",
                )  # fmt: skip
    return arranged(graph, nodes, [kept[index] for index in _kahn(kept, maker, where)])


def arranged(graph: onnx.GraphProto, nodes: Iterable[NodeView], wanted: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """Give ``graph``, whose nodes are ``nodes``, those of ``wanted`` in their order; the result is their views.

    Its own nodes stay where they lie in memory, only nodes that are new to it are copied.
    """
    own = {id(view.node) for view in nodes}
    wanted = tuple(wanted)
    graph.node.extend([view.node for view in wanted if id(view.node) not in own])
    copies = iter(graph.node[len(own) :])
    ordered = tuple([view if id(view.node) in own else view._replace(node=next(copies)) for view in wanted])
    place = dict.fromkeys(own, len(ordered)) | {id(view.node): index for index, view in enumerate(ordered)}
    graph.node.sort(key=lambda node: place[id(node)])  # what is not wanted goes to the end, and off it
    del graph.node[len(ordered) :]
    return ordered


def _kahn(nodes: Sequence[NodeView], maker: dict[str, int], where: str) -> list[int]:
    """Kahn's algorithm with a heap of original positions."""
    links = [{maker[name] for name in view.reads if name in maker} for view in nodes]
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
            f"{node_label(nodes[stuck].node)} depends on its own output", where=where, expected="a graph without cycles"
        )
    return order
