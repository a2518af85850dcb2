"""Training: one step after another under a plan, with parameters, optimizer and checkpoints on the servers.

A step runs the gradient graph on the session's devices, with the parameters among its inputs, and then moves them. Whatever a
device holds can be lost at any time; whatever decides the next step is here, and in the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from cleave_plan.chronicle import Chronicle
from cleave_plan.errors import ExecutionError, RunInterruptedError, UsageError
from cleave_plan.execution.cores import usable_cores
from cleave_plan.execution.incidents import Incident, Kind
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.kernels.arrays import Array
from cleave_plan.plan.plan import Plan
from cleave_plan.plan.planfile import plan_document
from cleave_plan.progress import Progress, silent
from cleave_plan.training.checkpoint import Checkpoint, CheckpointFolder, Found, checkpoints_in
from cleave_plan.training.crew import Crew
from cleave_plan.training.data import Batches
from cleave_plan.training.diary import Diary
from cleave_plan.training.interruption import interruptions
from cleave_plan.training.metrics import MetricsFile
from cleave_plan.training.ownership import shards_of
from cleave_plan.training.parameters import Parameters, elements_of
from cleave_plan.training.run import Duration, ServerReport, StepReport, TrainingResult, identity_of, more_than_planned
from cleave_plan.training.settings import Settings
from cleave_plan.training.step import TrainingStep, outputs_of


class Trainer:
    """One run: ``session`` executes ``step`` (under ``plan``) on ``batches``; ``settings`` say how its parameters move.

    ``crew``: lets the plan follow devices that are lost or come (None: it stays, and what is lost is cut anew each time).
    ``chronicle``: where what happens is written down, for a trace.
    Raises UsageError for groups that match nothing, InputFileError when weights are missing.
    """

    def __init__(
        self, step: TrainingStep, plan: Plan, session: Session, batches: Batches, settings: Settings, *,
        crew: Crew | None = None, chronicle: Chronicle | None = None,
    ) -> None:  # fmt: skip
        self._step, self._plan, self._session, self._batches, self._settings = step, plan, session, batches, settings
        self._crew, self._diary = crew, Diary(chronicle or Chronicle(0))
        settings.require_matches(list(step.gradient.names.gradients))
        initial, statistics = step.initial()
        shards = shards_of(plan, step.imported.workload, elements_of(initial))
        self._parameters = Parameters(
            initial, statistics, shards, settings, servers=plan.server_names, room=session.memory
        )  # fmt: skip
        recomputation = step.gradient.recomputation
        self._notes: list[str] = [] if recomputation is None else [recomputation.sentence]
        self._notes += more_than_planned(self._parameters.memory, plan.predicted.server_memory_bytes)
        self._identity: dict[str, Any] = {}
        self._workers = 0
        self._run_notes: dict[str, None] = {}
        self._idle_batches = 0

    def run(self, duration: Duration, progress: Progress = silent) -> TrainingResult:
        """Train; the result has the values of the last step.

        Raises UsageError for a folder of checkpoints that is another run's, InputFileError when none in it is whole or the data
        ends, ExecutionError when devices are gone for good, a loss or gradient is not finite, or a file cannot be written,
        RunInterruptedError after the last step's checkpoint when a signal has come.
        """
        begin = time.perf_counter()
        workload = self._step.imported.workload
        self._identity = identity_of(
            self._settings, steps=duration.steps, model=workload.sha256, samples=self._batches.samples,
            data=self._batches.fingerprint,
        )  # fmt: skip
        if self._step.draws_random_numbers:
            self._notes.append("operators draw random numbers whose state cannot be kept: a resumed run goes on with others")
        with ExitStack() as stack:
            stack.callback(self._parameters.close)
            folder = stack.enter_context(checkpoints_in(duration.checkpoints))
            first, written = self._begin(folder, resume=duration.resume)
            metrics = None
            if duration.metrics is not None:
                metrics = stack.enter_context(MetricsFile(duration.metrics, kept=first))
            came = stack.enter_context(interruptions()) if duration.stoppable else lambda: ""
            reports = []
            for number in range(first, duration.steps):
                report = self._with_change(self._one(number, duration.steps))
                reports.append(report)
                if metrics is not None:
                    metrics.write(self._line(report))
                progress(number + 1, duration.steps, self._label(report))
                stopped = came() if report.step < duration.steps else ""
                due = report.step % duration.checkpoint_every == 0 or report.step == duration.steps
                if folder is not None and (due or stopped):
                    written = self._keep(folder, report.step)
                if stopped:
                    raise _interrupted(stopped, report.step, duration.steps, written)
            if self._idle_batches:
                self._notes.append(f"batches in which no label counts, whose loss and gradients are 0: {self._idle_batches}")
            return TrainingResult(
                first_step=first + 1, steps=tuple(reports), samples=self._samples, tokens=self._tokens,
                seconds=time.perf_counter() - begin, predicted_step_s=self._predicted_s, servers=self._server_reports(),
                workers=self._workers, runtime=self._session.runtime, values=self._parameters.feeds, checkpoint=written,
                notes=(*self._notes, *self._run_notes),
            )  # fmt: skip

    def _server_reports(self) -> tuple[ServerReport, ...]:
        planned, processes = self._plan.predicted.server_memory_bytes, self._parameters.processes
        return tuple(
            ServerReport(
                name=name, process=processes[name], parameter_bytes=memory.parameter_bytes,
                optimizer_bytes=memory.optimizer_bytes, resident_bytes=memory.resident_bytes, planned_bytes=planned.get(name),
            )
            for name, memory in self._parameters.memory.items()
        )  # fmt: skip

    @property
    def _samples(self) -> int:
        return self._batches.samples * self._settings.accumulate

    @property
    def _tokens(self) -> int | None:
        return None if self._step.tokens is None else self._step.tokens * self._settings.accumulate

    @property
    def _predicted_s(self) -> float:
        return self._plan.predicted.batch_s * self._settings.accumulate

    def _one(self, number: int, steps: int) -> StepReport:
        """Step ``number`` (from 0): the gradients of its batches, averaged, and the optimizer."""
        begin = time.perf_counter()
        count = self._settings.accumulate
        losses: list[float] = []
        gradients: dict[str, Array] = {}
        traffic: list[tuple[int, int]] = []
        incidents: list[Incident] = []
        for place in range(count):
            result = self._batch(number * count + place, where=f"step {number + 1}")
            losses.append(self._loss(result))
            gradients = _added(gradients, outputs_of(self._step.gradient.names.gradients, result.outputs), keep=count > 1)
            traffic.append((result.bytes_down, result.bytes_up))
            incidents += result.incidents
        computed = time.perf_counter()
        share = self._settings.schedule.share(number, steps)
        norm = self._parameters.step(gradients, step=number + 1, share=share, scale=1 / count)
        now = time.perf_counter()
        down, up = (sum(way) for way in zip(*traffic, strict=True))
        report = StepReport(
            step=number + 1, loss=sum(losses) / count, learning_rate=self._settings.learning_rate * share, gradient_norm=norm,
            seconds=now - begin, optimizer_s=now - computed, bytes_down=down, bytes_up=up, incidents=tuple(incidents),
        )  # fmt: skip
        self._diary.step(report, begin)
        return report

    def _with_change(self, report: StepReport) -> StepReport:
        """Let the plan follow what became of devices in this step."""
        if self._crew is None:
            return report
        begun = time.perf_counter()
        change = self._crew.meet()
        self._plan = self._crew.plan
        if change is None:
            return report
        self._diary.change(change, begun)
        return replace(report, change=change)

    def _batch(self, number: int, *, where: str) -> RunResult:
        """Run batch ``number`` (from 0) and take in its running statistics; raises ExecutionError when its loss is not finite."""
        batch = self._batches.batch(number)
        self._count_labels(batch, where=where)
        begun = time.perf_counter()
        result = self._session.run({**batch, **self._parameters.feeds})
        self._diary.batch(number, result, begun)
        self._workers = result.workers
        self._run_notes.update(dict.fromkeys(result.notes))
        if not math.isfinite(self._loss(result)):
            raise ExecutionError(
                f"the loss is {self._loss(result)}", where=where, expected="a finite number",
                remedy="lower the learning rate, clip the gradients (clip_norm), or look at the data of this step",
            )  # fmt: skip
        self._parameters.keep_statistics(outputs_of(self._step.gradient.names.statistics, result.outputs))
        return result

    def _count_labels(self, batch: Mapping[str, Array], *, where: str) -> None:
        """See that labels are classes, and that some count; arrays that are none are the session's to refuse."""
        labels = self._step.labels
        given = None if labels is None else batch.get(labels.target)
        if labels is not None and isinstance(given, np.ndarray) and given.dtype.kind == "i":
            self._idle_batches += not labels.counted(given, where=f"the data of {where}")

    def _loss(self, result: RunResult) -> float:
        return float(np.asarray(result.outputs[self._step.gradient.names.loss]).reshape(()))

    def _begin(self, folder: CheckpointFolder | None, *, resume: bool) -> tuple[int, Any]:
        """The steps that are done already, and the checkpoint that says so."""
        if folder is None:
            return 0, None
        if not resume:
            if not folder.is_empty():
                raise UsageError(
                    "there are checkpoints of another run", where="--checkpoint", expected="an empty folder",
                    remedy="go on from them with --resume, or take another folder",
                )  # fmt: skip
            return 0, None
        found = folder.newest()
        self._notes += [f"a checkpoint was passed over: {sentence}" for sentence in found.damaged]
        if found.checkpoint is None:
            self._notes.append("there is no checkpoint yet: the run begins at its first step")
            return 0, None
        self._take_over(found)
        return found.checkpoint.step, found.path

    def _take_over(self, found: Found) -> None:
        """Go on from a checkpoint; raises UsageError when what is asked for now would not go on as the first run would have."""
        assert found.checkpoint is not None
        facts = found.checkpoint.facts
        for name in dict.fromkeys([*self._identity, *facts["identity"]]):
            before, now = facts["identity"].get(name), self._identity.get(name)
            if before != now:
                raise UsageError(
                    f"{name} was {before!r} and is {now!r}, so the run would not go on as it began", where=str(found.path),
                    expected="the model, data and settings of the first run", remedy="give them, or begin anew in another folder",
                )  # fmt: skip
        surroundings = self._surroundings()
        changed = [name for name, before in facts["surroundings"].items() if surroundings.get(name) != before]
        if changed:
            self._notes.append(f"resumed with another {', '.join(changed)}: the bits may differ from those of an undisturbed run")
        before = {server for _, server, _, _ in facts["servers"]}
        if before != {shard.server for shard in self._parameters.shards}:
            self._notes.append(
                f"the checkpoint is of {len(before)} servers: its parameters are shared out anew, the bits are the same"
            )
        self._parameters.restore(found.checkpoint.arrays, str(found.path))

    def _keep(self, folder: CheckpointFolder, step: int) -> Path:
        """Write the checkpoint after ``step``; where it is."""
        begun = time.perf_counter()
        written = folder.write(self._checkpoint(step))
        self._diary.checkpoint(step, begun)
        return written

    def _checkpoint(self, step: int) -> Checkpoint:
        facts = {
            "identity": self._identity,
            "surroundings": self._surroundings(),
            "data": self._batches.position(step * self._settings.accumulate),
            "servers": [list(shard) for shard in self._parameters.shards],
        }
        return Checkpoint(step=step, arrays=self._parameters.arrays(), facts=facts)

    def _surroundings(self) -> dict[str, str]:
        """What may change the last bits of a result though the same is asked for."""
        found = {"numpy": np.__version__, "runtime": self._session.runtime, "machine": platform.machine()}
        found["number of cores"] = str(usable_cores())
        if not self._settings.reproducible:
            found["plan"] = hashlib.sha256(json.dumps(plan_document(self._plan)).encode()).hexdigest()
        return found

    def _line(self, report: StepReport) -> dict[str, Any]:
        line = {
            "step": report.step, "loss": report.loss, "learning_rate": report.learning_rate,
            "gradient_norm": report.gradient_norm, "step_s": report.seconds, "predicted_step_s": self._predicted_s,
            "optimizer_s": report.optimizer_s, "samples_per_s": self._samples / report.seconds,
            "bytes_down": report.bytes_down, "bytes_up": report.bytes_up,
            "lost_devices": report.devices(Kind.LOST, Kind.WRONG), "joined_devices": report.devices(Kind.JOINED),
            "change": None if report.change is None else asdict(report.change),
            "servers": [asdict(server) for server in self._server_reports()],
        }  # fmt: skip
        if self._tokens is not None:
            line["tokens_per_s"] = self._tokens / report.seconds
        return line

    def _label(self, report: StepReport) -> str:
        done, unit = (self._samples, "samples") if self._tokens is None else (self._tokens, "tokens")
        return f"loss {report.loss:.4f}, {done / report.seconds:,.0f} {unit}/s"


def _interrupted(name: str, step: int, steps: int, written: Path | None) -> RunInterruptedError:
    return RunInterruptedError(
        f"ended by {name} after step {step} of {steps}, which is kept", where=str(written),
        remedy="go on with the same command and --resume",
    )  # fmt: skip


def _added(total: Mapping[str, Array], gradients: Mapping[str, Array], *, keep: bool) -> dict[str, Array]:
    """The sum so far with ``gradients``, in float32 or wider; ``keep`` copies what the next batch may overwrite."""
    if not keep:
        return dict(gradients)
    wide = {name: array.astype(np.promote_types(array.dtype, np.float32)) for name, array in gradients.items()}
    if not total:
        return wide
    for name, array in wide.items():
        np.add(total[name], array, out=total[name])
    return dict(total)
