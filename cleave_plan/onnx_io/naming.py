"""Names of nodes that are unique in their graph, and of the nodes inside a node's subgraphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx

from cleave_plan.onnx_io.views import NodeView, views_of


class Origin(NamedTuple):
    """The node of the file that a node which was written out stands for, or for a part of."""

    name: str
    op: str


def unique_names(nodes: Sequence[NodeView]) -> list[str]:
    """A name for every node: its own where no other node has it, else that of its first output, else its place."""
    given = [view.name for view in nodes]
    if len({"", *given}) > len(given):
        return given
    count = Counter(given)
    taken = {name for name, number in count.items() if name and number == 1}
    names = []
    for index, view in enumerate(nodes):
        name = view.name
        if name not in taken:
            name = view.first_output or f"{view.op}-{index}"
            while name in taken:
                name = f"{name}#{index}"
            taken.add(name)
        names.append(name)
    return names


def inside(path: str, name: str) -> str:
    """The name of what lies in the subgraphs of the node at ``path`` ("": in the outermost graph)."""
    return f"{path}/{name}" if path else name


def loop_names(graph: onnx.GraphProto, path: str = "") -> Iterator[str]:
    """The path of every Loop in ``graph`` and in its subgraphs: the names that ``--trip`` takes."""
    nodes = views_of(graph.node)
    for view, name in zip(nodes, unique_names(nodes), strict=True):
        if view.op == "Loop" and not view.domain:
            yield inside(path, name)
        for inner in view.bodies:
            yield from loop_names(inner, inside(path, name))
