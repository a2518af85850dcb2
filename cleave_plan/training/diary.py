"""A training run written down for a trace: each step with its batches, the optimizer, re-plans and checkpoints, on one clock."""

from __future__ import annotations

import time

from cleave_plan.chronicle import BATCHES, CHECKPOINTS, OPTIMIZER, REPLANS, STEPS, Chronicle
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.spans import run_spans
from cleave_plan.training.crew import CrewChange
from cleave_plan.training.run import StepReport


class Diary:
    """Writes into ``chronicle`` what is told with the moments (of ``time.perf_counter``) at which it began; the clock of the
    chronicle begins with the diary."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle, self._zero = chronicle, time.perf_counter()
        self._incidents = 0

    def batch(self, number: int, result: RunResult, begun: float) -> None:
        """Batch ``number`` (from 0), all its levels and tiles."""
        begun_s = begun - self._zero
        self._chronicle.add(BATCHES, f"batch {number + 1}", begun_s, self._now_s())
        self._chronicle.take(run_spans(result, begun_s=begun_s, incidents=self._incidents))
        self._incidents += len(result.incidents)

    def step(self, report: StepReport, begun: float) -> None:
        """A whole step; the optimizer was the end of it."""
        start_s = begun - self._zero
        stop_s = start_s + report.seconds
        figures = {
            "loss": report.loss, "learning rate": report.learning_rate, "gradient norm": report.gradient_norm,
            "bytes down": float(report.bytes_down), "bytes up": float(report.bytes_up),
        }  # fmt: skip
        self._chronicle.add(STEPS, f"step {report.step}", start_s, stop_s, **figures)
        self._chronicle.add(OPTIMIZER, "optimizer", stop_s - report.optimizer_s, stop_s)

    def change(self, change: CrewChange, begun: float) -> None:
        """The plan has followed devices that were lost or came, or would not."""
        details = {name: ", ".join(getattr(change, name)) for name in ("lost", "joined") if getattr(change, name)}
        figures = {"tiles": change.tiles, "pieces": change.pieces, "predicted batch s": change.batch_s}
        if change.refused:
            self._chronicle.add(REPLANS, "fleet file refused", begun - self._zero, self._now_s(), why=change.refused)
        else:
            self._chronicle.add(REPLANS, "re-plan", begun - self._zero, self._now_s(), **details, **figures)

    def checkpoint(self, step: int, begun: float) -> None:
        """The checkpoint after ``step`` was written."""
        self._chronicle.add(CHECKPOINTS, f"after step {step}", begun - self._zero, self._now_s())

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero
