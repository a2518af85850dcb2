"""One training step made ready: the model's gradient graph, in memory, and what of it is fed by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions, gradient_model
from cleave_plan.onnx_io.gradient.losses import LossSpec
from cleave_plan.onnx_io.importer import ImportedModel, import_model
from cleave_plan.onnx_io.reader import parse_model, read_bytes
from cleave_plan.onnx_io.weights import Weights
from cleave_plan.onnx_io.whole_model import draws_random_numbers
from cleave_plan.workload.graph import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the labels of a cross-entropy may be: numbers of the classes of ``output`` (None: it is not known how many it has),
    or ``ignored``, the label of what does not count. ``target``: the input that holds them.
    """

    target: str
    output: str
    classes: int | None
    ignored: int

    def counted(self, labels: Array, *, where: str) -> int:
        """How many of ``labels`` count; raises InputFileError for one that is no class (the graph would take -1 for the last)."""
        counts = labels != self.ignored
        wrong = counts & ((labels < 0) | (labels >= (np.inf if self.classes is None else self.classes)))
        if wrong.any():
            place = tuple(int(index[0]) for index in np.nonzero(wrong))
            have = "classes" if self.classes is None else f"{self.classes} classes"
            known = "0 or more" if self.classes is None else f"from 0 to {self.classes - 1}"
            raise InputFileError(
                f"{self.target!r} holds the label {labels[place]}, at {list(place)} of the batch", where=where,
                expected=f"labels {known}, as {self.output!r} has {have}, or {self.ignored} for what does not count",
                remedy="correct the labels, or say with --ignore-index which one does not count",
            )  # fmt: skip
        return int(np.count_nonzero(counts))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingStep:
    """``gradient``: the step as a graph; ``imported``: as it is planned and executed; ``forward``: the model's file; ``labels``:
    what they may be, None for losses without.
    """

    forward: Path
    gradient: GradientModel
    imported: ImportedModel
    labels: Labels | None = None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the data has to give."""
        return self.imported.workload.inputs

    @property
    def tokens(self) -> int | None:
        """Tokens in a batch: labels of a target that has several for each sample; None for other data."""
        target = next((info for info in self.inputs if info.name == self.gradient.names.target), None)
        return prod(target.shape) if target is not None and target.dtype == "int64" and len(target.shape) > 1 else None

    @property
    def draws_random_numbers(self) -> bool:
        """Whether operators of the graph draw random numbers, from a state that nobody can keep."""
        return draws_random_numbers(self.imported.model.graph)

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Parameters and running statistics as the model's file has them.

        Raises UsageError for a parameter that is no initialiser, InputFileError when weights are missing.
        """
        weights, names = Weights(self.imported.model, self.imported.path), self.gradient.names
        for name in names.gradients:
            if name not in weights:
                raise UsageError(
                    f"{name!r} is an input of the model", where="--parameters", expected="initialisers, whose values can be kept"
                )
        return {name: weights[name] for name in names.gradients}, {name: weights[name] for name in names.statistics}


def training_step(model: Path, loss: LossSpec, options: GradientOptions) -> TrainingStep:
    """Differentiate the model at ``model``; the graph is that of ``cleave-plan gradient`` with the same options, byte by byte.

    Raises what :func:`~cleave_plan.onnx_io.gradient.build.gradient_model` raises, and UsageError for sizes that are still open.
    """
    made = gradient_model(model, loss, options)
    file = read_bytes(made.model.SerializeToString(), model.with_name(f"{model.stem}.gradient"))
    imported = import_model(file)
    open_inputs = [info for info in imported.workload.inputs if info.name not in imported.tensor_shapes or -1 in info.shape]
    if open_inputs:
        raise UsageError(
            f"the sizes of {', '.join(info.name for info in open_inputs)} are open", where=str(model),
            expected="a batch of a known size", remedy="bind them with --dim NAME=INT or --shape INPUT=SHAPE",
        )  # fmt: skip
    return TrainingStep(forward=model, gradient=made, imported=imported, labels=_labels(model, loss, imported))


def _labels(model: Path, loss: LossSpec, imported: ImportedModel) -> Labels | None:
    if loss.kind != "cross-entropy":
        return None
    output = loss.output or parse_model(model).graph.output[0].name
    shape = imported.tensor_shapes.get(output)
    classes = -1 if shape is None else shape[loss.class_axis]
    return Labels(
        target=loss.target, output=output, classes=None if classes < 0 else classes, ignored=loss.ignore_index
    )  # fmt: skip


def outputs_of(names: Mapping[str, str], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """``outputs`` by the names whose outputs ``names`` says they are."""
    return {name: outputs[output] for name, output in names.items()}
