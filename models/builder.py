"""The one builder core: records nodes and parameters, and writes them as an ONNX model.

Initialisers are the model's parameters and nothing else (scalars and shapes are Constant nodes), so that the number
of initialiser elements is the parameter count. A node's single output carries the node's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
PRODUCER = "cleave-plan models"
ALIGNMENT = 4096  # offsets in the weights file, so that a reader may map it

Dim = int | str
"""A dimension: a size, or the name of a symbolic one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The free dimensions of a model: sizes, or the names that leave them symbolic.

    ``past``: tokens in the key-value cache of a decoding step; ``None`` for a model without a cache.
    """

    batch: Dim = "batch"
    seq: Dim = "seq"
    past: Dim | None = None


class Init(Enum):
    """How a seeded parameter is drawn (a weightless one ignores it)."""

    WEIGHT = "normal, standard deviation 1/sqrt(fan-in)"
    EMBEDDING = "normal, standard deviation 0.1"
    BIAS = "normal, standard deviation 0.1"
    SCALE = "1 + normal, standard deviation 0.1"
    VARIANCE = "uniform from 0.5 to 1.5"


class WeightSource(Protocol):
    """Where parameters come from: makes the initialiser of one tensor of ``shape`` and ``dtype`` (fan-in in elements)."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], init: Init, fan_in: int) -> TensorProto: ...


class Weightless:
    """Declares each parameter as external data of a file that nobody writes: shape, type, offset and length, no values."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._offset = 0

    def tensor(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], init: Init, fan_in: int) -> TensorProto:
        """An initialiser with ``location``, ``offset`` and ``length`` (bytes) and no data."""
        length = prod(shape) * dtype.itemsize
        tensor = TensorProto(name=name, dims=shape, data_type=helper.np_dtype_to_tensor_dtype(dtype))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._location), ("offset", self._offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self._offset += -(-length // ALIGNMENT) * ALIGNMENT
        return tensor


class Seeded:
    """Draws each parameter from a generator of its own, keyed by ``(seed, name)``: one more parameter changes no other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def tensor(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], init: Init, fan_in: int) -> TensorProto:
        """An initialiser with its values inside the model."""
        rng = np.random.default_rng([self._seed, crc32(name.encode())])
        values: npt.NDArray[np.float32]
        if init is Init.VARIANCE:
            values = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            deviation = {Init.WEIGHT: fan_in**-0.5, Init.EMBEDDING: 0.1, Init.BIAS: 0.1, Init.SCALE: 0.1}[init]
            values = rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
            if init is Init.SCALE:
                values += np.float32(1)
        return numpy_helper.from_array(values.astype(dtype), name)


class GraphBuilder:
    """Records one graph. ``dtype`` is the floating type of parameters and activations."""

    def __init__(self, name: str, dtype: np.dtype[np.generic], weights: WeightSource, dims: Dims) -> None:
        self.dims = dims
        self.dtype = dtype
        self._name = name
        self._weights = weights
        self._scope: list[str] = []
        self._nodes: list[onnx.NodeProto] = []
        self._node_names: set[str] = set()
        self._parameters: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix every name made inside with ``name.``; scopes nest."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def path(self, name: str) -> str:
        """``name`` with the prefixes of the open scopes."""
        return ".".join([*self._scope, name])

    def input(self, name: str, shape: Sequence[Dim], dtype: npt.DTypeLike | None = None) -> str:
        """A graph input, of the model's own type unless ``dtype`` is given."""
        self._inputs.append(helper.make_tensor_value_info(name, self._onnx_type(dtype), shape))
        return name

    def output(self, tensor: str, name: str, shape: Sequence[Dim]) -> None:
        """Declare ``tensor`` as the graph output ``name``, of the model's own type."""
        self.add("Identity", tensor, name=f"output.{name}", output=name)
        self._outputs.append(helper.make_tensor_value_info(name, self._onnx_type(None), shape))

    def parameter(self, name: str, shape: Sequence[int], init: Init = Init.WEIGHT, *, fan_in: int | None = None) -> str:
        """A trainable tensor, named in the open scopes; asking for the same name again shares it (tied weights).

        ``fan_in`` is the first axis unless given.
        """
        full, sizes = self.path(name), tuple(shape)
        if full not in self._parameters:
            self._parameters[full] = self._weights.tensor(full, sizes, self.dtype, init, fan_in or sizes[0])
        elif tuple(self._parameters[full].dims) != sizes:
            raise ValueError(f"parameter {full} is asked for as {sizes} and is {tuple(self._parameters[full].dims)}")
        return full

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """A Constant node, of the model's own type unless ``dtype`` is given; equal values share one node."""
        array = np.asarray(value, dtype=self.dtype if dtype is None else dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._constants[key] = name
            self._append(helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(array, name)))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """A Constant of int64 in one axis: shapes, axes, indices."""
        return self.constant(values, np.int64)

    def add(self, op: str, *inputs: str, name: str, output: str | None = None, **attributes: object) -> str:
        """A node with one output; returns its tensor, which is called like the node unless ``output`` is given."""
        return self.add_many(op, *inputs, name=name, outputs=[output or self.path(name)], **attributes)[0]

    def add_many(self, op: str, *inputs: str, name: str, outputs: Sequence[str], **attributes: object) -> list[str]:
        """A node with the outputs that are named in full."""
        self._append(helper.make_node(op, list(inputs), list(outputs), name=self.path(name), **attributes))
        return list(outputs)

    def model(self) -> onnx.ModelProto:
        """The finished model; Constant nodes first, as they feed any other."""
        order = sorted(self._nodes, key=lambda node: node.op_type != "Constant")
        graph = helper.make_graph(order, self._name, self._inputs, self._outputs, list(self._parameters.values()))
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name=PRODUCER)

    def _onnx_type(self, dtype: npt.DTypeLike | None) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype if dtype is None else dtype)))

    def _append(self, node: onnx.NodeProto) -> None:
        if node.name in self._node_names:
            raise ValueError(f"two nodes are named {node.name}")
        self._node_names.add(node.name)
        self._nodes.append(node)
