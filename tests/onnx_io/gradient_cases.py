"""What the tests of gradients share: a graph of one node, and its gradient by finite differences.

The loss is the sum of every floating-point output times weights of its own, so that no direction of an output is left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec
from cleave_plan.onnx_io.reference_ops import corrections

Array = np.ndarray[Any, Any]
STEP, SINGLE_STEP, SINGLE_TOLERANCE = 1e-6, 2**-7, 2e-3
"""Of the differences; for operators that exist in float32 only, and what they are compared within."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: ``inputs`` by name in order ("" is absent), of which the ``wanted`` are differentiated (default: the float ones).

    ``outputs``: the number of outputs; only the first ``scored`` enter the loss. ``fixed``: inputs that are initialisers.
    """

    op: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    wanted: Sequence[int] | None = None
    outputs: int = 1
    scored: int = 1
    fixed: Sequence[int] = ()
    opset: int = 21
    shapes: Sequence[tuple[int, ...]] = ()
    """Of the scored outputs, where onnx.reference cannot say."""

    def names(self) -> list[str]:
        """Names of the inputs."""
        return ["" if array is None else f"x{place}" for place, array in enumerate(self.inputs)]

    def places(self) -> list[int]:
        """The inputs whose gradients are looked at."""
        if self.wanted is not None:
            return list(self.wanted)
        return [place for place, array in enumerate(self.inputs) if array is not None and array.dtype == np.float64]


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs, by onnx.reference."""
    names = [value.name for value in model.graph.output]
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return dict(zip(names, ReferenceEvaluator(model, new_ops=corrections(opset)).run(names, dict(feeds)), strict=True))


def scored_model(case: Case, *, dynamic: bool) -> onnx.ModelProto:
    """The node and its score; ``dynamic``: every input has named sizes instead of numbers."""
    names = case.names()
    outputs = [f"y{place}" for place in range(case.outputs)]
    nodes = [helper.make_node(case.op, names, outputs, name="node", **case.attributes)]
    shapes = [np.zeros(shape, _kind(case)) for shape in case.shapes] or ReferenceEvaluator(
        _bare(case, names, outputs), new_ops=corrections(case.opset)
    ).run(None, case_feeds(case))
    rng = np.random.default_rng(5)
    initialisers = [numpy_helper.from_array(case.inputs[place], names[place]) for place in case.fixed]
    parts = []
    for place in range(case.scored):
        weight = numpy_helper.from_array(
            np.asarray(rng.standard_normal(np.shape(shapes[place])), shapes[place].dtype), f"weight{place}"
        )
        initialisers.append(weight)
        nodes.append(helper.make_node("Mul", [outputs[place], weight.name], [f"scored{place}"]))
        nodes.append(helper.make_node("ReduceSum", [f"scored{place}"], [f"part{place}"], keepdims=0))
        parts.append(f"part{place}")
    nodes.append(helper.make_node("Sum", parts, ["score"]))
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{axis}" for axis in range(array.ndim)] if dynamic else array.shape,
        )
        for place, (name, array) in enumerate(zip(names, case.inputs, strict=True))
        if array is not None and place not in case.fixed
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "case",
        inputs,
        [helper.make_tensor_value_info("score", helper.np_dtype_to_tensor_dtype(shapes[0].dtype), [])],
        initialisers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)


def _kind(case: Case) -> np.dtype[Any]:
    return next(array.dtype for array in case.inputs if array is not None)


def _bare(case: Case, names: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    node = helper.make_node(case.op, names, outputs, **case.attributes)
    graph = helper.make_graph(
        [node], "bare", [onnx.ValueInfoProto(name=name) for name in names if name], [onnx.ValueInfoProto(name=n) for n in outputs]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)


def case_feeds(case: Case) -> dict[str, Array]:
    """The inputs by name."""
    return {name: array for name, array in zip(case.names(), case.inputs, strict=True) if array is not None}


def differentiate(case: Case, folder: Path, *, dynamic: bool = False) -> GradientModel:
    """The gradient file of a case."""
    path = folder / "case.onnx"
    path.write_bytes(scored_model(case, dynamic=dynamic).SerializeToString())
    wanted = [case.names()[place] for place in case.places()]
    return gradient_model(path, LossSpec(kind="output:score"), GradientOptions(only=wanted))


def check_case(case: Case, folder: Path, *, dynamic: bool = False, tolerance: float = 1e-6) -> None:
    """Compare the gradient of every wanted input with central differences along two random directions."""
    made = differentiate(case, folder, dynamic=dynamic)
    onnx.checker.check_model(made.model, full_check=True)
    feeds = case_feeds(case)
    free = {name: array for name, array in feeds.items() if name in made.inputs or name in made.shapes}
    results = evaluate(made.model, free)
    forward = ReferenceEvaluator(scored_model(case, dynamic=False), new_ops=corrections(case.opset))
    rng = np.random.default_rng(6)
    for place in case.places():
        name = case.names()[place]
        gradient = results[made.names.gradients[name]]
        x = feeds[name]
        assert gradient.shape == x.shape, name
        step, within = (STEP, tolerance) if x.dtype == np.float64 else (SINGLE_STEP, SINGLE_TOLERANCE)
        for _ in range(2):
            direction = rng.standard_normal(x.shape).astype(x.dtype)
            ends = [float(forward.run(["score"], {**feeds, name: x + sign * step * direction})[0].item()) for sign in (1, -1)]
            expected = (ends[0] - ends[1]) / (2 * step)
            scale = max(1.0, abs(expected), float(np.abs(gradient).sum()))
            assert abs(float((gradient * direction).sum()) - expected) <= within * scale, (case.op, name)


def values(rng: np.random.Generator, *shape: int, low: float = -2, high: float = 2, apart: float = 0.02) -> Array:
    """Distinct values, none within ``apart`` of a whole number or of each other's order (kinks of the operators lie there)."""
    size = int(np.prod(shape))
    found = np.linspace(low, high, size + 2)[1:-1] + rng.uniform(0, 0.3) * (high - low) / (size + 2)
    near = np.abs(found - np.round(found)) < apart
    return rng.permutation(found + near * 2 * apart).reshape(shape)


def shape_of(rng: np.random.Generator, rank: int) -> list[int]:
    """Sizes from 1 to 4."""
    return [int(size) for size in rng.integers(1, 5, rank)]


def stretched(rng: np.random.Generator, shape: Sequence[int]) -> list[int]:
    """A shape that broadcasts to ``shape``: leading axes left out, others 1."""
    return [1 if rng.random() < 0.4 else size for size in shape[rng.integers(0, len(shape) + 1) :]]


def chance(rng: np.random.Generator) -> bool:
    """One or the other."""
    return bool(rng.random() < 0.5)


def run_case(case: Case, *, dynamic: bool = False, tolerance: float = 1e-6) -> None:
    """:func:`check_case` in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        check_case(case, Path(folder), dynamic=dynamic, tolerance=tolerance)
