"""Weights of a model: which they are, how large, whether their data is there. Headers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx

from cleave_plan.onnx_io.constants import RANDOM
from cleave_plan.onnx_io.elements import FLOAT_CODES, WEIGHT_DTYPES, dtype_of
from cleave_plan.onnx_io.external import ExternalData, is_external, locate
from cleave_plan.onnx_io.facts import UNKNOWN, Fact
from cleave_plan.onnx_io.views import NodeView, views_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """``sizes`` maps each weight tensor to its bytes; ``present`` tells whether the data of all tensors is there."""

    sizes: dict[str, int]
    elements: int
    present: bool


def constant_tensors(
    graph: onnx.GraphProto, nodes: Iterable[NodeView], inputs: Collection[str], outer: Iterable[str] = ()
) -> set[str]:
    """Tensors that are the same in every run: initialisers (but for fed ``inputs``), Constants, what only they determine.

    ``nodes`` are those of the graph, ``outer`` the constants of the graphs around a body.
    """
    names = {tensor.name for tensor in graph.initializer[:]} | {tensor.values.name for tensor in graph.sparse_initializer[:]}
    names.update(outer)
    names.difference_update(inputs)
    for view in nodes:
        if (view.reads or view.is_constant) and names.issuperset(view.reads) and view.op not in RANDOM:
            names.update(view.made)
    return names


def learned_tensors(graph: onnx.GraphProto, nodes: Iterable[NodeView], facts: Mapping[str, Fact]) -> set[str]:
    """Float tensors that depend on a float initialiser with at least one axis: those whose gradient a training step needs."""
    names = {tensor.name for tensor in graph.initializer[:] if _is_weight(tensor)}
    for view in nodes:
        if not names.isdisjoint(view.reads):
            names.update([name for name in view.made if facts.get(name, UNKNOWN).elem in _FLOWS])
    return names


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in FLOAT_CODES and bool(tensor.dims)


_FLOWS = frozenset(code for code in range(64) if code in FLOAT_CODES or dtype_of(code) is None)
"""Element types that a gradient may flow through: floats, and where the type is not known."""


def find_parameters(
    graph: onnx.GraphProto, nodes: Sequence[NodeView], operands: Collection[str], fed: Collection[str], folder: Path
) -> Parameters:
    """The weights of ``graph``, whose nodes are ``nodes``, and of its subgraphs.

    Weights are the initialisers that some node reads, of a type that weights have and with at least one axis, and the
    Constants among ``operands`` (tensors that GEMMs multiply by). Tied weights count once: one name, or names of one range
    of an external file. What the caller feeds (``fed``) is no weight, though the file may have a default for it. Raises
    InputFileError when external data lies outside ``folder``.
    """
    sizes: dict[str, int] = {}
    elements = 0
    present = True
    seen: set[ExternalData] = set()
    resolved: dict[str, Path] = {}
    for name, tensor, used in _tensors(graph, nodes, operands, ""):
        outside = locate(tensor, folder, resolved) if is_external(tensor) else None
        if outside is not None:
            present = present and outside.present
        dtype = dtype_of(tensor.data_type) if used and name not in fed else None
        axes = tensor.dims[:] if dtype in WEIGHT_DTYPES else ()
        if dtype is None or not axes or outside in seen:
            continue
        if outside is not None and outside.length and any(entry.key == "offset" for entry in tensor.external_data[:]):
            seen.add(outside)
        count = prod(axes)
        sizes[name] = dtype.bytes_of(count)
        elements += count
    return Parameters(sizes=sizes, elements=elements, present=present)


def _tensors(
    graph: onnx.GraphProto, nodes: Sequence[NodeView], operands: Collection[str], prefix: str
) -> Iterator[tuple[str, onnx.TensorProto, bool]]:
    """``(name, tensor, whether it may be a weight)`` of everything that holds data."""
    used = {value.name for value in graph.output[:]}.union(*[view.reads for view in nodes])
    for tensor in graph.initializer[:]:
        name = tensor.name
        yield prefix + name, tensor, name in used
    for sparse in graph.sparse_initializer[:]:
        yield prefix + sparse.values.name, sparse.values, sparse.values.name in used
    for view in nodes:
        if view.op == "Constant" and view.made:
            for attribute in view.attributes:
                if attribute.name == "value" and attribute.HasField("t"):
                    name = prefix + view.made[0]
                    yield name, attribute.t, name in operands
        for inner in view.bodies:
            yield from _tensors(inner, views_of(inner.node), operands, f"{prefix}{view.name or view.first_output}/")
