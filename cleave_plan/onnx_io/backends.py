"""The two maintained runtimes that run nodes for us: onnxruntime where it is installed, and onnx.reference.

Both get a :class:`~cleave_plan.onnx_io.segments.Segment` as a model made for the types of the values at hand. A backend
raises :class:`RefusedError` when it cannot run a segment; whether another can is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cleave_plan.kernels.arrays import as_ieee
from cleave_plan.onnx_io.attributes import subgraphs
from cleave_plan.onnx_io.kinds import is_quantised
from cleave_plan.onnx_io.matrix_work import OWN
from cleave_plan.onnx_io.ort_session import (
    BoundSession,
    Outlets,
    constant_of,
    is_large,
    may_fuse,
    refuse_foreign_types,
    session_options,
)
from cleave_plan.onnx_io.own_ops import OWN_OPERATORS
from cleave_plan.onnx_io.reference_ops import corrections
from cleave_plan.onnx_io.refusal import RefusedError, Value, or_refused
from cleave_plan.onnx_io.segments import Segment
from cleave_plan.onnx_io.weights import Weights

Array = NDArray[Any]

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", OWN})

_FIRST_IR_WITH_FREE_INITIALISERS = 4


class Prepared(Protocol):
    """A segment made ready: values by name in, results by name out."""

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]: ...


class Backend(Protocol):
    """``name`` with version, and ``prepare`` for values like ``values``; both it and what it returns raise RefusedError."""

    name: str

    def prepare(self, segment: Segment, values: Mapping[str, Value]) -> Prepared: ...


class Reference:
    """``onnx.reference`` with our corrections: pure NumPy, any element type, standard operators only."""

    def __init__(self, model: onnx.ModelProto, weights: Weights) -> None:
        self.name = f"onnx.reference {onnx.__version__}"
        self._model = model
        self._weights = weights

    def prepare(self, segment: Segment, values: Mapping[str, Value]) -> Prepared:
        """Weights are handed over as inputs, so that they are never copied."""
        proto = segment_model(segment, self._model, values, self._weights, initialisers=())
        opset = next((entry.version for entry in proto.opset_import if not entry.domain), 1)
        evaluator = or_refused(lambda: ReferenceEvaluator(proto, new_ops=[*corrections(opset), *OWN_OPERATORS]))

        @as_ieee
        def run(values: Mapping[str, Value]) -> dict[str, Value]:
            feeds = {name: _value(name, values, self._weights) for name in segment.inputs}
            results = or_refused(lambda: evaluator.run(list(segment.outputs), feeds))
            return dict(zip(segment.outputs, results, strict=True))

        return run


class Onnxruntime:
    """onnxruntime on the CPU; ``outlets`` say where large results go and how many threads a segment may take."""

    def __init__(self, model: onnx.ModelProto, weights: Weights, outlets: Outlets) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        self._ort = onnxruntime
        self._model = model
        self._weights = weights
        self._outlets = outlets
        self._quantised = is_quantised(model.graph)

    def prepare(self, segment: Segment, values: Mapping[str, Value]) -> Prepared:
        """A session with the weights as its initialisers, handed over once."""
        refuse_foreign_types(values[name] for name in segment.inputs if name in values)
        constants = {name: self._weights[name] for name in segment.inputs if name not in values}
        initialisers = [constant_of(name, array) for name, array in constants.items()]
        proto = segment_model(segment, self._model, values, self._weights, initialisers=initialisers)
        options = session_options(
            self._ort, threads=self._outlets.threads_for(segment), fuse=not self._quantised and may_fuse(segment.nodes)
        )  # fmt: skip
        large = {name: array for name, array in constants.items() if is_large(array)}
        shared = [self._ort.OrtValue.ortvalue_from_numpy(np.require(array, requirements=("C", "A"))) for array in large.values()]
        if large:
            options.add_external_initializers(list(large), shared)
        session = or_refused(
            lambda: self._ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        )
        bound = BoundSession(session, segment.outputs, shared, self._outlets)
        return lambda values: bound({name: values[name] for name in segment.inputs if name in values})


def segment_model(
    segment: Segment,
    model: onnx.ModelProto,
    values: Mapping[str, Value],
    weights: Weights,
    *,
    initialisers: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """``segment`` as a model; inputs that are neither ``values`` nor ``initialisers`` are weights and become inputs too."""
    initialisers = list(initialisers)
    known = {tensor.name for tensor in initialisers}
    declared = {info.name: info.type for info in (*model.graph.value_info, *model.graph.output, *model.graph.input)}
    inputs = [
        onnx.ValueInfoProto(name=name, type=_type_of(_value(name, values, weights), declared.get(name)))
        for name in segment.inputs
        if name not in known
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in segment.outputs]
    graph = helper.make_graph(segment.nodes, "segment", inputs, outputs, initialisers)
    for node in graph.node:
        _make_standalone(node, weights)
    made = helper.make_model(graph, opset_imports=list(model.opset_import))
    made.ir_version = max(model.ir_version, _FIRST_IR_WITH_FREE_INITIALISERS)
    for entry in made.opset_import:
        entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
    unversioned = {node.domain for node in graph.node} - {entry.domain for entry in made.opset_import}
    made.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(unversioned))
    return made


def _make_standalone(node: onnx.NodeProto, weights: Weights) -> None:
    """One name for the standard domain, and no data beside the model (a segment has no folder)."""
    node.domain = "" if node.domain == "ai.onnx" else node.domain
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            weights.embed(attribute.t)
    for graph in subgraphs(node):
        for tensor in graph.initializer:
            weights.embed(tensor)
        for inner in graph.node:
            _make_standalone(inner, weights)


def _type_of(value: Value, declared: onnx.TypeProto | None) -> onnx.TypeProto:
    """Element type and rank of a value; what a value cannot tell (an empty sequence) is taken as declared."""
    if isinstance(value, np.ndarray):
        code = onnx.TensorProto.STRING if value.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_type_proto(code, [None] * value.ndim)
    if isinstance(value, list) and value:
        kind = _type_of(value[0], None)
        if kind.HasField("tensor_type"):
            kind.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(kind)
    if declared is None:
        raise RefusedError("the type of an empty sequence or optional is not known")
    return declared


def _value(name: str, values: Mapping[str, Value], weights: Weights) -> Value:
    return values[name] if name in values else weights[name]
