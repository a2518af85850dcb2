"""The names in a file have to be text: protobuf hands damaged ones over as bytes, which no other room expects."""

from __future__ import annotations

import onnx

from cleave_plan.errors import InputFileError


def refuse_damaged_names(model: onnx.ModelProto, where: str) -> None:
    """Raise InputFileError when a name in ``model`` is not valid UTF-8."""
    names: list[object] = [entry.domain for entry in model.opset_import]
    _add_graph(model.graph, names)
    for function in model.functions:
        names += [function.name, function.domain, *function.input, *function.output, *function.attribute]
        names += [entry.domain for entry in function.opset_import]
        for node in function.node:
            _add_node(node, names)
    if set(map(type, names)) <= {str}:
        return
    damaged = next(name for name in names if not isinstance(name, str))
    raise InputFileError(
        f"the name {damaged!r} is not text", where=where, expected="names in UTF-8",
        remedy="the file may be damaged: export it again",
    )  # fmt: skip


def _add_graph(graph: onnx.GraphProto, names: list[object]) -> None:
    names.append(graph.name)
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            names.append(value.name)
            names.extend(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        _add_tensor(tensor, names)
    for sparse in graph.sparse_initializer:
        _add_tensor(sparse.values, names)
        _add_tensor(sparse.indices, names)
    for node in graph.node:
        _add_node(node, names)


def _add_tensor(tensor: onnx.TensorProto, names: list[object]) -> None:
    names.append(tensor.name)
    for entry in tensor.external_data:
        names += (entry.key, entry.value)


def _add_node(node: onnx.NodeProto, names: list[object]) -> None:
    names += (node.name, node.op_type, node.domain, *node.input, *node.output)
    for attribute in node.attribute:
        kind = attribute.type
        if kind == onnx.AttributeProto.TENSOR:
            _add_tensor(attribute.t, names)
        elif kind == onnx.AttributeProto.GRAPH:
            _add_graph(attribute.g, names)
        elif kind == onnx.AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                _add_graph(graph, names)
        names += (attribute.name, attribute.ref_attr_name)
