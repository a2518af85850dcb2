"""The unsplit model, as the oracle that a run is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_int
from cleave_plan.onnx_io.importer import ImportedModel
from cleave_plan.onnx_io.kinds import holds_operator
from cleave_plan.onnx_io.ort_session import session_options
from cleave_plan.onnx_io.refusal import RefusedError, Value
from cleave_plan.onnx_io.runtime import RuntimeChoice, ServerRuntime, onnxruntime_installed
from cleave_plan.onnx_io.segments import segment_of
from cleave_plan.onnx_io.weights import Array, Weights, is_constant

# Operators that hand on the values of their first input in the same order.
_CARRIERS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_SELECTORS = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
_RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"})
_TRAINING_MODE = 2  # the input of Dropout that switches it on


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """An integer output that holds places along ``axis`` of the tensor ``scores``, chosen by an operator like ArgMax.

    ``drops_axis``: the output has no axis where the choice was made.
    """

    scores: str
    axis: int
    drops_axis: bool


class WholeModel:
    """Runs a model as it is: the file itself in onnxruntime where that is installed and takes it, else onnx.reference."""

    def __init__(self, imported: ImportedModel, *, runtime: str = RuntimeChoice.AUTO) -> None:
        self._imported = imported
        self._weights = Weights(imported.model, imported.path)
        self._choice = runtime
        self._server: ServerRuntime | None = None
        self.runtime = ""

    def run(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Every graph output by name; ``runtime`` then says what ran.

        Raises ExecutionError when no runtime can, InputFileError when weights are missing.
        """
        if self._choice != RuntimeChoice.REFERENCE and onnxruntime_installed():
            self._weights.check_external()  # missing weights are an error of ours, with its remedy, and not a refusal
            try:
                return self._run_file(inputs)
            except RefusedError:
                pass  # an element type or a legal form that onnxruntime lacks: onnx.reference is asked instead
        outputs = [value.name for value in self._imported.model.graph.output]
        return self.tensors(inputs, outputs)

    def tensors(self, inputs: Mapping[str, Value], names: list[str]) -> dict[str, Value]:
        """Any tensors of the unsplit model by name."""
        if self._server is None:
            self._server = ServerRuntime(self._imported.model, self._weights, choice=self._choice, where=str(self._imported.path))
        nodes = [node for node in self._imported.model.graph.node if not is_constant(node)]
        results = self._server.run(segment_of(nodes, names), inputs)
        self.runtime = self.runtime or self._server.name
        return {name: results[name] if name in results else self._given(name, inputs) for name in names}

    def _run_file(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        import onnxruntime

        names = [value.name for value in self._imported.model.graph.output]
        try:
            session = onnxruntime.InferenceSession(
                Path(self._imported.path), session_options(onnxruntime), providers=["CPUExecutionProvider"]
            )
            results = session.run(names, dict(inputs))
        except Exception as error:  # its exceptions have no base of their own
            raise RefusedError(str(error)) from error
        self.runtime = f"onnxruntime {onnxruntime.__version__}"
        return dict(zip(names, results, strict=True))

    def _given(self, name: str, inputs: Mapping[str, Value]) -> Value:
        return inputs[name] if name in inputs else self._weights[name]


def selection_of(graph: onnx.GraphProto, output: str) -> Selection | None:
    """How the places in an integer output were chosen, or None when no operator like ArgMax chose them."""
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(output)
    while node is not None and node.op_type in _CARRIERS:
        output = node.input[0]
        node = makers.get(output)
    if node is None or node.op_type not in _SELECTORS or node.output[_SELECTORS[node.op_type] :][:1] != [output]:
        return None
    axis = get_int(node, "axis", -1 if node.op_type == "TopK" else 0)
    return Selection(scores=node.input[0], axis=axis, drops_axis=node.op_type != "TopK" and not get_int(node, "keepdims", 1))


def computed_tensors(graph: onnx.GraphProto) -> list[str]:
    """Inputs of the graph and results of its nodes, Constants left out."""
    made = [name for node in graph.node if not is_constant(node) for name in node.output if name]
    return [*(value.name for value in graph.input), *made]


def draws_random_numbers(graph: onnx.GraphProto) -> bool:
    """Whether two runs of the graph may differ."""
    trains = any(node.op_type == "Dropout" and len(node.input) > _TRAINING_MODE for node in graph.node)
    return trains or holds_operator(graph, _RANDOM)


def chosen_scores(scores: Array, places: Array, selection: Selection) -> Array:
    """The score at each place; raises IndexError or ValueError when the places do not fit the scores."""
    axis = selection.axis % scores.ndim
    shape = [size for at, size in enumerate(scores.shape) if at != axis] if selection.drops_axis else list(scores.shape)
    if not selection.drops_axis:
        shape[axis] = -1
    places = places.astype(np.int64).reshape(shape)
    places = np.expand_dims(places, axis) if selection.drops_axis else places
    return np.take_along_axis(scores, places, axis=axis)
