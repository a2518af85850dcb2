"""The arrays that a run starts from and ends with: checked, read from a file, made up, and written."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cleave_plan.atomic import replace_file
from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError, InputFileError
from cleave_plan.execution.cores import memory_bytes
from cleave_plan.kernels.arrays import Array, numpy_dtype
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.index_bounds import index_bounds
from cleave_plan.workload.graph import TensorInfo


def check_inputs(imported: ImportedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``inputs`` as arrays of the types and shapes that the model, as bound, expects.

    An initialiser that the file lists as an input may be given or left out. Raises InputFileError that says what is
    expected when a name is unknown or missing, or a shape or type differs; nothing is converted silently.
    """
    where = f"inputs of {imported.path.name}"
    expected = {info.name: info for info in imported.workload.inputs}
    listing = "; ".join(_describe(info, imported) for info in expected.values()) or "no inputs"
    optional = {value.name for value in imported.model.graph.input}
    for name in inputs:
        if name not in expected and name not in optional:
            raise InputFileError(f"the model has no input {name!r}", where=where, expected=listing)
    missing = [name for name in expected if name not in inputs]
    if missing:
        raise InputFileError(f"no array for {', '.join(map(repr, missing))}", where=where, expected=listing)
    return {name: _checked(value, expected.get(name), imported, name, where) for name, value in inputs.items()}


def _checked(value: Any, info: TensorInfo | None, imported: ImportedModel, name: str, where: str) -> Any:
    if info is None:  # a default that the caller replaces: its shape and type are those of the initialiser
        info = TensorInfo(name=name, dtype=imported.tensor_dtypes[name].value, shape=imported.tensor_shapes[name])
    if not info.dtype:
        return value
    array = np.asarray(value)
    dtype = DType(info.dtype)
    if dtype is DType.BFLOAT16 and array.dtype == np.dtype("V2"):  # what an .npz file makes of it
        array = array.view(numpy_dtype(dtype))
    if not _same_type(array, dtype):
        raise InputFileError(f"{name!r} holds {array.dtype.name}", where=where, expected=_describe(info, imported))
    known = info.shape or name in imported.tensor_shapes
    fits = len(array.shape) == len(info.shape) and all(
        size in (-1, own) for size, own in zip(info.shape, array.shape, strict=True)
    )
    if known and not fits:
        raise InputFileError(f"{name!r} has the shape {list(array.shape)}", where=where, expected=_describe(info, imported))
    return array


def _same_type(array: Array, dtype: DType) -> bool:
    if dtype is DType.STRING:
        return array.dtype.kind in "OUS"
    if dtype in (DType.FLOAT8, DType.FLOAT4):  # several formats share the size
        return array.dtype.name.startswith(dtype.value)
    return array.dtype.name == dtype.value


def _describe(info: TensorInfo, imported: ImportedModel) -> str:
    known = info.shape or info.name in imported.tensor_shapes
    sizes = ", ".join("any" if size < 0 else str(size) for size in info.shape)
    return f"{info.name!r}: {info.dtype or 'not a tensor'}{f' [{sizes}]' if known else ''}"


def random_inputs(imported: ImportedModel, *, seed: int = 0) -> dict[str, Array]:
    """Inputs for a run without data: the same for the same seed.

    Floats are standard normal; whole numbers that index an axis (token numbers) lie within it, bytes are anything, and
    other whole numbers and booleans are 0 or 1. Raises InputFileError for an input whose shape or type leaves nothing to draw.
    """
    rng = np.random.default_rng(seed)
    bounds = index_bounds(imported.model.graph, imported.tensor_shapes)
    return {info.name: _draw(info, bounds.get(info.name), imported, rng) for info in imported.workload.inputs}


def _draw(info: TensorInfo, bound: int | None, imported: ImportedModel, rng: np.random.Generator) -> Array:
    open_size = info.name not in imported.tensor_shapes
    if open_size or info.dtype in ("", "float8", "float4", "int4", "uint4"):
        raise InputFileError(
            f"no value can be made up for {_describe(info, imported)}", where=f"inputs of {imported.path.name}",
            expected="a tensor of a known shape and a plain type",
            remedy="bind its sizes with --dim or --shape when planning, or give the inputs in a file",
        )  # fmt: skip
    dtype = DType(info.dtype)
    nbytes = dtype.bytes_of(prod(info.shape))
    if nbytes > memory_bytes():
        raise InputFileError(
            f"{_describe(info, imported)} takes {nbytes} bytes", where=f"inputs of {imported.path.name}",
            expected=f"inputs that fit into this machine's {memory_bytes()} bytes of memory", remedy="plan with smaller sizes",
        )  # fmt: skip
    if dtype is DType.STRING:
        return np.full(info.shape, "text", dtype=object)
    if dtype.value.startswith(("float", "bfloat", "complex")):
        return rng.standard_normal(info.shape).astype(numpy_dtype(dtype))
    low, high = 0, 2 if bound is None else bound
    if bound is None and dtype in (DType.INT8, DType.UINT8):
        limits = np.iinfo(numpy_dtype(dtype))
        low, high = int(limits.min), int(limits.max) + 1
    return rng.integers(low, max(high, low + 1), info.shape).astype(numpy_dtype(dtype))


def load_inputs(path: str | Path) -> dict[str, Array]:
    """The arrays of an ``.npz`` file by name; raises InputFileError for anything else, pickled objects included.

    Nothing is unpacked before the file's directory and the arrays' headers say that it fits into this machine's memory.
    """
    where = str(path)
    expected = "an .npz file of arrays (numpy.savez) named like the model's inputs"
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise InputFileError("the file holds one array without a name", where=where, expected=expected)
        with content:
            _check_sizes(content.zip, where)
            return {name: content[name] for name in content.files}
    except FileNotFoundError:
        raise InputFileError("there is no such file", where=where, expected=expected, remedy="check the path") from None
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputFileError(f"the file cannot be read: {error}", where=where, expected=expected) from None


def _check_sizes(archive: zipfile.ZipFile, where: str) -> None:
    """Raise InputFileError when the arrays do not fit into memory, or a header claims more than its member holds."""
    limit = memory_bytes()
    total = sum(member.file_size for member in archive.infolist())
    if total > limit:
        raise InputFileError(
            f"it unpacks to {total} bytes", where=where, expected=f"at most the {limit} bytes of memory of this machine"
        )
    for member in archive.infolist():
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            if not dtype.hasobject and prod(shape) * dtype.itemsize > member.file_size:
                raise InputFileError(
                    f"{member.filename!r} claims the shape {list(shape)}", where=where,
                    expected=f"arrays that are there: it holds {member.file_size} bytes",
                )  # fmt: skip


def save_outputs(outputs: Mapping[str, Any], path: str | Path) -> None:
    """Write outputs to an ``.npz`` file, beside its place first and then renamed.

    The members of a sequence become ``NAME/0``, ``NAME/1`` and so on. Types that NumPy's format lacks are widened without
    loss (bfloat16 to float32). Raises ExecutionError when the file cannot be written.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in _members(outputs.items()):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _storable(array), allow_pickle=False)
    try:
        replace_file(Path(path), buffer.getvalue())
    except OSError as error:
        raise ExecutionError(
            f"the outputs cannot be written: {error.strerror}", where=str(path), remedy="choose a folder that can be written"
        ) from None


def _members(outputs: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Array]]:
    for name, value in outputs:
        if isinstance(value, list):
            yield from _members((f"{name}/{place}", member) for place, member in enumerate(value))
        elif value is not None:
            yield name, np.asarray(value)


def _storable(array: Array) -> Array:
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin == 1:
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)
