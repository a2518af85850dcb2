"""When each node runs: levels of GEMMs, and what is alive in the server's memory while a level runs.

A GEMM's level is the longest path to it, counted in GEMMs. A server node of depth d runs just before the GEMMs of
level d; the last ones have depth ``len(levels)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from cleave_plan.onnx_io.views import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``depth`` of each node (a GEMM's is its level), by its index in the graph; ``levels`` is their number."""

    depth: tuple[int, ...]
    levels: int


def schedule(nodes: Sequence[NodeView], gemms: Collection[int]) -> Schedule:
    """Depths of ``nodes``, which are sorted and of which ``gemms`` (indices) are GEMMs."""
    made: dict[str, int] = {}
    depths = []
    levels = 0
    for index, view in enumerate(nodes):
        depth = 0
        for name in view.reads:
            before = made.get(name, 0)
            if before > depth:
                depth = before
        depths.append(depth)
        after = depth + 1 if index in gemms else depth
        if after:
            for name in view.made:
                made[name] = after
            if after > levels:
                levels = after
    return Schedule(depth=tuple(depths), levels=levels)


def live_bytes(
    graph: onnx.GraphProto, nodes: Sequence[NodeView], plan: Schedule, gemms: Collection[int], sizes: Mapping[str, int],
    constants: Collection[str], kept: Collection[str] = (),
) -> tuple[int | None, ...]:  # fmt: skip
    """Bytes of activations alive during each level: what it reads, what it makes, and what later nodes still need.

    ``sizes`` are bytes of tensors (absent: unknown, which makes every level that holds the tensor unknown);
    ``constants`` (weights and what is derived from them alone) do not count. Graph outputs and ``kept`` tensors live to the end.
    """
    first = {value.name: 0 for value in graph.input[:]}
    last: dict[str, int] = {}
    for index, (view, depth) in enumerate(zip(nodes, plan.depth, strict=True)):
        for name in view.made:
            first[name] = depth
        # A server node of depth d reads after level d - 1 and before level d.
        use = depth if index in gemms else depth - 1
        for name in view.reads:
            if last.get(name, -1) < use:
                last[name] = use
    for name in (*(value.name for value in graph.output[:]), *kept):
        last[name] = plan.levels - 1
    for index in gemms:  # a result that nobody reads still arrives
        for name in nodes[index].made:
            last.setdefault(name, plan.depth[index])
    change = [0] * (plan.levels + 1)
    unknown = [0] * (plan.levels + 1)
    for name, start in first.items():
        stop = last.get(name, -1)
        if stop < start or name in constants:
            continue
        size = sizes.get(name)
        table, amount = (unknown, 1) if size is None else (change, size)
        table[start] += amount
        table[stop + 1] -= amount
    result: list[int | None] = []
    alive = missing = 0
    for level in range(plan.levels):
        alive, missing = alive + change[level], missing + unknown[level]
        result.append(None if missing else alive)
    return tuple(result)
