"""Facts of tensors that stand in the file: initialisers and Constant nodes. Headers only, and the values of small ones."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.external import is_external, locate
from cleave_plan.onnx_io.facts import RAW_TYPES, UNKNOWN, Fact, Value, fact_of_value, is_small, tensor_to_array

RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
"""Operators that give other values at each run."""

_SHORT_BYTES = 64
"""Tensors of so few bytes are read once, however many of a model hold the same."""


def tensor_fact(tensor: onnx.TensorProto, model: Path) -> Fact:
    """What a tensor's header says, and its values when it is small.

    A small tensor that lies outside the file (``model``) is read when the data is there. Raises InputFileError when the
    header or the data of a small tensor is damaged.
    """
    elem, sizes = tensor.data_type, tuple(tensor.dims[:])
    if sizes and min(sizes) < 0:
        where = f"{model}: tensor {tensor.name!r}"
        raise InputFileError(f"the tensor has the shape {list(sizes)}", where=where, expected="sizes of 0 or more")
    if not is_small(elem, sizes):
        return Fact(elem=elem, shape=sizes)
    try:
        if is_external(tensor):
            value = _outside_value(tensor, sizes, model.parent)
        elif elem in RAW_TYPES and 0 < len(raw := tensor.raw_data) <= _SHORT_BYTES:
            return _short_fact(elem, sizes, raw)
        else:
            value = tensor_to_array(tensor)
    except ValueError as error:
        where = f"{model}: tensor {tensor.name!r}"
        raise InputFileError(str(error), where=where, expected="as many bytes as the shape needs") from None
    return Fact(elem=elem, shape=sizes) if value is None else fact_of_value(value, elem)


@lru_cache(maxsize=1024)
def _short_fact(elem: int, sizes: tuple[int, ...], raw: bytes) -> Fact:
    """The fact of a tensor of a few bytes, as a model has the same few axes and bounds everywhere; ValueError when they do not
    fit."""
    return fact_of_value(np.frombuffer(raw, RAW_TYPES[elem]).reshape(sizes), elem)


def initialiser_facts(graph: onnx.GraphProto, model: Path) -> dict[str, Fact]:
    """Facts of a graph's initialisers; a sparse one has the shape of the tensor that it stands for."""
    facts = {tensor.name: tensor_fact(tensor, model) for tensor in graph.initializer[:]}
    for sparse in graph.sparse_initializer[:]:
        facts[sparse.values.name] = Fact(elem=sparse.values.data_type, shape=tuple(int(size) for size in sparse.dims[:]))
    return facts


def _outside_value(tensor: onnx.TensorProto, sizes: tuple[int, ...], folder: Path) -> Value | None:
    data = locate(tensor, folder)
    if not data.present:
        return None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).newbyteorder("<")
    count = int(np.prod(sizes, dtype=np.int64))
    with data.path.open("rb") as file:
        file.seek(data.offset)
        content = file.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        return None
    value: Value = np.frombuffer(content, dtype=dtype).reshape(sizes).astype(dtype.newbyteorder("="))
    return value


def constant_fact(attributes: Iterable[onnx.AttributeProto], model: Path) -> Fact:
    """The output of a Constant node with these attributes, whichever of them holds the value."""
    for attribute in attributes:
        name = attribute.name
        if name == "value":
            return tensor_fact(attribute.t, model)
        if name == "value_int":
            return fact_of_value(np.array(attribute.i, dtype=np.int64), onnx.TensorProto.INT64)
        if name == "value_ints":
            return fact_of_value(np.array(attribute.ints, dtype=np.int64), onnx.TensorProto.INT64)
        if name == "value_float":
            return fact_of_value(np.array(attribute.f, dtype=np.float32), onnx.TensorProto.FLOAT)
        if name == "value_floats":
            return fact_of_value(np.array(attribute.floats, dtype=np.float32), onnx.TensorProto.FLOAT)
        if name == "value_string":
            return Fact(elem=onnx.TensorProto.STRING, shape=())
        if name == "value_strings":
            return Fact(elem=onnx.TensorProto.STRING, shape=(len(attribute.strings),))
        if name == "sparse_value":
            sparse = attribute.sparse_tensor
            return Fact(elem=sparse.values.data_type, shape=tuple(int(size) for size in sparse.dims[:]))
    return UNKNOWN
