"""Which graph inputs are used as indices, and how large an index may be."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from cleave_plan.onnx_io.attributes import get_int

# Operators whose first output holds the values of their first input, in another form.
_CARRIERS = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)

# Operator -> {place of the indices: place of the table}; the axis is the attribute "axis" (0 where there is none).
_LOOKUPS = {"Gather": {1: 0}, "EmbedLayerNormalization": {0: 2, 1: 4, 8: 3}}


def index_bounds(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """For each graph input whose values look something up: the length of the shortest axis they index.

    ``shapes`` are the tensors' shapes as far as they are known.
    """
    roots = {value.name: value.name for value in graph.input}
    bounds: dict[str, int] = {}
    for node in graph.node:
        tables = _LOOKUPS.get(node.op_type, {})
        for place, name in enumerate(node.input):
            if name not in roots:
                continue
            if place == 0 and node.op_type in _CARRIERS:
                roots.update(dict.fromkeys(node.output, roots[name]))
            if place in tables:
                table = shapes.get(node.input[tables[place]])
                if table:
                    length = table[get_int(node, "axis", 0)]
                    bounds[roots[name]] = min(length, bounds.get(roots[name], length))
    return bounds
