"""Small ONNX models that between them hold every form of GEMM and every kind of server node that a run meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> Path:
    """Write a model; ``inputs`` are (element type, shape), outputs are typed by shape inference."""
    graph = helper.make_graph(
        list(nodes), "small",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Seeded float32 weights of the given shapes."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def transformer_block(path: Path, **options: Any) -> Path:
    """Embedding, two projections, scores over heads, softmax, context, a Gemm with bias, ArgMax: 6 GEMMs in 4 levels."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="q"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="k"),
        helper.make_node("MatMul", ["x", "wv"], ["v"], name="v"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["context"], name="context"),
        helper.make_node("Add", ["context", "x"], ["sum"]),
        helper.make_node("Reshape", ["sum", "flat"], ["rows"]),
        helper.make_node("Gemm", ["rows", "head", "bias"], ["logits"], name="head", transB=1, alpha=0.5, beta=2.0),
        helper.make_node("ArgMax", ["logits"], ["token"], axis=-1, keepdims=0),
    ]
    constants: dict[str, np.ndarray] = weights(0, table=(50, 8), wq=(8, 8), wk=(8, 8), wv=(8, 8), head=(11, 8), bias=(11,))
    constants["flat"] = np.array([-1, 8])
    return save(path, nodes, {"ids": (TensorProto.INT64, [2, 5])}, ["logits", "token"], constants, **options)


def convolutional(path: Path) -> Path:
    """Two convolutions (strides, groups, bias, auto_pad), batch normalisation, pooling and a classifier."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="c1", strides=[2, 1], dilations=[1, 2], pads=[1, 0, 1, 2]),
        helper.make_node("BatchNormalization", ["c1", "s", "o", "m", "v"], ["n1"], momentum=0.9),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="c2", group=2, strides=[2, 1], auto_pad="SAME_UPPER"),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"], name="classify"),
    ]
    constants = weights(1, w1=(4, 3, 3, 3), b1=(4,), s=(4,), o=(4,), m=(4,), w2=(6, 2, 3, 3), w3=(6, 5))
    constants["v"] = np.array([1, 2, 3, 4], np.float32)
    return save(path, nodes, {"x": (FLOAT, [3, 3, 9, 7])}, ["y"], constants)


def unsplit(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The whole model by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
