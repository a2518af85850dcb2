"""The two maintained runtimes that run nodes for us: onnxruntime where it is installed, and onnx.reference.

Both get a :class:`~cleave_plan.onnx_io.segments.Segment` as a model made for the types of the values at hand. A backend
raises :class:`RefusedError` when it cannot run a segment; whether another can is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cleave_plan.onnx_io.attributes import subgraphs
from cleave_plan.onnx_io.matrix_work import OWN
from cleave_plan.onnx_io.own_ops import OWN_OPERATORS
from cleave_plan.onnx_io.reference_ops import corrections
from cleave_plan.onnx_io.segments import Segment
from cleave_plan.onnx_io.weights import Weights

Array = NDArray[Any]
Result = TypeVar("Result")
Value = Any
"""What a tensor name stands for: an array, a list (ONNX sequence), or None (empty optional)."""

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", OWN})

_EMBED_BELOW_BYTES = 1024
_FIRST_IR_WITH_FREE_INITIALISERS = 4


class RefusedError(Exception):
    """A backend cannot run a segment; the message is its own."""


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
        evaluator = _or_refused(lambda: ReferenceEvaluator(proto, new_ops=[*corrections(opset), *OWN_OPERATORS]))

        def run(values: Mapping[str, Value]) -> dict[str, Value]:
            feeds = {name: _value(name, values, self._weights) for name in segment.inputs}
            with np.errstate(all="ignore"):  # infinities and NaN are results like others
                results = _or_refused(lambda: evaluator.run(list(segment.outputs), feeds))
            return dict(zip(segment.outputs, results, strict=True))

        return run


class Onnxruntime:
    """onnxruntime on the CPU, one thread a session: the cores belong to the workers."""

    def __init__(self, model: onnx.ModelProto, weights: Weights) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        self._ort = onnxruntime
        self._model = model
        self._weights = weights

    def prepare(self, segment: Segment, values: Mapping[str, Value]) -> Prepared:
        """A session with the weights as its initialisers, handed over once."""
        refuse_foreign_types(values[name] for name in segment.inputs if name in values)
        constants = [name for name in segment.inputs if name not in values]
        large = {name: self._weights[name] for name in constants if _is_large(self._weights[name])}
        small = [numpy_helper.from_array(self._weights[name], name) for name in constants if name not in large]
        proto = segment_model(
            segment, self._model, values, self._weights, initialisers=[*small, *map(_placeholder, large, large.values())]
        )
        options = session_options(self._ort)
        shared = [self._ort.OrtValue.ortvalue_from_numpy(np.require(array, requirements=("C", "A"))) for array in large.values()]
        if large:
            options.add_external_initializers(list(large), shared)
        session = _or_refused(
            lambda: self._ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        )

        def run(values: Mapping[str, Value]) -> dict[str, Value]:
            feeds = {name: values[name] for name in segment.inputs if name in values}
            refuse_foreign_types(feeds.values())
            results = _or_refused(lambda: session.run(list(segment.outputs), feeds))
            return dict(zip(segment.outputs, results, strict=True))

        return run


def session_options(ort: Any) -> Any:
    """Options of every session: one thread, no chatter, and only rewritings that keep the values.

    Fusions of several operators into one do not always (quantised pairs round differently, an attribute that the fused
    operator does not know is lost), and a run must agree with the model as it is written.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


def refuse_foreign_types(values: Iterable[Value]) -> None:
    """Raise RefusedError for element types that onnxruntime does not exchange with NumPy (bfloat16 and smaller floats)."""
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.isbuiltin != 1:
            raise RefusedError(f"element type {value.dtype.name} cannot be handed to onnxruntime")


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


def _is_large(array: Array) -> bool:
    return array.nbytes >= _EMBED_BELOW_BYTES and array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub"


def _placeholder(name: str, array: Array) -> onnx.TensorProto:
    """An initialiser whose data will be handed over beside the model."""
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", "handed-over"), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def _or_refused(action: Callable[[], Result]) -> Result:
    """Run ``action``; neither runtime has a base for its exceptions, so whatever it raises is a refusal."""
    try:
        return action()
    except Exception as error:
        cause = error.__cause__ or error
        raise RefusedError(f"{type(cause).__name__}: {str(cause).strip() or error}") from error
