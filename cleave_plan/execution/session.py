"""A model made ready to run under a plan: any number of batches with the same workers, weights and prepared operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.execution.admission import Placed, admit
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.engines.shared import SharedArrays
from cleave_plan.execution.inputs import check_inputs
from cleave_plan.execution.recovery import Figures
from cleave_plan.execution.reproducible import on_grid
from cleave_plan.execution.server import RunResult, Walk
from cleave_plan.execution.sharing import groups_of
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io.blocked_conv import block_size
from cleave_plan.onnx_io.conv_kernel import Convolution, takes
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.ordering import natural
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import Progress, silent
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.graph import Workload


class Session:
    """Runs batches of one ``model`` (its file, or one imported with the plan's sizes) as ``plan`` says; use it in a ``with``,
    which ends its workers.

    ``engine`` plays the devices (default: ``workers`` processes of this machine, over which the plan's devices are shared
    out; default one per core); ``runtime`` says what runs the other nodes ("auto", "onnxruntime" or "reference").
    ``reproducible``: the same bits under any plan of the model, over any devices
    (:mod:`cleave_plan.execution.reproducible`). ``integrity``: each tile that a device returns is checked
    (:mod:`cleave_plan.kernels.integrity`), and a device with a wrong one is excluded.
    Raises InputFileError when model and plan do not belong together, weights are missing or the plan is for training.
    """

    def __init__(
        self,
        plan: Plan,
        model: str | Path | ImportedModel,
        *,
        engine: Engine | None = None,
        workers: int | None = None,
        runtime: str = "auto",
        reproducible: bool = False,
        integrity: bool = False,
        progress: Progress = silent,
    ) -> None:
        if not isinstance(model, ImportedModel):
            model = load_model(model, dims=plan.dims, shapes=plan.shapes, trips=plan.trips)
        self._imported = model
        if plan.training and not self._imported.workload.has_backward:
            raise InputFileError(
                "the plan is for a training step, and only forward passes can be run", where=f"plan for {plan.model.name}",
                expected="a plan made without --training, or one of a gradient file",
                remedy="plan the model again without --training, or plan what `cleave-plan gradient` makes of it",
            )  # fmt: skip
        self._reproducible = reproducible
        placed = self._admitted(plan)
        self._placed, self._load = placed, device_load(placed.values())
        self._engine = LocalEngine(workers) if engine is None else engine
        self._chosen = self._engine.convolution if isinstance(self._engine, LocalEngine) else Convolution.NUMPY
        self._memory = self._engine.memory if isinstance(self._engine, LocalEngine) else None
        self._notes = sent_again(plan) + left_to_numpy(placed.values(), self._chosen)
        self._started = False
        try:
            self._walk = Walk(
                self._imported, placed, self._engine, runtime=runtime, progress=progress, integrity=integrity,
                finishing=isinstance(self._engine, LocalEngine),
                block=block_size() if self._chosen == Convolution.ONNXRUNTIME else 0,
            )  # fmt: skip
        except BaseException:
            self._engine.stop()
            raise

    def run(self, inputs: Mapping[str, Any]) -> RunResult:
        """Run one batch; ``inputs`` maps every graph input to its array.

        Raises InputFileError when they are not what the model expects, ExecutionError when devices are lost for good or a
        node cannot be run; the session can then only be closed.
        """
        values = check_inputs(self._imported, inputs)
        if self._load and not self._started:
            if isinstance(self._engine, LocalEngine):
                self._engine.start(self._load, groups_of(self._placed.values(), self._load, self._engine.workers))
            else:
                self._engine.start(self._load)
            self._started = True
        result = self._walk.run(values, workers=len(self._engine.processes))
        return replace(result, notes=(*result.notes, *self._notes))

    def join(self, devices: Sequence[str]) -> None:
        """Let devices come that the plan does not know, or that were lost. Once they are there they take over what others lose or
        are late with.

        Raises UsageError for one that is there already.
        """
        if known := sorted(set(devices) & set(self._engine.devices), key=natural):
            raise UsageError(f"device {known[0]!r} is there already", expected="names of devices that are not")
        self._engine.join(devices)

    def change(self, plan: Plan) -> None:
        """Run the batches that follow as another plan of the same model says, whose tiles are for devices that are there.

        Raises InputFileError when model and plan do not belong together.
        """
        placed = self._admitted(plan)
        self._placed, self._load = placed, device_load(placed.values())
        self._notes = sent_again(plan) + left_to_numpy(placed.values(), self._chosen)
        self._walk.place(placed)

    @property
    def devices(self) -> frozenset[str]:
        """The devices that are there; none before the first batch that has tiles for one."""
        return frozenset(self._engine.devices)

    @property
    def employed(self) -> frozenset[str]:
        """The devices that have tiles."""
        return frozenset(self._load)

    @property
    def workload(self) -> Workload:
        """The work of one batch."""
        return self._imported.workload

    @property
    def runtime(self) -> str:
        """What runs the server's nodes, with its version."""
        return self._walk.runtime

    @property
    def jobs(self) -> tuple[str, ...]:
        """The first GEMM of each product that has tiles, in the order in which a batch opens them as jobs of the engine."""
        return self._walk.jobs

    @property
    def memory(self) -> SharedArrays | None:
        """The memory that other processes of this machine read; None where devices are elsewhere."""
        return self._memory

    def wrap(self, around: Callable[[Engine], Engine], figures: Figures | None = None) -> None:
        """Put an engine around this session's own, for the runs that follow; ``figures``: those of its devices, from which
        deadlines are, and the pieces of tiles that are lost."""
        self._engine = around(self._engine)
        self._walk.use(self._engine, figures)

    def close(self) -> None:
        """End the workers; results stay."""
        self._engine.stop()

    def _admitted(self, plan: Plan) -> dict[str, Placed]:
        placed = admit(plan, self._imported.workload)
        return on_grid(placed, self._imported.workload) if self._reproducible else placed

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()


def run(
    plan: Plan,
    model_path: str | Path,
    inputs: Mapping[str, Array],
    *,
    engine: Engine | None = None,
    workers: int | None = None,
    progress: Progress = silent,
    runtime: str = "auto",
    reproducible: bool = False,
) -> RunResult:
    """Run one batch of the model as ``plan`` says: a :class:`Session` of one run, with the same arguments and errors."""
    with Session(
        plan, model_path, engine=engine, workers=workers, runtime=runtime, reproducible=reproducible, progress=progress
    ) as session:
        return session.run(inputs)


def sent_again(plan: Plan) -> tuple[str, ...]:
    """The note on a plan whose devices keep what they were sent, where it is run: engines send every piece to every tile."""
    told = plan.predicted
    if told.spared_bytes <= 0:
        return ()
    size = format_value(told.spared_bytes, Unit.BYTES)
    spared = f"devices keep nothing in a run: the {size} a batch that the plan spares are sent"
    if told.first_batch_s == told.batch_s:
        return (f"{spared} too, and the plan's times are of devices that keep them",)
    return (f"{spared} too, as in the plan's first batch ({format_value(told.first_batch_s, Unit.SECONDS)})",)


def left_to_numpy(placed: Iterable[Placed], chosen: str) -> tuple[str, ...]:
    """The note on convolutions that NumPy computes though onnxruntime is ``chosen``."""
    convolutions = [place for place in placed if place.away and place.gemm.window is not None]
    left = [place for place in convolutions if place.grid is not None or not takes(Product.of(place.gemm))]
    if chosen == Convolution.NUMPY or not left:
        return ()
    return (
        f"onnxruntime computes {len(convolutions) - len(left)} of {len(convolutions)} convolutions if their kernels are weights, "
        "NumPy the others: onnxruntime is used for float32, and not in reproducible runs",
    )


def device_load(placed: Iterable[Placed]) -> dict[str, float]:
    """Multiply-adds of each device that has a tile."""
    load: dict[str, float] = {}
    for place in placed:
        for device, box in place.away.values():
            g, r, c = box.result_shape
            load[device] = load.get(device, 0.0) + float(g * r * c * (box.k_stop - box.k_start))
    return load
