"""Training: a forward model, a fleet and data in; trained weights out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleave_plan.api.fleets import with_servers
from cleave_plan.api.plans import make_plan, require_same
from cleave_plan.api.runs import open_session
from cleave_plan.errors import AnswerIsNoError
from cleave_plan.progress import Progress, silent

if TYPE_CHECKING:
    from cleave_plan.chronicle import Chronicle
    from cleave_plan.fleet.device import Fleet
    from cleave_plan.plan.plan import Plan
    from cleave_plan.training.data import Data
    from cleave_plan.training.run import TrainingResult
    from cleave_plan.training.settings import Settings
    from cleave_plan.training.step import TrainingStep
    from cleave_plan.workload.graph import Workload


def training_settings(path: str | Path | None = None, **fields: Any) -> Settings:
    """Training settings from a YAML file; ``fields`` (of :class:`~cleave_plan.training.settings.Settings`) go before it.

    Raises InputFileError with the place of a fault in the file, UsageError for figures that cannot be.
    """
    from cleave_plan.training.settings import OptimizerKind, Settings
    from cleave_plan.training.settingsfile import load_settings

    given = ({} if path is None else load_settings(path)) | fields
    if "optimizer" in given:
        given["optimizer"] = OptimizerKind(given["optimizer"])
    return Settings(**given)


def train(
    model: str | Path,
    fleet: Fleet,
    data: Data,
    *,
    loss: str,
    steps: int,
    settings: Settings | None = None,
    plan: Plan | None = None,
    save_to: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    metrics: str | Path | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    resume: bool = False,
    stoppable: bool = False,
    engine: str = "local",
    workers: int | None = None,
    integrity: bool | None = None,
    runtime: str = "auto",
    progress: Progress = silent,
    batch_norm: str = "batch",
    fleet_file: str | Path | None = None,
    chronicle: Chronicle | None = None,
    **differentiation: Any,
) -> TrainingResult:
    """Train ``model`` on ``data`` for ``steps`` steps under a plan for ``fleet``.

    ``data``: the path of an ``.npz`` file or a mapping with one array for each input, a sample a row (labels or values under the
    name "target"); or an iterable of batches, each a mapping of the inputs' arrays. ``plan``: one for a training step of what
    :func:`gradient` makes of the model with the same options (default: made here). ``save_to``: where the model with the trained
    weights is written. ``metrics``: a file of JSON lines, one a step. ``checkpoint``: a folder, written every
    ``checkpoint_every`` steps; ``resume`` goes on from the newest good one; ``stoppable``: SIGINT and SIGTERM end the run after
    a step, with a checkpoint (in the main thread only). ``engine``, ``workers``, ``runtime`` and ``integrity`` are those of
    :func:`execute`. ``fleet_file``: where the fleet is written down; when that file changes in the middle of the run, devices
    that it names and that are not there are asked to join, and those that it names no more leave. ``chronicle``: where what
    happens is written down, for :func:`write_training_trace`. ``differentiation``: further arguments of :func:`gradient`.

    Raises InfeasibleError when no plan exists, InputFileError for files and data that do not fit, UsageError for settings that
    cannot be or are another run's, ExecutionError when the run cannot be finished, RunInterruptedError when it was stopped.
    """
    from cleave_plan.api.models import gradient_request
    from cleave_plan.onnx_io.trained import write_trained
    from cleave_plan.training.crew import Crew, FleetFile
    from cleave_plan.training.data import batches_of
    from cleave_plan.training.run import Duration
    from cleave_plan.training.settings import Settings
    from cleave_plan.training.step import training_step
    from cleave_plan.training.trainer import Trainer
    from cleave_plan.workload.backward import training_workload

    settings, file = settings or Settings(), None if fleet_file is None else FleetFile(Path(fleet_file))
    duration = Duration(
        steps=steps, metrics=None if metrics is None else Path(metrics), resume=resume, checkpoint_every=checkpoint_every,
        stoppable=stoppable,
        checkpoints=None if checkpoint is None else Path(checkpoint),
    )  # fmt: skip
    step = training_step(
        Path(model), *gradient_request(loss=loss, dims=dims, shapes=shapes, batch_norm=batch_norm, **differentiation)
    )
    batches = batches_of(data, step.inputs, seed=settings.seed, shuffle=settings.shuffle)
    workload = training_workload(step.imported.workload)
    if plan is None:
        plan = make_plan(workload, fleet, without={"reuse"})  # engines send every piece to every tile
    else:
        _require_step(plan, workload, step)
        require_same(plan, workload, fleet)
    with open_session(
        plan, step.imported, engine=engine, workers=workers, runtime=runtime, integrity=integrity,
        reproducible=settings.reproducible,
    ) as session:  # fmt: skip
        crew = Crew(plan, workload, with_servers(fleet, plan.server_names), session, file=file)
        trainer = Trainer(step, plan, session, batches, settings, crew=crew, chronicle=chronicle)
        result = trainer.run(duration, progress)
    if save_to is not None:
        write_trained(step.forward, result.values, step.gradient.ties, Path(save_to))
    return result


def write_training_trace(chronicle: Chronicle, model: str, fleet: Fleet, path: str | Path) -> int:
    """Write what a ``chronicle`` of :func:`train` has as a Perfetto trace of the ``model`` over ``fleet``; the number of slices.

    Raises UsageError without the perfetto package (extra ``trace``), OSError where the file cannot be written.
    """
    from cleave_plan.report.trace import chronicle_spans, write_trace

    return write_trace(Path(path), chronicle_spans(chronicle), process=f"{model} over {fleet.name}")


def _require_step(plan: Plan, workload: Workload, step: TrainingStep) -> None:
    """Raise AnswerIsNoError, with what to do, for a plan of the forward file, or of a step that keeps other forward values."""
    if plan.model.sha256 == step.gradient.names.forward_sha256:
        write = f"cleave-plan gradient MODEL --loss ...{' --recompute' if plan.recompute else ''} -o STEP.onnx"
        raise AnswerIsNoError(
            f"the plan is for the forward file {plan.model.name!r}, whose gradients it derives; train runs the gradient file, "
            "whose products have other names", where="--plan", expected="a plan of the gradient file, or none",
            remedy=f"leave --plan out, or: {write}, then plan STEP.onnx --training",
        )  # fmt: skip
    if (plan.recompute is None) != (workload.recompute is None):
        kinds = ("computes forward values again (--recompute)", "keeps all forward values")
        planned, asked = kinds if workload.recompute is None else kinds[::-1]
        raise AnswerIsNoError(
            f"the plan is for a step that {planned}, this run {asked}", where="--plan",
            expected="both with --recompute, or neither",
            remedy="give --recompute to train" if workload.recompute is None else "leave --recompute out, or plan the other file",
        )  # fmt: skip
