"""Attributes of a node with their defaults, without converting the ones nobody asks for."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


def _find(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    for attribute in node.attribute[:]:
        if attribute.name == name:
            return attribute
    return None


def get_int(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute."""
    found = _find(node, name)
    return default if found is None else int(found.i)


def get_ints(node: onnx.NodeProto, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
    """A list of integers; ``default`` (None unless given) when it is absent or empty."""
    found = _find(node, name)
    return default if found is None else tuple(found.ints[:]) or default


def get_float(node: onnx.NodeProto, name: str, default: float) -> float:
    """A floating-point attribute."""
    found = _find(node, name)
    return default if found is None else float(found.f)


def get_floats(node: onnx.NodeProto, name: str) -> tuple[float, ...]:
    """A list of floating-point numbers, empty when absent."""
    found = _find(node, name)
    return () if found is None else tuple(found.floats[:])


def get_strings(node: onnx.NodeProto, name: str) -> tuple[str, ...]:
    """A list of strings, empty when absent."""
    found = _find(node, name)
    return () if found is None else tuple(bytes(text).decode("utf-8", "replace") for text in found.strings[:])


def get_string(node: onnx.NodeProto, name: str, default: str) -> str:
    """A string attribute."""
    found = _find(node, name)
    return default if found is None else bytes(found.s).decode("utf-8", "replace")


def get_graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto | None:
    """A subgraph attribute, None when absent."""
    found = _find(node, name)
    return found.g if found is not None and found.HasField("g") else None


def get_tensor(node: onnx.NodeProto, name: str) -> onnx.TensorProto | None:
    """A tensor attribute, None when absent."""
    found = _find(node, name)
    return found.t if found is not None and found.HasField("t") else None


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Every subgraph that a node carries (branches, bodies)."""
    return graphs_in(node.attribute)


def graphs_in(attributes: Iterable[onnx.AttributeProto]) -> list[onnx.GraphProto]:
    """Every subgraph that a node with these attributes carries."""
    graphs: list[onnx.GraphProto] = []
    for attribute in attributes:
        kind = attribute.type
        if kind == _GRAPH:
            graphs.append(attribute.g)
        elif kind == _GRAPHS:
            graphs.extend(attribute.graphs)
    return graphs
