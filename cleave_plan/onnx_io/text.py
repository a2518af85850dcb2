"""The names in a file have to be text: protobuf hands damaged ones over as bytes, which no other room expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.attributes import subgraphs


def refuse_damaged_names(model: onnx.ModelProto, where: str) -> None:
    """Raise InputFileError when a name in ``model`` is not valid UTF-8."""
    graphs: list[Iterable[object]] = [_graph_names(model.graph)]
    graphs.append(entry.domain for entry in model.opset_import)
    graphs.extend(_function_names(function) for function in model.functions)
    for names in graphs:
        for name in names:
            if not isinstance(name, str):
                raise InputFileError(
                    f"the name {name!r} is not text", where=where, expected="names in UTF-8",
                    remedy="the file may be damaged: export it again",
                )  # fmt: skip


def _graph_names(graph: onnx.GraphProto) -> Iterator[object]:
    yield graph.name
    for value in [*graph.input, *graph.output, *graph.value_info]:
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]:
        yield tensor.name
        for entry in tensor.external_data:
            yield entry.key
            yield entry.value
    for node in graph.node:
        yield from _node_names(node)


def _node_names(node: onnx.NodeProto) -> Iterator[object]:
    yield node.name
    yield node.op_type
    yield node.domain
    yield from node.input
    yield from node.output
    if node.attribute:
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.t.name
            yield from (entry.value for entry in attribute.t.external_data)
        for graph in subgraphs(node):
            yield from _graph_names(graph)


def _function_names(function: onnx.FunctionProto) -> Iterator[object]:
    yield function.name
    yield function.domain
    yield from function.input
    yield from function.output
    for node in function.node:
        yield from _node_names(node)
