"""Builders for the import tests: a model in a few words, saved and imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.onnx_io.importer import ImportedModel, load_model

Dims = Sequence[int | str | None] | None
FLOAT = TensorProto.FLOAT


def value(name: str, dims: Dims, elem: int = FLOAT) -> onnx.ValueInfoProto:
    """A typed graph input, output or inner tensor; ``dims`` None means without a shape."""
    return helper.make_tensor_value_info(name, elem, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims] | Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    **fields: Any,
) -> onnx.ModelProto:
    """A model; ``constants`` are arrays or TensorProtos, ``fields`` further fields of make_graph and make_model."""
    given = [value(name, dims) for name, dims in inputs.items()] if isinstance(inputs, Mapping) else list(inputs)
    made = [helper.make_empty_tensor_value_info(name) if isinstance(name, str) else name for name in outputs]
    tensors = [
        item if isinstance(item, TensorProto) else numpy_helper.from_array(np.asarray(item), name)
        for name, item in (constants or {}).items()
    ]
    functions = fields.pop("functions", ())
    domains = fields.pop("domains", ())
    graph = helper.make_graph(list(nodes), "graph", given, made, tensors, **fields)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=list(functions))


def outside(name: str, dims: Sequence[int], elem: int = FLOAT, **entries: str) -> TensorProto:
    """A weight whose data lies in a file beside the model (``location`` unless given: weights.bin)."""
    tensor = TensorProto(name=name, data_type=elem, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in ({"location": "weights.bin"} | entries).items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def weight(*dims: int) -> np.ndarray:
    """A float32 weight of the given shape (its values do not matter to an import)."""
    return np.ones(dims, dtype=np.float32)


def ints(*items: int) -> np.ndarray:
    """An int64 vector, as shapes and axes are written."""
    return np.array(items, dtype=np.int64)


def save(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    """Write the model; its path."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def load(folder: Path, proto: onnx.ModelProto, **bindings: Any) -> ImportedModel:
    """Write and import the model."""
    return load_model(save(folder, proto), **bindings)


def shapes_of(imported: ImportedModel) -> dict[str, tuple[int, ...]]:
    """GEMM name -> (batch, m, k, n)."""
    return {gemm.name: tuple(gemm.shape) for gemm in imported.workload.gemms}


def run_everything(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Tensors ``names`` as onnxruntime computes them with its optimisations off."""
    import onnxruntime

    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
