"""Models and data: what a file asks for, and the arrays that go in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.errors import AnswerIsNoError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from cleave_plan.onnx_io.gradient.build import GradientModel, GradientOptions
    from cleave_plan.onnx_io.gradient.losses import LossSpec
    from cleave_plan.plan.plan import Plan
    from cleave_plan.workload.graph import Workload


def load_onnx(
    path: str | Path,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trips: Mapping[str, int] | None = None,
    training: bool = False,
    recompute: bool = False,
) -> Workload:
    """The work of one batch of an ONNX model; weights are not read.

    ``dims`` binds symbolic dimensions by name, ``shapes`` whole inputs, ``trips`` how often Loops run. ``training``: the work
    of a training step, with the gradient GEMMs of every GEMM derived from the forward ones. ``recompute``: of one that computes
    forward values again where that spares memory, as :func:`gradient` would (a gradient file does as it is written, and has to
    be one that does). Raises InputFileError for a file that is not a model, and an error that names each dimension that is still
    open.
    """
    from cleave_plan.onnx_io.importer import load_model
    from cleave_plan.workload.backward import training_workload

    if recompute and not training:
        raise UsageError(
            "a forward pass computes nothing again", where="--recompute", expected="a training step", remedy="add --training"
        )
    imported = load_model(Path(path), dims=dims, shapes=shapes, trips=trips)
    forward = imported.workload
    if not training:
        return forward
    if not recompute or forward.recompute is not None:
        return training_workload(forward)
    if forward.has_backward:
        raise UsageError(
            "this gradient file keeps all forward values", where=f"--recompute, {path}",
            expected="one that gradient --recompute wrote, or a forward model", remedy="write it anew, or leave --recompute out",
        )  # fmt: skip
    from cleave_plan.onnx_io.gradient.planned import segments_of

    return training_workload(forward, segments_of(imported))


def load_model_of(plan: Plan, path: str | Path) -> Workload:
    """The model at ``path`` with the sizes and trip counts that ``plan`` was made with, and for training (with forward values
    computed again) if it was.

    Raises AnswerIsNoError when it does not have them, so that it must be another model than the plan's.
    """
    try:
        return load_onnx(
            path, dims=plan.dims, shapes=plan.shapes, trips=plan.trips, training=plan.training,
            recompute=plan.recompute is not None,
        )  # fmt: skip
    except UsageError as error:
        raise AnswerIsNoError(
            f"the plan was made for another model, {plan.model.name!r}: in this one, {error.what}",
            where=str(path), remedy="name the model that the plan was made for, or plan again",
        ) from error  # fmt: skip


def draw_inputs(plan: Plan, model: str | Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a run without data, of the sizes that the plan was made with; the same for the same seed."""
    from cleave_plan.execution.inputs import random_inputs
    from cleave_plan.onnx_io.importer import load_model

    return random_inputs(load_model(model, dims=plan.dims, shapes=plan.shapes, trips=plan.trips), seed=seed)


def load_inputs(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by name; raises InputFileError for anything else."""
    from cleave_plan.execution.inputs import load_inputs as load

    return load(path)


def save_outputs(outputs: Mapping[str, Any], path: str | Path) -> None:
    """Write outputs to an ``.npz`` file, beside its place first and then renamed."""
    from cleave_plan.execution.inputs import save_outputs as save

    save(outputs, path)


def gradient(
    model: str | Path,
    *,
    loss: str,
    target: str = "target",
    output: str = "",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_axis: int = -1,
    parameters: Sequence[str] = (),
    freeze: Sequence[str] = (),
    batch_norm: str = "as-written",
    keep_outputs: bool = False,
    recompute: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    save_to: str | Path | None = None,
) -> GradientModel:
    """A training graph of ``model`` in plain ONNX, with a loss and the gradient of every parameter as outputs.

    ``loss``: "cross-entropy", "mse" or "output:NAME"; ``output`` is what the first two look at (default: the first output) and
    ``target`` the input for labels or values. ``parameters`` and ``freeze`` are patterns of names. ``batch_norm`` "batch": batch
    norms normalise by the batch and give new running statistics. ``recompute``: forward values are computed again where that
    spares memory; ``recomputation`` of the result says how much. ``save_to``: where to write the file; weights beside
    ``model`` are not read. Raises InputFileError for an operator without a gradient rule, naming what depends on it.
    """
    from cleave_plan.onnx_io.gradient.build import gradient_model

    spec, options = gradient_request(
        loss=loss, target=target, output=output, ignore_index=ignore_index, label_smoothing=label_smoothing,
        class_axis=class_axis, parameters=parameters, freeze=freeze, batch_norm=batch_norm, keep_outputs=keep_outputs,
        recompute=recompute, dims=dims, shapes=shapes,
    )  # fmt: skip
    made = gradient_model(Path(model), spec, options)
    return made if save_to is None else made.save(Path(save_to))


def gradient_request(
    *,
    loss: str,
    target: str = "target",
    output: str = "",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_axis: int = -1,
    parameters: Sequence[str] = (),
    freeze: Sequence[str] = (),
    batch_norm: str = "as-written",
    keep_outputs: bool = False,
    recompute: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[LossSpec, GradientOptions]:
    """The loss and the options that the arguments of :func:`gradient` mean."""
    from cleave_plan.onnx_io.gradient.build import GradientOptions
    from cleave_plan.onnx_io.gradient.losses import LossSpec

    spec = LossSpec(
        kind=loss, output=output, target=target, ignore_index=ignore_index, label_smoothing=label_smoothing, class_axis=class_axis
    )
    options = GradientOptions(
        only=parameters, freeze=freeze, keep_outputs=keep_outputs, batch_norm=batch_norm, recompute=recompute,
        dims=dims or {}, shapes=shapes or {},
    )  # fmt: skip
    return spec, options
