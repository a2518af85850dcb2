"""Writing trained weights back: the model's own file with other values in its initialisers, and nothing else changed."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    above ``embedded_bytes`` all of them lie beside it, in ``out``'s name with ``.data`` behind it. Raises InputFileError when a
    weight that was not trained cannot be read, and ExecutionError when ``out`` cannot be written: hours of training are not to
    end with a full disk, so the model is then left in the folder for temporary files, where there is room, and the error says so.
    """
    arrays = dict(values) | {copy: np.asarray(values[table]).T for copy, table in ties.items()}
    try:
        _write(_filled(source, arrays), out, embedded_bytes)
    except OSError as error:
        rescued = _rescued(source, arrays, out.name, embedded_bytes)
        raise ExecutionError(
            f"the trained model cannot be written: {error.strerror or error}", where=str(out),
            remedy="make room or choose another place; a run with --checkpoint goes on with --resume, and only writes it"
            if rescued is None else f"it lies in {rescued} instead: move it from there",
        ) from None  # fmt: skip


def _filled(source: Path, arrays: Mapping[str, Array]) -> onnx.ModelProto:
    """The model at ``source`` with ``arrays`` in the initialisers of those names, all weights inside."""
    model = parse_model(source)
    weights = Weights(model, source)
    for tensor in model.graph.initializer:
        if tensor.name not in arrays:
            weights.embed(tensor)
            continue
        for field in _FIELDS:
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = np.ascontiguousarray(arrays[tensor.name]).tobytes()
    return model


def _write(model: onnx.ModelProto, out: Path, embedded_bytes: int) -> None:
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > embedded_bytes:
        _move_beside(model, out.with_name(f"{out.name}.data"))
    replace_file(out, model.SerializeToString())


def _rescued(source: Path, arrays: Mapping[str, Array], name: str, embedded_bytes: int) -> Path | None:
    """Where the model lies now, in a new folder for temporary files; None when it cannot be written there either."""
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="cleave-plan-trained-"))
        _write(_filled(source, arrays), folder / name, embedded_bytes)
    except OSError:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder / name


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
