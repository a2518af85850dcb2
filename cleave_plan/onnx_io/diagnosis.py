"""Why the shape of a GEMM is not known, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.bindings import Bindings
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.order import node_label, reads


def unknown_shapes_error(
    graph: onnx.GraphProto,
    failing: Sequence[int],
    facts: Mapping[str, Fact],
    bindings: Bindings,
    faults: Mapping[str, str],
    where: str,
) -> InputFileError:
    """The error for the GEMMs at ``failing`` (indices of nodes), of whose operands some size is not known.

    Open dimensions of the inputs come first, all at once, because the user can bind them; otherwise the first operator
    upstream whose result could not be found is named.
    """
    node = graph.node[failing[0]]
    operands = {name for index in failing for name in graph.node[index].input[:2]}
    open_names = {size for name in operands for size in facts.get(name, UNKNOWN).shape or () if isinstance(size, str)}
    vague = [name for name in operands if None in (facts.get(name, UNKNOWN).shape or (None,))]
    suspects, culprit = _upstream(graph, operands, facts)
    if vague:
        open_names.update(size for name in suspects for size in facts.get(name, UNKNOWN).shape or () if isinstance(size, str))
    shapeless = [name for name, fact in bindings.inputs.items() if fact.shape is None and name in suspects and vague]
    unbound = [size for size in bindings.origins if size in open_names]
    if unbound or shapeless:
        return _unbound_error(node, unbound, shapeless, bindings, where)
    if culprit is None:
        return InputFileError(f"the shape of {node_label(node)} is not known", where=where, expected="operands with a shape")
    reason = next((f" ({faults[name]})" for name in culprit.output if name in faults), "")
    remedy = "write the shape of its output into the file (value_info), or export the model with fixed sizes"
    if open_names:
        remedy = "bind what the data decides: " + _options(sorted(open_names))
    return InputFileError(
        f"the shape of {node_label(node)} is not known, because that of {node_label(culprit)} could not be found{reason}",
        where=where,
        expected="a shape for every operand of a GEMM",
        remedy=remedy,
    )


def _unbound_error(
    node: onnx.NodeProto, unbound: list[str], shapeless: list[str], bindings: Bindings, where: str
) -> InputFileError:
    clauses = [f"the shape of input {name!r}" for name in shapeless]
    options = [f"--shape {name}=AxBxC" for name in shapeless]
    named = []
    for size in unbound:
        name, axis = bindings.origins[size]
        if size == f"{name}[{axis}]":
            text = "x".join(str(entry) if isinstance(entry, int) else "INT" for entry in bindings.inputs[name].shape or ())
            clauses.append(f"axis {axis} of input {name!r}, which has no name")
            options.append(f"--shape {name}={text}")
        else:
            clauses.append(f"dimension {size!r} (axis {axis} of input {name!r})")
            named.append(size)
    return InputFileError(
        f"{node_label(node)} has no size before these are bound: {', '.join(clauses)}",
        where=where,
        expected="a size for each",
        remedy="bind them with " + " ".join(dict.fromkeys([*([_options(named)] if named else []), *options])),
    )


def _options(names: Iterable[str]) -> str:
    return " ".join(f"--dim {_quoted(name)}=INT" for name in names)


def _quoted(name: str) -> str:
    """The name as a shell takes it."""
    return name if name.replace("_", "").isalnum() else f"'{name}'"


def _upstream(
    graph: onnx.GraphProto, operands: Iterable[str], facts: Mapping[str, Fact]
) -> tuple[dict[str, None], onnx.NodeProto | None]:
    """``(tensors with open sizes that lead to the operands, the first node that made one out of known inputs)``."""
    maker = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    waiting = [name for name in operands if facts.get(name, UNKNOWN).sizes is None]
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
        before = [source for source in reads(node) if not _settled(facts.get(source, UNKNOWN))]
        waiting.extend(before)
        if not before and (first is None or maker[name] < first):
            first = maker[name]
    return seen, None if first is None else graph.node[first]


def _settled(fact: Fact) -> bool:
    """Whether a tensor is no reason for an unknown result: shape and values are as known as they get."""
    return fact.sizes is not None and fact.partial_value is None
