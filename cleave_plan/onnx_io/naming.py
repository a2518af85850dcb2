"""Names of nodes that are unique in their graph, and of the nodes inside a node's subgraphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from cleave_plan.onnx_io.attributes import subgraphs
from cleave_plan.onnx_io.matrix_work import domain_of


def unique_names(graph: onnx.GraphProto) -> list[str]:
    """A name for every node: its own where no other node has it, else that of its first output, else its place."""
    own = [node.name for node in graph.node]
    count = Counter(own)
    taken = {name for name, number in count.items() if name and number == 1}
    names = []
    for index, name in enumerate(own):
        if name not in taken:
            node = graph.node[index]
            name = first_output(node) or f"{node.op_type}-{index}"
            while name in taken:
                name = f"{name}#{index}"
            taken.add(name)
        names.append(name)
    return names


def first_output(node: onnx.NodeProto) -> str:
    """The first tensor that a node makes, "" when it makes none."""
    return next((name for name in node.output if name), "")


def inside(path: str, name: str) -> str:
    """The name of what lies in the subgraphs of the node at ``path`` ("": in the outermost graph)."""
    return f"{path}/{name}" if path else name


def loop_names(graph: onnx.GraphProto, path: str = "") -> Iterator[str]:
    """The path of every Loop in ``graph`` and in its subgraphs: the names that ``--trip`` takes."""
    if not any(node.attribute and subgraphs(node) for node in graph.node):
        return
    for node, name in zip(graph.node, unique_names(graph), strict=True):
        if node.op_type == "Loop" and domain_of(node) == "":
            yield inside(path, name)
        for inner in subgraphs(node):
            yield from loop_names(inner, inside(path, name))
