"""Fused nodes replaced by the nodes that they stand for, so that each of their GEMMs has a level of its own."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace

import onnx
from onnx import helper

from cleave_plan.onnx_io.facts import UNKNOWN, Fact, ShapeContradictionError
from cleave_plan.onnx_io.matrix_work import OWN
from cleave_plan.onnx_io.naming import Origin
from cleave_plan.onnx_io.operators import FUSED, operator_of
from cleave_plan.onnx_io.order import arranged
from cleave_plan.onnx_io.quantised_pairs import Pairs
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.rules.builder import Builder, DeclinedError
from cleave_plan.onnx_io.views import NodeView, view_of


def expand_fused(file: ModelFile, facts: MutableMapping[str, Fact], names: list[str]) -> tuple[ModelFile, Mapping[str, Origin]]:
    """Expand the fused nodes of the outermost graph in place; ``names`` are the nodes' names.

    ``facts`` gets what is known of the new tensors. The result is the file with the views of its nodes now, and for each new
    node's name the node that it came from. A node whose sizes are not known, or of a form that its expansion does not cover,
    stays as it is.
    """
    graph = file.model.graph
    nodes: list[NodeView] = []
    found, stood_for = Pairs(file.nodes, {value.name for value in graph.output[:]}, facts).rewrite(names)
    origins = {name: Origin(name, op) for name, op in stood_for.items()}
    opset = file.opsets[""]
    for name, view in found:
        builder = expansion_of(view.node, name, facts, opset) if view.kind in FUSED else None
        if builder is None:
            nodes.append(view)
            continue
        nodes += map(view_of, builder.nodes)
        origins.update((made.name, Origin(name, view.op)) for made in builder.nodes)
        graph.initializer.extend(builder.constants)
        facts.update(builder.facts)
    if not origins:
        return file, origins
    file.model.opset_import.append(helper.make_opsetid(OWN, 1))
    return replace(file, nodes=arranged(graph, file.nodes, nodes)), origins


def expansion_of(node: onnx.NodeProto, name: str, facts: Mapping[str, Fact], opset: int) -> Builder | None:
    """The nodes that ``node`` stands for; None when it has no expansion, or not for these inputs."""
    operator = operator_of(node)
    if operator is None or operator.expand is None:
        return None
    builder = Builder(node, name, facts, opset)
    try:
        operator.forms(node, [facts.get(tensor, UNKNOWN).sizes if tensor else None for tensor in node.input[:]])
        operator.expand(builder)
    except (DeclinedError, ShapeContradictionError):  # a contradiction is told when the node's own forms are asked for
        return None
    return builder
