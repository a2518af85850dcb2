"""Why a GEMM's shape is not known, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.order import node_label, reads


def unknown_shape_error(
    graph: onnx.GraphProto, index: int, facts: Mapping[str, Fact], bindings: Bindings, faults: Mapping[str, str], where: str
) -> InputFileError:
    """The error for the GEMM at ``graph.node[index]``, of whose operands some size is not known.

    Open dimensions of the inputs come first, because the user can bind them; otherwise the first operator upstream whose
    result could not be found is named.
    """
    node = graph.node[index]
    suspects, culprit = _upstream(graph, index, facts)
    blocked = [name for name in suspects if name in bindings.inputs and bindings.inputs[name].sizes is None]
    if blocked:
        return _unbound_error(node, blocked, bindings, where)
    symbols = sorted({size for name in node.input[:2] for size in facts.get(name, UNKNOWN).shape or () if isinstance(size, str)})
    if symbols:
        return InputFileError(
            f"the shape of {node_label(node)} depends on {_list(symbols)}, which the data decides", where=where,
            expected="a size for every dimension of a GEMM",
            remedy="bind it with " + " ".join(f"--dim {name}=INT" for name in symbols),
        )  # fmt: skip
    if culprit is None:
        return InputFileError(f"the shape of {node_label(node)} is not known", where=where, expected="operands with a shape")
    reason = next((faults[name] for name in culprit.output if name in faults), "")
    return InputFileError(
        f"the shape of {node_label(node)} is not known, because that of {node_label(culprit)} could not be found"
        + (f" ({reason})" if reason else ""),
        where=where, expected="a shape for every operand of a GEMM",
        remedy="write the shape of its output into the file (value_info), or export the model with fixed sizes",
    )  # fmt: skip


def _unbound_error(node: onnx.NodeProto, blocked: list[str], bindings: Bindings, where: str) -> InputFileError:
    clauses: list[str] = []
    options: list[str] = []
    for name in sorted(blocked, key=list(bindings.inputs).index):
        shape = bindings.inputs[name].shape
        if shape is None:
            clauses.append(f"the shape of input {name!r}")
            options.append(f"--shape {name}=AxB...")
            continue
        for axis, size in enumerate(shape):
            if not isinstance(size, str) or bindings.origins.get(size) != (name, axis):
                continue
            if size == f"{name}[{axis}]":
                clauses.append(f"axis {axis} of input {name!r}")
                text = "x".join(str(entry) if isinstance(entry, int) else "INT" for entry in shape)
                options.append(f"--shape {name}={text}")
            else:
                clauses.append(f"dimension {size!r} (axis {axis} of input {name!r})")
                options.append(f"--dim {size}=INT")
    return InputFileError(
        f"{node_label(node)} has no size before these are bound: {_list(clauses)}", where=where, expected="a size for each",
        remedy="bind them with " + " ".join(dict.fromkeys(options)),
    )  # fmt: skip


def _upstream(graph: onnx.GraphProto, index: int, facts: Mapping[str, Fact]) -> tuple[list[str], onnx.NodeProto | None]:
    """``(tensors with open sizes that the node depends on, the first node upstream that made one out of known inputs)``."""
    maker = {name: place for place in range(index) for name in graph.node[place].output if name}
    waiting = [name for name in reads(graph.node[index]) if facts.get(name, UNKNOWN).sizes is None]
    seen: dict[str, None] = {}
    first: int | None = None
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen[name] = None
        if name not in maker:
            continue
        node = graph.node[maker[name]]
        before = [source for source in reads(node) if not _settled(facts.get(source, UNKNOWN), node)]
        waiting.extend(before)
        if not before and (first is None or maker[name] < first):
            first = maker[name]
    return list(seen), None if first is None else graph.node[first]


def _settled(fact: Fact, node: onnx.NodeProto) -> bool:
    """Whether a tensor gives no reason for an unknown result: its shape is known, and its values are not what matters."""
    return fact.sizes is not None and (fact.partial_value is None or node.op_type == "Shape")


def _list(items: list[str]) -> str:
    return ", ".join(items)
