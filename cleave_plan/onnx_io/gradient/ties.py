"""Tied weights that an exporter has untied: an embedding table, and its transpose folded into a tensor of its own for the head.

Trained apart they would drift from one another. Only tables whose values lie in the file are looked at.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.external import is_external
from cleave_plan.onnx_io.facts import tensor_to_array


def retie(graph: onnx.GraphProto) -> dict[str, str]:
    """Replace each copy by a Transpose of its table, in place; the result maps copies to tables.

    A table is a matrix whose rows are gathered, a copy one that only products read and that holds the table transposed, element
    by element.
    """
    matrices = {tensor.name: tensor for tensor in graph.initializer if _is_matrix(tensor)}
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in matrices:
                readers.setdefault(name, set()).add(f"{node.op_type}:{place}")
    tables = [name for name, uses in readers.items() if "Gather:0" in uses]
    copies = [name for name, uses in readers.items() if uses <= {"MatMul:1", "Gemm:1"}]
    found = {}
    for copy in copies:
        shape = tuple(reversed(matrices[copy].dims))
        for table in tables:
            if tuple(matrices[table].dims) == shape and _transposed(matrices[table], matrices[copy]):
                found[copy] = table
                break
    if found:
        nodes = [
            helper.make_node("Transpose", [table], [copy], name=f"{copy}/tied", perm=[1, 0]) for copy, table in found.items()
        ]
        rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        kept = [tensor for tensor in graph.initializer if tensor.name not in found]
        tensors = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
        del graph.node[:]
        del graph.initializer[:]
        graph.node.extend([*nodes, *rest])
        graph.initializer.extend(tensors)
        inputs = [value for value in graph.input if value.name not in found]
        if len(inputs) < len(graph.input):
            copied = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
            del graph.input[:]
            graph.input.extend(copied)
    return found


def _is_matrix(tensor: onnx.TensorProto) -> bool:
    dtype = dtype_of(tensor.data_type)
    return len(tensor.dims) == 2 and dtype is not None and dtype.is_float and not is_external(tensor)


def _transposed(table: onnx.TensorProto, copy: onnx.TensorProto) -> bool:
    """Whether one holds the other transposed, and is no matrix of equal numbers."""
    try:
        first, second = tensor_to_array(table), tensor_to_array(copy)
    except ValueError:
        return False
    return bool(np.array_equal(first.T, second) and first.size and (first != first.flat[0]).any())
