"""Opening a model file: its bytes become a graph without functions, in an order that can be executed.

Weights that lie beside the file are not opened. What cannot be a model is refused here, with the reason, so that the
rooms behind this one can rely on: a graph, an operator-set version, each tensor defined once and before it is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import onnx
from onnx import inliner

from cleave_plan.errors import InputFileError
from cleave_plan.onnx_io.order import sort_nodes
from cleave_plan.onnx_io.text import refuse_damaged
from cleave_plan.onnx_io.views import NodeView

_EXPORT_AGAIN = "export or download the model again"
_FIRST_IR_WITH_OPSETS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFile:
    """A model as read: ``model`` has its local functions inlined and its nodes sorted; ``sha256`` is of the file.

    ``nodes`` are views of the nodes of the outermost graph.
    """

    path: Path
    sha256: str
    model: onnx.ModelProto
    nodes: tuple[NodeView, ...]

    @property
    def opsets(self) -> dict[str, int]:
        """Operator-set version of each domain ("" for standard ONNX, 1 when the file names none)."""
        versions = {entry.domain: int(entry.version) for entry in self.model.opset_import[:]}
        standard = versions.pop("ai.onnx", 1)
        return {"": standard} | versions


def read_model(path: Path) -> ModelFile:
    """Read the model at ``path`` without external data.

    Raises InputFileError: no such file, a folder, empty, truncated, not ONNX, without a graph, recursive functions, a
    cycle, a tensor that is defined twice or never.
    """
    return read_bytes(_read_bytes(path), path)


def read_bytes(data: bytes, path: Path) -> ModelFile:
    """The model whose file holds ``data``, at ``path`` or (a model made here) where its weights lie; raises as read_model."""
    model = _parse(data, path)
    refuse_damaged((entry.domain for entry in model.opset_import[:]), str(path))
    digest = hashlib.sha256(data).hexdigest()
    del data
    if model.functions:
        model = _inline(model, path)
    nodes = sort_nodes(model.graph, str(path))
    return ModelFile(path=path, sha256=digest, model=model, nodes=nodes)


def parse_model(path: Path) -> onnx.ModelProto:
    """The model at ``path`` exactly as it is written; raises InputFileError for what is no model."""
    return _parse(_read_bytes(path), path)


def _read_bytes(path: Path) -> bytes:
    try:
        kind = path.stat().st_mode
        if S_ISDIR(kind):
            raise InputFileError("this is a folder", where=str(path), expected="an ONNX file", remedy="name the .onnx file in it")
        if not S_ISREG(kind):  # a pipe or a device may never end
            raise InputFileError("this is not a regular file", where=str(path), expected="an ONNX file")
        with path.open("rb", buffering=0) as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise InputFileError(
            "there is no such file", where=str(path), expected="an ONNX model", remedy="check the path"
        ) from None
    except (OSError, ValueError) as error:
        raise InputFileError(f"cannot be read: {error}", where=str(path), expected="a readable ONNX file") from None
    if not data:
        raise InputFileError("the file is empty", where=str(path), expected="an ONNX model", remedy=_EXPORT_AGAIN)
    return data


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # the DecodeError of protobuf, a package that only onnx itself depends on
        from cleave_plan.onnx_io.not_onnx import told_by

        what, remedy = told_by(data) or ("the file is truncated or is not ONNX", _EXPORT_AGAIN)
        raise InputFileError(what, where=str(path), expected="an ONNX model (protobuf)", remedy=remedy) from None
    if not model.HasField("graph"):
        raise InputFileError(
            "the file holds no graph", where=str(path), expected="an ONNX model with a graph", remedy=_EXPORT_AGAIN
        )
    if model.ir_version >= _FIRST_IR_WITH_OPSETS and not model.opset_import:
        raise InputFileError(
            "the model names no operator set (opset_import)", where=str(path), expected="a complete ONNX model",
            remedy=f"the file may be truncated: {_EXPORT_AGAIN}",
        )  # fmt: skip
    return model


def _inline(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Replace every call of a local function by its body (attribute references filled in)."""
    for function in model.functions:
        called = (part for node in function.node[:] for part in (node.op_type, node.domain))
        refuse_damaged((function.name, function.domain, *called), str(path))
    _refuse_recursion(model, path)
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # the inliner raises bare RuntimeErrors and its own types, without a common base
        raise InputFileError(
            f"a local function cannot be inlined: {error}", where=str(path), expected="functions that the model calls correctly"
        ) from None


def _refuse_recursion(model: onnx.ModelProto, path: Path) -> None:
    """Functions that call themselves have no finite inlining (and some inliners do not notice)."""
    waiting = {
        (function.domain, function.name): {(node.domain, node.op_type) for node in function.node[:]}
        for function in model.functions
    }
    while waiting:
        ready = [key for key, called in waiting.items() if not called & waiting.keys()]
        if not ready:
            domain, name = min(waiting)
            raise InputFileError(
                f"the local function {domain}::{name} calls itself", where=str(path), expected="functions without recursion"
            )
        for key in ready:
            del waiting[key]
