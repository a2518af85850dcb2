"""Runs without processes: the server's walk with an engine that multiplies tiles at once, for tests of what is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hand_plans import random_plan

from cleave_plan.dtypes import DType
from cleave_plan.execution.admission import Placed, admit
from cleave_plan.execution.engines.base import Finished, Task
from cleave_plan.execution.server import RunResult, Walk
from cleave_plan.execution.session import device_load
from cleave_plan.kernels.arrays import numpy_dtype
from cleave_plan.kernels.chain import Work
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import silent


class InProcess:
    """An engine whose devices are this process."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[Work, Sequence[np.ndarray | None], np.ndarray]] = {}
        self._tasks: deque[Task] = deque()
        self._devices: tuple[str, ...] = ()

    def start(self, load: Mapping[str, float]) -> None:
        """Nothing to start."""
        self._devices = tuple(load)

    def join(self, devices: Sequence[str]) -> None:
        """They are there at once."""
        self._devices += tuple(devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """All that were started."""
        return self._devices

    @property
    def processes(self) -> tuple[int, ...]:
        """None."""
        return ()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """An ordinary array."""
        return np.empty(shape, numpy_dtype(dtype))

    def share(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def open(self, job: int, work: Work, operands: Sequence[np.ndarray | None]) -> np.ndarray:
        """Keep the operands."""
        whole = self.empty(work.whole_shape, work.out_dtype)
        self._jobs[job] = (work, operands, whole)
        return whole

    def send(self, *tasks: Task) -> None:
        """Queue tiles."""
        self._tasks.extend(tasks)

    def collect(self, timeout_s: float | None = None) -> Finished:
        """Compute the oldest tile."""
        task = self._tasks.popleft()
        work, operands, _ = self._jobs[task.job]
        down, result = work.run(operands, task.box)
        return Finished(
            task=task, result=result, in_place=False, bytes_down=down, bytes_up=result.nbytes, seconds=0.0
        )  # fmt: skip

    def drop(self, device: str, reason: str) -> None:
        """No device is ever given up."""

    def close(self, job: int) -> None:
        """Forget a GEMM."""
        del self._jobs[job]

    def stop(self) -> None:
        """Nothing to stop."""


def run_split(
    path: Path, inputs: Mapping[str, np.ndarray], *, seed: int = 0, devices: int = 8, cuts: int = 5, runtime: str = "auto"
) -> tuple[ImportedModel, RunResult]:
    """The model with every GEMM that devices may compute cut at random, and what the run gave."""
    imported = load_model(path, shapes=shapes_of(inputs))
    plan = random_plan(imported.workload, seed=seed, devices=devices, cuts=cuts, keep=0.0)
    return imported, run_plan(imported, plan, inputs, runtime=runtime)


def shapes_of(inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of those inputs that are arrays."""
    return {name: np.shape(array) for name, array in inputs.items() if isinstance(array, np.ndarray)}


def run_plan(imported: ImportedModel, plan: Plan, inputs: Mapping[str, Any], *, runtime: str = "auto") -> RunResult:
    """What a run of ``plan`` gives, its tiles computed here."""
    return walk_of(imported, admit(plan, imported.workload), runtime=runtime).run(dict(inputs))


def walk_of(imported: ImportedModel, placed: Mapping[str, Placed], *, runtime: str = "auto", **options: Any) -> Walk:
    """A walk whose devices are this process."""
    engine = InProcess()
    engine.start(device_load(placed.values()))
    return Walk(imported, placed, engine, runtime=runtime, progress=silent, **options)
