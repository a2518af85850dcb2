"""The nodes that the server runs, in segments: everything between two levels of GEMMs is one.

Segment d holds the server nodes of depth d and runs just before the GEMMs of level d; the last one runs after them all.
A segment is a small model of its own: what it reads from outside are its inputs, what is read after it its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from cleave_plan.onnx_io.views import reads
from cleave_plan.onnx_io.weights import is_constant


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Nodes that run together, in order; ``inputs`` come from outside, ``outputs`` are wanted outside."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def split(self) -> list[Segment]:
        """The same work node by node, each with every tensor that a later one or the outside reads."""
        return self._parts([[node] for node in self.nodes])

    def split_around(self, domain: str) -> list[Segment]:
        """The same work with each node of ``domain`` in a segment of its own, and the others between them together."""
        groups: list[list[onnx.NodeProto]] = []
        for node in self.nodes:
            if not groups or domain in (node.domain, groups[-1][-1].domain):
                groups.append([])
            groups[-1].append(node)
        return self._parts(groups)

    def _parts(self, groups: Sequence[Sequence[onnx.NodeProto]]) -> list[Segment]:
        wanted = set(self.outputs)
        parts = []
        for nodes in reversed(groups):
            parts.append(segment_of(nodes, wanted))
            wanted.update(parts[-1].inputs)
        return parts[::-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunOrder:
    """``segments[d]`` runs before level d; ``dead_after[d]`` are the tensors that nothing reads after level d."""

    segments: tuple[Segment, ...]
    dead_after: tuple[tuple[str, ...], ...]


def segment_of(nodes: Sequence[onnx.NodeProto], wanted: Iterable[str]) -> Segment:
    """The segment of ``nodes`` (in executable order) of whose results ``wanted`` are read outside."""
    made = {name: None for node in nodes for name in node.output if name}
    inputs = {name: None for node in nodes for name in reads(node) if name not in made}
    wanted = set(wanted)
    return Segment(nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(name for name in made if name in wanted))


def run_order(
    graph: onnx.GraphProto, depth: Mapping[int, int], gemm_level: Mapping[str, int], levels: int,
    kept: Mapping[str, int] | None = None,
) -> RunOrder:  # fmt: skip
    """Segments of a graph whose node ``index`` has ``depth[index]``; ``gemm_level`` maps the output of each GEMM to its level,
    and that of each node that is computed with GEMMs (in a chain). ``kept``: tensors that a level reads beside those of its
    nodes.

    Constants are no nodes of a segment: they count as weights. Steps are numbered 2d for segment d and 2d + 1 for level d.
    """
    members: list[list[onnx.NodeProto]] = [[] for _ in range(levels + 1)]
    last_read = {name: 2 * level + 1 for name, level in (kept or {}).items()}
    for index, node in enumerate(graph.node):
        if is_constant(node):
            continue
        level = gemm_level.get(node.output[0])
        step = 2 * level + 1 if level is not None else 2 * depth[index]
        if level is None:
            members[step // 2].append(node)
        for name in reads(node):
            last_read[name] = max(last_read.get(name, 0), step)
    for value in graph.output:
        last_read[value.name] = 2 * levels + 2

    segments = []
    for place, nodes in enumerate(members):
        made = {name for node in nodes for name in node.output}
        segments.append(segment_of(nodes, {name for name in made if last_read.get(name, -1) > 2 * place}))
    dead: list[list[str]] = [[] for _ in range(levels + 1)]
    for name, step in last_read.items():
        if step // 2 <= levels:
            dead[step // 2].append(name)
    return RunOrder(segments=tuple(segments), dead_after=tuple(map(tuple, dead)))
