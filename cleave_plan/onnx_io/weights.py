"""Reading the initialisers of a model: when they are asked for, mapped rather than copied where that is possible.

Data beside the model is only read from the model's own folder (:mod:`cleave_plan.onnx_io.external`), and only when the
file holds exactly the bytes that the tensor's shape and type take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.external import ExternalData, is_external, locate
from cleave_plan.onnx_io.matrix_work import STANDARD

Array = NDArray[Any]

_HALF_BYTE_TYPES = frozenset(
    getattr(onnx.TensorProto, name) for name in ("INT4", "UINT4", "FLOAT4E2M1") if hasattr(onnx.TensorProto, name)
)


class Weights(Mapping[str, Array]):
    """The constants of a model's main graph by tensor name: initialisers and the outputs of Constant nodes.

    Arrays are read-only views of the mapped file where the data lies beside the model. Reading one raises InputFileError
    that names the file and the tensor when its data is absent, short, outside the model's folder or inconsistent.
    """

    def __init__(self, model: onnx.ModelProto, path: Path) -> None:
        self._folder = path.parent
        self._where = str(path)
        self._tensors: dict[str, onnx.TensorProto | onnx.SparseTensorProto | onnx.NodeProto] = {
            tensor.name: tensor for tensor in model.graph.initializer
        }
        self._tensors |= {tensor.values.name: tensor for tensor in model.graph.sparse_initializer}
        self._tensors |= {node.output[0]: node for node in model.graph.node if is_constant(node)}
        self._maps: dict[Path, NDArray[np.uint8]] = {}
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            self._read[name] = self._load(self._tensors[name])
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def embed(self, tensor: onnx.TensorProto) -> None:
        """Bring the external data of ``tensor`` (one inside a subgraph or an attribute) into the message itself."""
        if is_external(tensor):
            data = self._external_bytes(tensor)
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = data.tobytes()

    def check_external(self) -> None:
        """Make sure that all data beside the model is there and fits; raises InputFileError for the first that is not."""
        for tensor in self._tensors.values():
            if isinstance(tensor, onnx.TensorProto) and is_external(tensor):
                self._external_bytes(tensor)

    def _load(self, source: onnx.TensorProto | onnx.SparseTensorProto | onnx.NodeProto) -> Array:
        if isinstance(source, onnx.TensorProto):
            return self._dense(source)
        if isinstance(source, onnx.SparseTensorProto):
            return self._sparse(source)
        attribute = source.attribute[0]
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self._dense(attribute.t)
        if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            return self._sparse(attribute.sparse_tensor)
        kind = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        array: Array = np.array(helper.get_attribute_value(attribute), kind.get(attribute.name, np.object_))
        return array

    def _dense(self, tensor: onnx.TensorProto) -> Array:
        if any(size < 0 for size in tensor.dims):
            raise self._fault(tensor, f"its shape {tuple(tensor.dims)} is negative", "sizes of 0 or more")
        if is_external(tensor):
            return self._external(tensor)
        try:
            array: Array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise self._fault(tensor, f"its data does not fit its shape and type: {error}", "a complete model file") from None
        return array

    def _sparse(self, tensor: onnx.SparseTensorProto) -> Array:
        """The dense array of a sparse initialiser: values at linear or per-axis positions."""
        values, places = self._dense(tensor.values), self._dense(tensor.indices)
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        try:
            if places.ndim == 1:
                dense.reshape(-1)[places] = values
            else:
                dense[tuple(places.T)] = values
        except (IndexError, ValueError) as error:
            raise self._fault(tensor.values, f"its positions do not fit its shape: {error}", "positions inside") from None
        return dense

    def _external(self, tensor: onnx.TensorProto) -> Array:
        data = self._external_bytes(tensor)
        if tensor.data_type in _HALF_BYTE_TYPES:
            whole = onnx.TensorProto()
            whole.CopyFrom(tensor)
            self.embed(whole)
            packed: Array = numpy_helper.to_array(whole)
            return packed
        array: Array = data.view(helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tuple(tensor.dims))
        return array

    def _external_bytes(self, tensor: onnx.TensorProto) -> NDArray[np.uint8]:
        """The tensor's bytes as a view of the mapped file, exactly as many as its shape and type take."""
        try:
            needed = _bytes_of(tensor)
        except KeyError:
            raise self._fault(tensor, f"element type {tensor.data_type} cannot lie beside a model", "a numeric type") from None
        place = locate(tensor, self._folder)
        if place.length not in (None, needed):
            raise self._fault(tensor, f"{place.path} is said to hold {place.length} bytes of it", f"{needed} bytes")
        if not needed:
            return np.empty(0, np.uint8)
        file = self._mapped(place, tensor)
        if place.offset + needed > len(file):
            raise self._fault(
                tensor, f"{place.path} has {len(file)} bytes", f"at least {place.offset + needed} (offset and size)",
                "copy the data file again: it is shorter than the model says",
            )  # fmt: skip
        return file[place.offset : place.offset + needed]

    def _mapped(self, place: ExternalData, tensor: onnx.TensorProto) -> NDArray[np.uint8]:
        if place.path not in self._maps:
            if not place.path.is_file():
                raise self._fault(
                    tensor, f"its data file {place.path} is absent", "the weights beside the model",
                    "put the file there; a plan needs no weights, but a run does",
                )  # fmt: skip
            try:
                self._maps[place.path] = np.memmap(place.path, np.uint8, "r")
            except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
                raise self._fault(tensor, f"{place.path} cannot be read: {error}", "a readable data file") from None
        return self._maps[place.path]

    def _fault(self, tensor: onnx.TensorProto, what: str, expected: str, remedy: str = "") -> InputFileError:
        return InputFileError(what, where=f"{self._where}: tensor {tensor.name!r}", expected=expected, remedy=remedy)


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a Constant of standard ONNX."""
    return node.op_type == "Constant" and node.domain in STANDARD and len(node.attribute) == 1


def _bytes_of(tensor: onnx.TensorProto) -> int:
    elements: int = prod(tensor.dims)
    if tensor.data_type in _HALF_BYTE_TYPES:
        return (elements + 1) // 2
    if tensor.data_type == onnx.TensorProto.STRING:
        raise KeyError(tensor.data_type)
    return elements * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
