"""Short Scans written out step by step, so that devices can share the products of their bodies.

A product inside a body is a part of its node and stays on the server. Of a Scan with few steps, whose number is known, each
step becomes nodes of the outermost graph: slices of what is scanned, a copy of the body with names of its own, and at the end
the collected rows put together. Longer ones, Loops and bodies with bodies of their own stay as they are.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from cleave_plan.onnx_io.attributes import get_int, get_ints
from cleave_plan.onnx_io.constants import tensor_fact
from cleave_plan.onnx_io.facts import Fact
from cleave_plan.onnx_io.naming import Origin, inside, unique_names
from cleave_plan.onnx_io.operators import RULES
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.regions import Region
from cleave_plan.onnx_io.shapes import ShapeWalk
from cleave_plan.onnx_io.views import NodeView, views_of

MOST_STEPS = 8
"""Longer Scans stay as they are: each step is a level, and the plan would grow with the data."""

_FIRST_SCAN_WITHOUT_BATCH = 9
_FIRST_AXES_AS_INPUT = 13


def write_out_scans(
    file: ModelFile, regions: MutableMapping[str, Region], facts: MutableMapping[str, Fact], walk: ShapeWalk
) -> tuple[ModelFile, dict[str, Origin]]:
    """The model with its short Scans written out, and where the new products come from, by the names of their nodes.

    ``regions`` loses the Scans that are, ``facts`` gets what is known of the new tensors.
    """
    graph, opset = file.model.graph, file.opsets[""]
    short = {output: steps for output, region in regions.items() if (steps := _steps_of(region, opset))}
    if not short:
        return file, {}
    nodes: list[onnx.NodeProto] = []
    origins: dict[str, Origin] = {}
    for view in file.nodes:
        if view.first_output not in short:
            nodes.append(view.node)
            continue
        written = _WrittenOut(view, regions.pop(view.first_output), opset)
        written.write(short[view.first_output])
        facts.update((tensor.name, tensor_fact(tensor, file.path)) for tensor in written.constants)
        graph.initializer.extend(written.constants)
        for node in written.nodes:
            walk.add(node, facts)
        nodes += written.nodes
        origins |= written.origins
    del graph.node[:]
    graph.node.extend(nodes)
    return replace(file, nodes=views_of(graph.node)), origins


def _steps_of(region: Region, opset: int) -> int:
    """The steps of a Scan that is to be written out, 0 for any other node."""
    if region.op != "Scan" or opset < _FIRST_SCAN_WITHOUT_BATCH or len(region.passes) != 1:
        return 0
    made, times = region.passes[0]
    views = views_of(made.graph.node)
    has_work = any(view.kind in RULES for view in views)
    return times if has_work and times is not None and times <= MOST_STEPS and not any(view.bodies for view in views) else 0


class _WrittenOut:
    """The nodes and constants that take the place of the Scan ``view``, which runs ``region``."""

    def __init__(self, view: NodeView, region: Region, opset: int) -> None:
        self._view, self._path, self._opset = view, region.path, opset
        self._body = region.passes[0][0].graph
        self._number = get_int(view.node, "num_scan_inputs", 0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.origins: dict[str, Origin] = {}

    def write(self, steps: int) -> None:
        """Write ``steps`` copies of the body and what links them."""
        own = {tensor.name: self._constant(tensor) for tensor in self._body.initializer}
        count = len(self._view.inputs) - self._number
        states = list(self._view.inputs[:count])
        rows: list[list[str]] = [[] for _ in self._body.output[count:]]
        for step in range(steps):
            items = [self._slice(place, step, steps) for place in range(self._number)]
            given = zip((value.name for value in self._body.input), [*states, *items], strict=True)
            made = self._copy({**own, **dict(given)}, step)
            results = [made.get(value.name, value.name) for value in self._body.output]
            states = results[:count]
            for row, result in zip(rows, results[count:], strict=True):
                row.append(result)
        for name, state in zip(self._view.outputs, states, strict=False):
            self._add("Identity", [state], name)
        for place, row in enumerate(rows):
            self._collect(place, row, self._view.outputs[count + place] if count + place < len(self._view.outputs) else "")

    def _constant(self, tensor: onnx.TensorProto) -> str:
        """An initialiser of the body as one of the graph, named by its path like every parameter of a body."""
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = inside(self._path, tensor.name)
        self.constants.append(copy)
        return str(copy.name)

    def _copy(self, names: dict[str, str], step: int) -> dict[str, str]:
        """The body's nodes for one step; ``names`` are those of the tensors it is given, the result has those that it makes."""
        views = views_of(self._body.node)
        for view, own_name in zip(views, unique_names(views), strict=True):
            names.update((name, f"{self._path}/{step}/{name}") for name in view.made)
            node = onnx.NodeProto()
            node.CopyFrom(view.node)
            node.name = f"{self._path}/{step}/{own_name}"
            del node.input[:], node.output[:]
            node.input.extend(names.get(name, name) for name in view.inputs)
            node.output.extend(names[name] if name else "" for name in view.outputs)
            self.nodes.append(node)
            self.origins[node.name] = Origin(inside(self._path, own_name), view.op)
        return names

    def _slice(self, place: int, step: int, steps: int) -> str:
        """What one step reads of a scanned input."""
        source = self._view.inputs[len(self._view.inputs) - self._number + place]
        axis = self._at("scan_input_axes", place)
        index = steps - 1 - step if self._at("scan_input_directions", place) else step
        return self._add("Gather", [source, self._whole(index, ())], f"{self._path}/{step}/item{place}", axis=axis)

    def _collect(self, place: int, row: list[str], name: str) -> None:
        """The rows of one output, one after the other along its axis."""
        axis = self._at("scan_output_axes", place)
        if self._at("scan_output_directions", place):
            row = row[::-1]
        parts = []
        for step, tensor in enumerate(row):
            part = f"{self._path}/row{place}/{step}"
            if self._opset < _FIRST_AXES_AS_INPUT:
                parts.append(self._add("Unsqueeze", [tensor], part, axes=[axis]))
            else:
                parts.append(self._add("Unsqueeze", [tensor, self._whole(axis, (1,))], part))
        if name:
            self._add("Concat", parts, name, axis=axis)

    def _at(self, attribute: str, place: int) -> int:
        values = get_ints(self._view.node, attribute) or ()
        return values[place] if place < len(values) else 0

    def _whole(self, number: int, shape: tuple[int, ...]) -> str:
        """A constant of one whole number."""
        name = f"{self._path}:{number}:{len(shape)}"
        if all(tensor.name != name for tensor in self.constants):
            self.constants.append(numpy_helper.from_array(np.full(shape, number, np.int64), name))
        return name

    def _add(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        if output:
            self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes))
        return output
