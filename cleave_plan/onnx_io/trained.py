"""Writing trained weights back: the model's own file with other values in its initialisers, and nothing else changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from cleave_plan.atomic import beside, replace_file
from cleave_plan.errors import ExecutionError
from cleave_plan.onnx_io.reader import parse_model
from cleave_plan.onnx_io.weights import Weights

Array = NDArray[Any]

EMBEDDED_BYTES = 1_900_000_000
"""Most bytes of weights inside the file: a protobuf message ends at 2 GiB."""

_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data", "raw_data", "external_data")


def write_trained(
    source: Path, values: Mapping[str, Array], ties: Mapping[str, str], out: Path, *, embedded_bytes: int = EMBEDDED_BYTES
) -> None:
    """Write the model at ``source`` to ``out`` with ``values`` in the initialisers of those names.

    ``ties`` maps initialisers to the one whose transpose they hold. Weights are inside the file, those beside ``source`` too;
    above ``embedded_bytes`` all of them lie beside it, in ``out``'s name with ``.data`` behind it. Raises ExecutionError when it
    cannot be written, InputFileError when a weight that was not trained cannot be read.
    """
    model = parse_model(source)
    weights = Weights(model, source)
    arrays = dict(values) | {copy: np.asarray(values[table]).T for copy, table in ties.items()}
    for tensor in model.graph.initializer:
        if tensor.name not in arrays:
            weights.embed(tensor)
            continue
        for field in _FIELDS:
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = np.ascontiguousarray(arrays[tensor.name]).tobytes()
    try:
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > embedded_bytes:
            _move_beside(model, out.with_name(f"{out.name}.data"))
        replace_file(out, model.SerializeToString())
    except OSError as error:
        raise ExecutionError(
            f"the trained model cannot be written: {error.strerror or error}", where=str(out),
            remedy="make room or choose another place; a run with --checkpoint goes on with --resume, and only writes it",
        ) from None  # fmt: skip


def _move_beside(model: onnx.ModelProto, path: Path) -> None:
    """Move the data of all initialisers into ``path``."""
    page = os.sysconf("SC_PAGE_SIZE")
    with beside(path) as file:
        for tensor in model.graph.initializer:
            data = tensor.raw_data
            if not data:
                continue
            file.write(b"\0" * (-file.tell() % page))  # runtimes map the file from such an offset
            entries = {"location": path.name, "offset": str(file.tell()), "length": str(len(data))}
            file.write(data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
