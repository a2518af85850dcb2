"""Running a model's server nodes, segment by segment, on the runtime that is installed.

onnxruntime is taken where it is there, onnx.reference otherwise. What onnxruntime refuses (an element type, a legal form
that it lacks) is run again node by node, so that only the refused nodes fall to onnx.reference; each fall is noted.
Operators outside the ONNX standard exist in onnxruntime alone: without it they are refused by name before anything runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import numpy as np
import onnx

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.onnx_io.attributes import subgraphs
from cleave_plan.onnx_io.backends import STANDARD_DOMAINS, Backend, Onnxruntime, Prepared, Reference
from cleave_plan.onnx_io.matrix_work import OWN
from cleave_plan.onnx_io.order import node_label
from cleave_plan.onnx_io.ort_session import Outlets
from cleave_plan.onnx_io.refusal import RefusedError, Value
from cleave_plan.onnx_io.segments import Segment
from cleave_plan.onnx_io.weights import Weights

Signature = tuple[object, ...]


class RuntimeChoice(StrEnum):
    """Which runtime runs the server's nodes."""

    AUTO = "auto"
    ONNXRUNTIME = "onnxruntime"
    REFERENCE = "reference"


class ServerRuntime:
    """Runs segments of one model; keeps a prepared session for each segment and kind of values.

    ``outlets`` say where large results go; ``notes`` tell the user what another runtime than the first had to run. Raises
    InputFileError when the model has operators that the runtime at hand does not know, UsageError when onnxruntime is asked
    for and not installed.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Weights,
        *,
        choice: str = RuntimeChoice.AUTO,
        where: str = "",
        outlets: Outlets | None = None,
    ) -> None:
        self._backends = _backends(model, weights, choice, outlets or Outlets())
        self._weights = weights
        self._where = where
        self._prepared: dict[tuple[Segment, Signature], Prepared] = {}
        self._parts: dict[Segment, list[Segment]] = {}
        self._notes: dict[str, None] = {}
        if not any(isinstance(backend, Onnxruntime) for backend in self._backends):
            _refuse_foreign_operators(model.graph.node, where, installed=onnxruntime_installed())

    @property
    def name(self) -> str:
        """The runtime that is tried first, with its version."""
        return self._backends[0].name

    @property
    def notes(self) -> tuple[str, ...]:
        """What fell to another runtime, and why; in order of appearance, each once."""
        return tuple(self._notes)

    def run(self, segment: Segment, values: Mapping[str, Value]) -> dict[str, Value]:
        """The segment's outputs; its inputs are ``values`` and, for names that are not there, the model's weights.

        Raises ExecutionError when no runtime can run a node, InputFileError when a weight cannot be read.
        """
        if not segment.nodes or not segment.outputs:
            return {}
        own = [node.domain == OWN for node in segment.nodes]
        if all(own):
            return self._run_own(segment, values)
        if any(own) and segment not in self._parts:
            self._parts[segment] = segment.split_around(OWN)
        if segment in self._parts:
            return self._run_parts(segment, values)
        try:
            return self._run_on(self._backends[0], segment, values)
        except RefusedError as refusal:
            if len(segment.nodes) == 1:
                return self._run_fallback(segment, values, refusal)
            if len(self._backends) > 1:
                self._parts[segment] = segment.split()
                return self._run_parts(segment, values)
            raise self._failure(segment, [refusal]) from None

    def _run_own(self, segment: Segment, values: Mapping[str, Value]) -> dict[str, Value]:
        """Operators of our own are Python, whatever runs the others."""
        try:
            return self._run_on(self._backends[-1], segment, values)
        except RefusedError as refusal:
            raise self._failure(segment, [refusal]) from None

    def _run_parts(self, segment: Segment, values: Mapping[str, Value]) -> dict[str, Value]:
        inner = dict(values)
        for part in self._parts[segment]:
            inner.update(self.run(part, inner))
        return {name: inner[name] for name in segment.outputs}

    def _run_fallback(self, segment: Segment, values: Mapping[str, Value], refusal: RefusedError) -> dict[str, Value]:
        refusals = [refusal]
        for backend in self._backends[1:]:
            try:
                results = self._run_on(backend, segment, values)
            except RefusedError as error:
                refusals.append(error)
                continue
            label = node_label(segment.nodes[0])
            self._notes[f"{label} ran on {backend.name}, because {self.name} refused it: {_first_line(refusal)}"] = None
            return results
        raise self._failure(segment, refusals)

    def _run_on(self, backend: Backend, segment: Segment, values: Mapping[str, Value]) -> dict[str, Value]:
        given = {name: values[name] for name in segment.inputs if name in values}
        key = (segment, (backend.name, *((name, *_kind(value)) for name, value in given.items())))
        if key not in self._prepared:
            self._prepared[key] = backend.prepare(segment, given)
        return self._prepared[key](given)

    def _failure(self, segment: Segment, refusals: Sequence[RefusedError]) -> ExecutionError:
        node = segment.nodes[0]
        label = node_label(node) if len(segment.nodes) == 1 else f"the {len(segment.nodes)} nodes from {node_label(node)} on"
        reasons = "; ".join(
            f"{backend.name} says: {_first_line(error)}" for backend, error in zip(self._backends, refusals, strict=False)
        )
        return ExecutionError(
            f"{label} cannot be run: {reasons}", where=self._where, expected="inputs and operators that it can run"
        )


def onnxruntime_installed() -> bool:
    """Whether onnxruntime can be imported (it is not imported to find out)."""
    return importlib.util.find_spec("onnxruntime") is not None


def _backends(model: onnx.ModelProto, weights: Weights, choice: str, outlets: Outlets) -> list[Backend]:
    if choice not in list(RuntimeChoice):
        raise UsageError(f"there is no runtime {choice!r}", expected=f"one of {', '.join(RuntimeChoice)}")
    if choice == RuntimeChoice.REFERENCE:
        return [Reference(model, weights)]
    if onnxruntime_installed():
        return [Onnxruntime(model, weights, outlets), Reference(model, weights)]
    if choice == RuntimeChoice.ONNXRUNTIME:
        raise UsageError(
            "onnxruntime is asked for and not installed", remedy="install it with `pip install 'cleave-plan[ort]'`, or let "
            "onnx.reference run the server's nodes",
        )  # fmt: skip
    return [Reference(model, weights)]


def _refuse_foreign_operators(nodes: Iterable[onnx.NodeProto], where: str, *, installed: bool) -> None:
    found = sorted(_foreign_operators(nodes))
    if found:
        remedy = "let onnxruntime run the server's nodes" if installed else "install onnxruntime: pip install 'cleave-plan[ort]'"
        raise InputFileError(
            f"onnx.reference does not know the operators {', '.join(found)}", where=where,
            expected="operators of the ONNX standard", remedy=remedy,
        )  # fmt: skip


def _foreign_operators(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    found = set()
    for node in nodes:
        if node.domain not in STANDARD_DOMAINS:
            found.add(f"{node.domain}::{node.op_type}")
        for graph in subgraphs(node):
            found |= _foreign_operators(graph.node)
    return found


def _kind(value: Value) -> tuple[object, ...]:
    """What decides which prepared session fits a value: element type and rank."""
    if isinstance(value, list):
        return ("sequence", *(_kind(value[0]) if value else ()))
    return (str(value.dtype), value.ndim) if isinstance(value, np.ndarray) else (None,)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300]
