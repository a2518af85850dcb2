"""Models to mutate, and mutations: bytes that are damaged, and valid files that say something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import onnx
from import_cases import model, outside, value, weight
from onnx import TensorProto, helper

node = helper.make_node
Draw = Callable[[int, int], int]
"""A whole number between two bounds, both included."""

Change = Callable[[], object]
T = TypeVar("T")

SIZES = [-(2**63), -(2**31), -1, 0, 1, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]
OPERATORS = [
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "Reshape", "Slice", "Gather", "Expand", "Tile", "Range", "Pad",
    "ConstantOfShape", "Loop", "Scan", "If", "Concat", "Split", "Resize", "Constant", "QLinearMatMul", "Attention", "OneHot",
]  # fmt: skip
TEXTS = ["-1", "0", "9" * 30, "1e9", "../data.bin", "/etc/hostname", "", ".", "data.bin\0", "data.bin"]
NAMES = ["?", "N", "-1", ""]
DOMAINS = ["", "com.microsoft", "ai.onnx.ml", "none.such"]


def nested(depth: int) -> onnx.GraphProto:
    """A body that holds an If in an If, ``depth`` times."""
    nodes = [node("MatMul", ["x", "w"], ["r0"], name="product")]
    graph = helper.make_graph(nodes, "innermost", [], [value("r0", None)])
    for level in range(1, depth + 1):
        inner = node("If", ["c"], [f"r{level}"], name=f"if{level}", then_branch=graph, else_branch=graph)
        graph = helper.make_graph([inner], "body", [], [value(f"r{level}", None)])
    return graph


def own_models() -> Iterator[bytes]:
    """Small models with shape arithmetic, bodies, recurrence, convolutions, quantised pairs and data beside the file."""
    shapes = [
        node("Shape", ["x"], ["s"]), node("Slice", ["s"], ["front"], starts=[0], ends=[1]),
        node("Concat", ["front", "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["r"]), node("MatMul", ["r", "w"], ["y"]),
        node("Conv", ["image", "k"], ["z"], pads=[1, 1]), node("Expand", ["y", "s"], ["e"]),
        node("ConstantOfShape", ["t"], ["filled"]),
    ]  # fmt: skip
    constants = {"w": weight(3, 3), "minus": np.array([3], np.int64), "k": weight(2, 2, 3)}
    yield model(shapes, {"x": (3, 3), "image": (1, 2, 5)}, ["y", "z", "e"], constants, opset=9).SerializeToString()
    body = helper.make_graph(
        [node("MatMul", ["state", "w"], ["next"]), node("Identity", ["go"], ["on"])], "body",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("state", (2, 4))],
        [value("on", (), TensorProto.BOOL), value("next", (2, 4))],
    )  # fmt: skip
    loops = [
        node("Loop", ["n", "", "x"], ["looped"], name="loop", body=body),
        node("LSTM", ["seq", "lw", "lr"], ["", "h"], name="lstm", hidden_size=3),
        node("Einsum", ["x", "w"], ["e"], equation="ij,jk->ik"),
    ]
    weights = {"w": weight(4, 4), "n": np.array(5, np.int64), "lw": weight(1, 12, 4), "lr": weight(1, 12, 3)}
    yield model(loops, {"x": (2, 4), "seq": (5, 2, 4)}, ["looped", "h", "e"], weights).SerializeToString()
    branches = [node("If", ["c"], ["y"], name="if", then_branch=nested(4), else_branch=nested(2))]
    inputs = [value("x", (2, 4)), value("c", (), TensorProto.BOOL)]
    beside = outside("w", (4, 4), location="data.bin", offset="0", length="64")
    yield model(branches, inputs, ["y"], {"w": beside}).SerializeToString()


def damaged(content: bytes, number: Draw) -> bytes:
    """Bytes changed, cut off, taken out or doubled."""
    data = bytearray(content)
    kind = number(0, 3)
    start = number(0, len(data) - 1)
    if kind == 0:
        for _ in range(number(1, 6)):
            data[number(0, len(data) - 1)] = number(0, 255)
    elif kind == 1:
        del data[start:]
    else:
        stop = min(len(data), start + number(1, 40))
        data[start:stop] = data[start:stop] * 2 if kind == 2 else b""
    return bytes(data)


def swapped(content: bytes, number: Draw) -> bytes:
    """A valid file that says something else: sizes, types, operators, names and ranges of data changed for others."""
    proto = onnx.load_from_string(content)
    for _ in range(number(1, 3)):
        changes = [*_of_nodes(proto.graph, number), *_of_tensors(proto.graph, number), *_of_shapes(proto.graph, number)]
        changes += [partial(_set, entry, "version", number(0, 40)) for entry in proto.opset_import]
        _one(changes, number)()
    return proto.SerializeToString()


def _of_nodes(graph: onnx.GraphProto, number: Draw) -> Iterator[Change]:
    """Operators, domains, edges and attributes of one node for others, or for those of another node."""
    if not graph.node:
        return
    one, other = _one(graph.node, number), _one(graph.node, number)
    yield partial(_set, one, "op_type", _one(OPERATORS, number))
    yield partial(_set, one, "domain", _one(DOMAINS, number))
    yield from (partial(one.input.extend, names) for names in (other.input[:], other.output[:1]))
    yield partial(one.output.extend, other.input[:1])
    yield partial(one.attribute.extend, other.attribute[:])
    yield from (partial(one.ClearField, field) for field in ("input", "output", "attribute"))
    for attribute in one.attribute:
        yield partial(_set, attribute, "i", _one(SIZES, number))
        yield partial(attribute.ints.append, _one(SIZES, number))
        yield partial(_set, attribute, "type", number(0, 14))


def _of_tensors(graph: onnx.GraphProto, number: Draw) -> Iterator[Change]:
    """Shape, type, bytes and place of one initialiser."""
    if not graph.initializer:
        return
    tensor = _one(graph.initializer, number)
    yield partial(tensor.dims.append, _one(SIZES, number))
    yield partial(tensor.ClearField, "dims")
    yield partial(_set, tensor, "data_type", number(0, 26))
    yield partial(_set, tensor, "raw_data", b"\xff" * number(0, 64))
    yield partial(_set, tensor, "data_location", TensorProto.EXTERNAL)
    yield from (partial(_set, entry, "value", _one(TEXTS, number)) for entry in tensor.external_data)


def _of_shapes(graph: onnx.GraphProto, number: Draw) -> Iterator[Change]:
    """Sizes that the file declares."""
    for info in (*graph.input, *graph.value_info[:3], *graph.output):
        for dim in info.type.tensor_type.shape.dim:
            yield partial(_set, dim, "dim_value", _one(SIZES, number))
            yield partial(_set, dim, "dim_param", _one(NAMES, number))


def _one(items: Sequence[T], number: Draw) -> T:
    return items[number(0, len(items) - 1)]


def _set(message: object, field: str, content: object) -> None:
    setattr(message, field, content)
