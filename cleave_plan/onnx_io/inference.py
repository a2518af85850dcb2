"""Shapes of one node's outputs by onnx's own inference, given everything that is known of its inputs.

Whole-model inference gives up behind the first unknown operator and copies models of any size several times; asked node
by node it does neither. Answers are kept, because the layers of a network ask the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import onnx
from onnx import shape_inference

from cleave_plan.onnx_io.facts import UNKNOWN, Fact, array_to_tensor, fact_of_type, type_of_fact
from cleave_plan.onnx_io.views import NodeView


class InferenceFailedError(ValueError):
    """onnx finds the node impossible."""


class NodeInference:
    """Asks onnx about nodes of a model whose operator sets are ``opsets``."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)

    @cached_property
    def _imports(self) -> list[onnx.OperatorSetIdProto]:
        return [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in self._opsets.items()]

    @property
    def opset(self) -> int:
        """The model's version of the standard domain."""
        return self._opsets.get("", 1)

    def schema(self, op_type: str, domain: str) -> Any | None:
        """The operator's schema in the model's version of its domain, None when onnx has none."""
        if domain and not domain.startswith("ai.onnx"):  # onnx's own domains; its register is slow to load
            return None
        return _schema(op_type, domain, self._opsets.get(domain, 1))

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
        return [fact_of_type(found[name]) if name in found else UNKNOWN for name in node.output[:]]


@cache
def _schema(op_type: str, domain: str, opset: int) -> Any | None:
    """The operator's schema in version ``opset`` of its domain.

    An operator that is younger than the model's operator set is taken in its newest form: runtimes had some of them
    (LayerNormalization, Gelu) before the standard did, and files use them.
    """
    for version in (opset, onnx.defs.onnx_opset_version()):
        try:
            return onnx.defs.get_schema(op_type, version, domain)
        except onnx.defs.SchemaError:
            continue
    return None


def question(view: NodeView, inputs: Sequence[Fact]) -> object:
    """What an answer about a node depends on: operator, attributes, and what is known of its inputs.

    None when it cannot be compared (inputs that are not tensors).
    """
    known = tuple([fact.key for fact in inputs])
    if None in known:
        return None
    made = len(view.outputs) if len(view.made) == len(view.outputs) else tuple(map(bool, view.outputs))
    if not view.attributes:
        return view.kind, known, made
    return view.kind, known, made, *[attribute.SerializeToString() for attribute in view.attributes]
