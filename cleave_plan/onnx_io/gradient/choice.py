"""Which tensors of a model are trained: its floating-point initialisers, but for those that are constants (with the reason)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod

import numpy as np
import onnx

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.elements import dtype_of
from cleave_plan.onnx_io.external import is_external
from cleave_plan.onnx_io.facts import Fact, tensor_to_array
from cleave_plan.onnx_io.order import node_label

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""Under this key PyTorch's exporter says what an initialiser was: PARAMETER, BUFFER or CONSTANT_TENSOR."""

_LARGEST_MASK = 1 << 24
"""Most elements of a tensor that is looked at to see whether it is a mask."""

_LOWEST = -1e4
"""Masks hold this or less, where nothing may be seen; no weight does."""


def choose(
    graph: onnx.GraphProto, inputs: Mapping[str, Fact], only: Sequence[str], freeze: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """``(names that get a gradient, in the file's order; floating-point initialisers that do not, with the reason)``.

    ``only``: patterns ("encoder.*") that names of initialisers or inputs must match; what matches is taken whatever it is.
    ``freeze``: patterns of names that are constants. Raises UsageError for a pattern that matches nothing.
    """
    statistics = _running_statistics(graph)
    kinds = {
        value.name: entry.value
        for value in (*graph.value_info, *graph.input)
        for entry in value.metadata_props
        if entry.key == KIND
    }
    known = [tensor.name for tensor in graph.initializer] + list(inputs)
    for option, patterns in (("--parameters", only), ("--freeze", freeze)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise UsageError(
                    f"no initialiser and no input of the model matches {pattern!r}",
                    where=option,
                    remedy="see `inspect` for names",
                )
    taken: list[str] = []
    constants: dict[str, str] = {}
    for tensor in graph.initializer:
        if not _is_float(tensor.data_type):
            continue
        if _matches(tensor.name, freeze):
            constants[tensor.name] = "frozen"
        elif only:
            if _matches(tensor.name, only):
                taken.append(tensor.name)
            else:
                constants[tensor.name] = "not among those asked for"
        else:
            reason = statistics.get(tensor.name) or _reason(tensor, kinds.get(tensor.name, ""))
            if reason:
                constants[tensor.name] = reason
            else:
                taken.append(tensor.name)
    taken += [name for name, fact in inputs.items() if _is_float(fact.elem) and _matches(name, only)]
    return taken, constants


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_float(elem: int) -> bool:
    dtype = dtype_of(elem)
    return dtype is not None and dtype.is_float


def _running_statistics(graph: onnx.GraphProto) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            found.update((name, f"running statistic of {node_label(node)}") for name in node.input[3:5])
    return found


def _reason(tensor: onnx.TensorProto, kind: str) -> str:
    """Why a floating-point initialiser is not trained; "" when it is."""
    if kind.endswith("PARAMETER"):
        return ""
    if kind:
        return "no parameter, by its exporter"
    if not tensor.dims:
        return "a single number"
    return "holds a mask" if _is_mask(tensor) else ""


def _is_mask(tensor: onnx.TensorProto) -> bool:
    if is_external(tensor) or prod(tensor.dims) > _LARGEST_MASK:
        return False
    try:
        values = np.asarray(tensor_to_array(tensor), np.float64)
    except ValueError:
        return False
    return bool(values.size) and bool(values.min() <= _LOWEST)
