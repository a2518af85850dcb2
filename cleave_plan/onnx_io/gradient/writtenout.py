"""Operators without a rule of their own that stand for others: written out in the forward graph, whose parts have rules.

Recurrent layers become a product and a Scan (:mod:`cleave_plan.onnx_io.gradient.recurrent`); what the standard defines by a
function body (Attention, RotaryEmbedding, GroupNormalization, ...) becomes that body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import replace

import onnx
from onnx import inliner

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.facts import Fact
from cleave_plan.onnx_io.gradient.recurrent import RECURRENT, write_out
from cleave_plan.onnx_io.gradient.rule import NoRuleError
from cleave_plan.onnx_io.gradient.writer import Writer
from cleave_plan.onnx_io.matrix_work import domain_of
from cleave_plan.onnx_io.order import node_label, sort_nodes
from cleave_plan.onnx_io.reader import ModelFile
from cleave_plan.onnx_io.shapes import ShapeWalk


def can_be_written_out(nodes: Iterable[onnx.NodeProto], opset: int) -> set[str]:
    """Operators among ``nodes`` that stand for others."""
    return {node.op_type for node in nodes if domain_of(node) == "" and (node.op_type in RECURRENT or _has_body(node, opset))}


def _drop_absent(node: onnx.NodeProto) -> None:
    """Leave out absent inputs at the end, of which the inliner wants the type."""
    while node.input and not node.input[-1]:
        del node.input[-1]


def _has_body(node: onnx.NodeProto, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def written_out(file: ModelFile, op_types: Collection[str], walk: ShapeWalk, facts: MutableMapping[str, Fact]) -> ModelFile:
    """The model with these operators written out; ``facts`` hold what ``walk`` found of its tensors.

    Raises InputFileError for a form that is not covered.
    """
    if RECURRENT.isdisjoint(op_types):
        bodies = sorted(op_types)
        for node in file.model.graph.node:
            if node.op_type in op_types:
                _drop_absent(node)
        model = inliner.inline_selected_functions(file.model, [("", op) for op in bodies], inline_schema_functions=True)
        return replace(file, model=model, nodes=sort_nodes(model.graph, str(file.path)))
    graph = file.model.graph
    taken = set(facts) | {name for node in graph.node for name in (node.name, *node.output)}
    writer = Writer(walk, facts, taken, prefix="")
    for node in graph.node:
        if node.op_type not in RECURRENT or domain_of(node):
            writer.keep(node)
            continue
        try:
            write_out(node, writer)
        except NoRuleError as error:
            raise InputFileError(
                f"{node_label(node)}: no gradient rule covers this form: {error}", where=str(file.path),
                expected="forms that docs/training.md lists",
            ) from None  # fmt: skip
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in writer.nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    return replace(file, nodes=sort_nodes(graph, str(file.path)))
