"""What a training run is asked for, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from cleave_plan.errors import UsageError
from cleave_plan.execution.incidents import Incident, Kind
from cleave_plan.training.crew import CrewChange
from cleave_plan.training.orders import Memory
from cleave_plan.training.settings import ScheduleKind, Settings
from cleave_plan.units import Unit, format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How long a run is, and what it leaves on the way.

    ``steps``: the last step's number. ``metrics``: a file of JSON lines. ``checkpoints``: their folder, one is written after each
    ``checkpoint_every`` steps and after the last. ``resume``: go on from the newest good one. ``stoppable``: SIGINT and SIGTERM
    end the run after the step under way, with a checkpoint (only in the main thread). Raises UsageError when there is no folder
    to resume from, or to stop into.
    """

    steps: int
    metrics: Path | None = None
    checkpoints: Path | None = None
    checkpoint_every: int = 100
    resume: bool = False
    stoppable: bool = False

    def __post_init__(self) -> None:
        if self.stoppable and self.checkpoints is None:
            raise UsageError("a run that can be stopped needs a place for its state", expected="a folder of checkpoints")
        if self.resume and self.checkpoints is None:
            raise UsageError("no folder to resume from", where="--resume", expected="--checkpoint DIR with it")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step: its number from 1, mean loss of its batches, learning rate, norm of all gradients before clipping.

    ``seconds``: as measured here, the optimizer's among them; bytes as links would have carried them. ``incidents``: what
    befell devices in it; ``change``: what became of the plan after it (None: nothing).
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    optimizer_s: float
    bytes_down: int
    bytes_up: int
    incidents: tuple[Incident, ...]
    change: CrewChange | None = None

    def devices(self, *kinds: Kind) -> list[str]:
        """The devices to which something of these kinds happened, each once."""
        return list(dict.fromkeys(name for each in self.incidents if each.kind in kinds for name in each.devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What a parameter server has in memory, and what the plan said.

    ``process``: its process id; None for the first, which the run's own process plays. ``parameter_bytes`` (with master copies)
    and ``optimizer_bytes`` are what it holds. ``resident_bytes``: the most that its process has had in memory, programs and
    shared pages included. ``planned_bytes``: parameters, optimizer state and, on the first, activations (None: not in the plan).
    """

    name: str
    process: int | None
    parameter_bytes: int
    optimizer_bytes: int
    resident_bytes: int
    planned_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingResult:
    """What a run did.

    ``first_step``: 1, or the one after the checkpoint that it went on from. ``samples`` and ``tokens`` in a step (None where
    there are none). ``predicted_step_s``: on the plan's fleet, whose time of a batch counts once for each micro-batch.
    ``servers``: in the plan's order. ``values``: trained parameters and statistics by name.
    ``notes``: what a user must see.
    """

    first_step: int
    steps: tuple[StepReport, ...]
    samples: int
    tokens: int | None
    seconds: float
    predicted_step_s: float
    workers: int
    runtime: str
    servers: tuple[ServerReport, ...]
    values: Mapping[str, Any]
    checkpoint: Path | None
    notes: tuple[str, ...] = field(default=())

    @property
    def step_s(self) -> float | None:
        """The median of the steps' seconds; None when there was nothing left to do."""
        return median(report.seconds for report in self.steps) if self.steps else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples of the median step a second."""
        return None if self.step_s is None else self.samples / self.step_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the median step a second."""
        return None if self.step_s is None or self.tokens is None else self.tokens / self.step_s


def more_than_planned(held: Mapping[str, Memory], planned: Mapping[str, float]) -> tuple[str, ...]:
    """The notes on servers that hold more than the plan counted, as with master copies of parameters of 16 bits."""
    found = []
    for name, memory in held.items():
        own = memory.parameter_bytes + memory.optimizer_bytes
        if name in planned and own > planned[name]:
            found.append(
                f"server {name!r} holds {format_value(own, Unit.BYTES)} of parameters and optimizer state, the plan counted "
                f"{format_value(planned[name], Unit.BYTES)}"
            )
    return tuple(found)


def identity_of(settings: Settings, *, steps: int, model: str, samples: int, data: str) -> dict[str, Any]:
    """What must be the same for a resumed run to give what the first one would have given.

    ``model``: SHA-256 of the training graph, which holds the model and the loss. The number of steps counts only where the
    schedule depends on it.
    """
    identity = {"model_sha256": model, "batch": samples, "data": data, **settings.document()}
    if settings.schedule.kind is not ScheduleKind.CONSTANT:
        identity["steps"] = steps
    return identity
