"""Bringing a graph to an operator set in which gradients can be written: 18 or newer (older files from 13 on are raised).

Between 13 and 18 only these operators changed their form; everything else means the same:

- Reduce* took their axes as an attribute (ReduceSum already as an input);
- Split with equal parts needs their number (num_outputs);
- BatchNormalization had five outputs in training mode.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.attributes import get_ints, subgraphs
from cleave_plan.onnx_io.matrix_work import STANDARD, domain_of
from cleave_plan.onnx_io.naming import unique_names
from cleave_plan.onnx_io.views import views_of

WRITTEN_OPSET = 18
"""The oldest operator set that gradients are written in: from here on scattering can add."""

OLDEST_OPSET = 13

_REDUCTIONS = frozenset(
    {
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSumSquare",
    }
)  # fmt: skip


def modernise(model: onnx.ModelProto, where: str) -> int:
    """Raise the model in place to operator set 18 unless it is newer; returns the version it has then.

    Raises InputFileError for models older than operator set 13, and for a training-mode BatchNormalization of set 13.
    """
    entry = next((entry for entry in model.opset_import if entry.domain in STANDARD), None)
    version = 1 if entry is None else int(entry.version)
    if entry is None or version < OLDEST_OPSET:
        raise InputFileError(
            f"the model is written in operator set {version}", where=where, expected=f"operator set {OLDEST_OPSET} or newer",
            remedy="export it again with a newer opset_version, or convert it with onnx.version_converter",
        )  # fmt: skip
    if version >= WRITTEN_OPSET:
        return version
    _raise(model.graph, where)
    entry.version = WRITTEN_OPSET
    return WRITTEN_OPSET


def _raise(graph: onnx.GraphProto, where: str) -> None:
    nodes: list[onnx.NodeProto] = []
    for node, name in zip(graph.node, unique_names(views_of(graph.node)), strict=True):
        nodes += _raised(node, name, where)
        for inner in subgraphs(node):
            _raise(inner, where)
    if len(nodes) > len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _raised(node: onnx.NodeProto, name: str, where: str) -> Iterator[onnx.NodeProto]:
    """The node in its newer form, behind the constants that it needs."""
    if domain_of(node) == "" and node.op_type in _REDUCTIONS:
        axes = get_ints(node, "axes")
        if axes is not None:
            tensor = numpy_helper.from_array(np.array(axes, np.int64), f"{name}/axes")
            yield helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor)
            node.input.append(tensor.name)
            _drop(node, "axes")
    elif domain_of(node) == "" and node.op_type == "Split" and (len(node.input) < 2 or not node.input[1]):
        node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
    elif domain_of(node) == "" and node.op_type == "BatchNormalization" and len(node.output) > 3:
        raise InputFileError(
            f"BatchNormalization {name!r} is in the training form of operator set 13", where=where,
            expected="operator set 14 or newer for training mode", remedy="export the model again with opset_version=17",
        )  # fmt: skip
    yield node


def _drop(node: onnx.NodeProto, attribute: str) -> None:
    for place, entry in enumerate(node.attribute):
        if entry.name == attribute:
            del node.attribute[place]
            return
