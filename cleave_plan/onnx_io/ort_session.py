"""One segment on onnxruntime: how its session is set up, and how values go in and come out without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.attributes import get_string, subgraphs
from cleave_plan.onnx_io.matrix_work import STANDARD
from cleave_plan.onnx_io.refusal import RefusedError, Value, or_refused
from cleave_plan.onnx_io.segments import Segment

Array = NDArray[Any]
Room = Callable[[tuple[int, ...], DType], Array]
"""Makes an array without values, of a shape and a type."""

LARGE_BYTES = 1 << 16
"""Results of this size are written where the caller wants them; smaller ones are not worth it."""

SHARED_ELEMENTS = 1 << 16
"""A segment with so many elements of results is worth several threads."""

_EMBED_BELOW_BYTES = 1024

_EXCHANGED = frozenset(
    {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
)  # fmt: skip

# Operators whose fusions keep the values of each: products of exponentials, norms and activations in floating point.
_FUSIBLE = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Tanh", "Erf", "Sigmoid", "Relu", "Exp", "Neg", "Reciprocal", "ReduceMean",
        "LayerNormalization", "SkipLayerNormalization", "Softmax", "Gelu", "Cast", "Identity", "Reshape", "Transpose", "Split",
        "Squeeze", "Unsqueeze", "Flatten", "Concat", "Slice", "Gather", "Shape", "Expand", "MaxPool", "AveragePool",
        "GlobalAveragePool", "BatchNormalization", "Clip", "HardSigmoid", "HardSwish",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Where large results go: ``room`` makes an array for one, ``shapes`` are the shapes that tensors are expected to have.

    ``threads`` is how many a segment with large results may take.
    """

    room: Room | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    threads: int = 1

    def threads_for(self, segment: Segment) -> int:
        """Threads for a segment: several only where there is enough to share out, and where they do not change the results."""
        elements = sum(prod(self.shapes.get(name, ())) for name in segment.outputs)
        return self.threads if elements >= SHARED_ELEMENTS and not any(map(_races, segment.nodes)) else 1


def _races(node: onnx.NodeProto) -> bool:
    """Whether several threads of onnxruntime can get ``node``, or one in its bodies, wrong.

    Its ScatterND shares rows out to threads without a lock: with a reduction, and two rows at one place, sums are lost (version
    1.32: in up to every run with two threads).
    """
    reduces = node.op_type == "ScatterND" and get_string(node, "reduction", "none") != "none"
    return reduces or any(_races(inner) for body in subgraphs(node) for inner in body.node)


def session_options(ort: Any, *, threads: int = 1, fuse: bool = False) -> Any:
    """Options of a session: no chatter, threads that do not spin, and only rewritings that keep the values.

    Fusions of several operators into one (``fuse``) do not always: quantised pairs round differently, an attribute that the
    fused operator does not know is lost. A run must agree with the model as it is written.
    """
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED if fuse else levels.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The cores belong to the workers as soon as a segment is done.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _make_arena(ort)
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


@cache
def _make_arena(ort: Any) -> None:
    """Make the arena from which all sessions of this process take memory, once.

    Each would have its own otherwise, and keep what its largest run took: a model that is run as a hundred segments would keep
    the intermediate values of all of them.
    """
    kind = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(kind, None)


def may_fuse(nodes: Iterable[onnx.NodeProto]) -> bool:
    """Whether all of a segment's operators are those whose fusions keep the values."""
    return all(node.domain in STANDARD and node.op_type in _FUSIBLE for node in nodes)


class BoundSession:
    """A session and the constants that it reads; large results are written into arrays of ``outlets``."""

    def __init__(self, session: Any, outputs: Sequence[str], constants: Sequence[Any], outlets: Outlets) -> None:
        self._session, self._outputs, self._outlets = session, list(outputs), outlets
        self._constants = constants  # onnxruntime reads them where they are
        self._bound = {} if outlets.room is None else self._bindable()

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Results by name for the inputs ``values``; raises RefusedError for what onnxruntime refuses."""
        refuse_foreign_types(values.values())
        if self._bound and all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in values.values()):
            found = self._run_bound(values)
            if found is not None:
                return found
        results = or_refused(lambda: self._session.run(self._outputs, dict(values)))
        return dict(zip(self._outputs, results, strict=True))

    def _bindable(self) -> dict[str, tuple[tuple[int, ...], DType]]:
        found = {}
        dtypes = {info.name: _dtype_of(info.type) for info in self._session.get_outputs()}
        for name in self._outputs:
            dtype, shape = dtypes[name], self._outlets.shapes.get(name)
            if dtype is not None and shape is not None and dtype.bytes_of(prod(shape)) >= LARGE_BYTES:
                found[name] = (shape, dtype)
        return found

    def _run_bound(self, values: Mapping[str, Value]) -> dict[str, Value] | None:
        """Results with the large ones in place; None when one has another shape than was expected."""
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        assert self._outlets.room is not None
        arrays = {name: self._outlets.room(shape, dtype) for name, (shape, dtype) in self._bound.items()}
        for name in self._outputs:
            array = arrays.get(name)
            if array is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.__array_interface__["data"][0])
        try:
            self._session.run_with_iobinding(binding)
        except Exception:  # the plain run says whether it was the shape of an output or a refusal
            self._bound = {}
            return None
        rest = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        return {name: arrays[name] if name in arrays else rest[name].numpy() for name in self._outputs}


def refuse_foreign_types(values: Iterable[Value]) -> None:
    """Raise RefusedError for element types that onnxruntime does not exchange with NumPy (bfloat16 and smaller floats)."""
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.isbuiltin != 1:
            raise RefusedError(f"element type {value.dtype.name} cannot be handed to onnxruntime")


def is_large(array: Array) -> bool:
    """Whether a constant is handed to a session beside its model, and not inside it."""
    return array.nbytes >= _EMBED_BELOW_BYTES and array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub"


def constant_of(name: str, array: Array) -> onnx.TensorProto:
    """An initialiser with its data, or without where that is handed over beside the model."""
    if not is_large(array):
        return numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", "handed-over"), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def _dtype_of(text: str) -> DType | None:
    """The element type that onnxruntime calls ``tensor(...)``; None for sequences, maps and text."""
    inner = text.removeprefix("tensor(").removesuffix(")")
    name = {"float": "float32", "double": "float64"}.get(inner, inner)
    return DType(name) if name in _EXCHANGED else None
