"""Shapes of one node's outputs by onnx's own inference, given everything that is known of its inputs.

Whole-model inference gives up behind the first unknown operator and copies models of any size several times; asked node
by node it does neither. Answers are kept, because the layers of a network ask the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import shape_inference

from cleave_plan.onnx_io.facts import UNKNOWN, Fact, Value, array_to_tensor, fact_of_type, type_of_fact


class InferenceFailedError(ValueError):
    """onnx finds the node impossible."""


class NodeInference:
    """Asks onnx about nodes of a model whose operator sets are ``opsets``."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        self._imports = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in opsets.items()]
        self._schemas: dict[tuple[str, str], Any] = {}

    def schema(self, op_type: str, domain: str) -> Any | None:
        """The operator's schema in the model's version of its domain, None when onnx has none.

        An operator that is younger than the model's operator set is taken in its newest form: runtimes had some of them
        (LayerNormalization, Gelu) before the standard did, and files use them.
        """
        key = (op_type, domain)
        if key not in self._schemas:
            self._schemas[key] = self._find_schema(op_type, domain)
        return self._schemas[key]

    def _find_schema(self, op_type: str, domain: str) -> Any | None:
        for version in (self._opsets.get(domain, 1), onnx.defs.onnx_opset_version()):
            try:
                return onnx.defs.get_schema(op_type, version, domain)
            except onnx.defs.SchemaError:
                continue
        return None

    def outputs(
        self, node: onnx.NodeProto, domain: str, inputs: Sequence[Fact], outer: Mapping[str, Fact] | None = None
    ) -> list[Fact]:
        """Facts of the outputs, UNKNOWN where onnx has no answer.

        ``outer`` holds what the node's subgraphs capture. Raises InferenceFailedError when onnx reports a contradiction.
        """
        schema = self.schema(node.op_type, domain)
        if schema is None:
            return [UNKNOWN] * len(node.output)
        types = {name: type_of_fact(fact) for name, fact in (outer or {}).items()}
        data = {}
        for name, fact in zip(node.input, inputs, strict=True):
            if name:
                types[name] = type_of_fact(fact)
                if fact.whole_value is not None:
                    data[name] = array_to_tensor(fact.whole_value, name)
        try:
            found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=self._imports)
        except Exception as error:  # inference and checker errors of onnx share no base class
            raise InferenceFailedError(str(error)) from None
        return [fact_of_type(found[name]) if name in found else UNKNOWN for name in node.output]


def question(node: onnx.NodeProto, inputs: Sequence[Fact]) -> object:
    """What an answer about a node depends on: operator, attributes, and what is known of its inputs.

    None when it cannot be compared (inputs that are not tensors).
    """
    if any(fact.other is not None for fact in inputs):
        return None
    known = tuple(
        (bool(name), fact.elem, fact.shape, _fingerprint(fact.value)) for name, fact in zip(node.input, inputs, strict=True)
    )
    attributes = tuple(attribute.SerializeToString() for attribute in node.attribute)
    return node.domain, node.op_type, attributes, known, tuple(bool(name) for name in node.output)


def _fingerprint(value: Value | None) -> object:
    if value is None:
        return None
    return (value.shape, tuple(value.ravel().tolist())) if value.dtype == object else (value.dtype.char, value.tobytes())
