"""How a model is trained: the optimizer and its figures, by groups of parameters, over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from cleave_plan.errors import UsageError


class OptimizerKind(StrEnum):
    """The optimizers that there are."""

    SGD = "sgd"
    ADAMW = "adamw"


class ScheduleKind(StrEnum):
    """What the learning rate does after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The share of the learning rate that a step gets.

    With s = 0, 1, ... the step, w = ``warmup_steps``, S the run's steps, f = ``final`` and t = (s - w) / (S - w):

        s < w                    (s + 1) / w
        constant                 1
        linear                   1 - (1 - f) t
        cosine                   f + (1 - f) (1 + cos πt) / 2
    """

    kind: ScheduleKind = ScheduleKind.CONSTANT
    warmup_steps: int = 0
    final: float = 0.0

    def share(self, step: int, steps: int) -> float:
        """The share at ``step`` (from 0) of ``steps``."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind is ScheduleKind.CONSTANT:
            return 1.0
        passed = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        if self.kind is ScheduleKind.LINEAR:
            return 1 - (1 - self.final) * passed
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters whose names match one of ``parameters`` (patterns), and what differs for them.

    ``weight_decay`` and ``learning_rate`` replace the run's own; None keeps them.
    """

    parameters: tuple[str, ...]
    weight_decay: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything beside model, data and plan that decides what a run computes.

    ``momentum`` and ``nesterov`` are SGD's, ``betas`` and ``epsilon`` AdamW's. A parameter belongs to the first of ``groups``
    that it matches. ``clip_norm``: the largest norm of all gradients together (None: not clipped). ``accumulate``: batches whose
    gradients are averaged to one step. ``seed`` and ``shuffle``: the order of the samples. ``reproducible``: the same bits
    whatever the plan and whoever is lost on the way.

    Raises UsageError for figures that cannot be.
    """

    optimizer: OptimizerKind = OptimizerKind.ADAMW
    learning_rate: float = 1e-3
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    groups: tuple[Group, ...] = ()
    clip_norm: float | None = None
    schedule: Schedule = Schedule()
    accumulate: int = 1
    seed: int = 0
    shuffle: bool = True
    reproducible: bool = True

    def __post_init__(self) -> None:
        for group in self.groups:
            _require(bool(group.parameters), "groups", "no pattern", "at least one pattern of parameters' names")
        rates = [self.learning_rate, *(group.learning_rate for group in self.groups if group.learning_rate is not None)]
        decays = [self.weight_decay, *(group.weight_decay for group in self.groups if group.weight_decay is not None)]
        for rate in rates:
            _require(0 <= rate < math.inf, "learning_rate", rate, "a number of 0 or more")
        for decay in decays:
            _require(0 <= decay < math.inf, "weight_decay", decay, "a number of 0 or more")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "a number from 0 up to, but not, 1")
        _require(not self.nesterov or self.momentum > 0, "nesterov", self.nesterov, "a momentum above 0 with it")
        _require(all(0 <= beta < 1 for beta in self.betas), "betas", list(self.betas), "numbers from 0 up to, but not, 1")
        _require(0 < self.epsilon < math.inf, "epsilon", self.epsilon, "a number above 0")
        clipped = self.clip_norm is None or 0 < self.clip_norm < math.inf
        _require(clipped, "clip_norm", self.clip_norm, "a number above 0")
        _require(self.accumulate >= 1, "accumulate", self.accumulate, "1 batch or more")
        _require(self.seed >= 0, "seed", self.seed, "a whole number of 0 or more")
        _require(self.schedule.warmup_steps >= 0, "schedule.warmup_steps", self.schedule.warmup_steps, "0 steps or more")
        _require(0 <= self.schedule.final <= 1, "schedule.final", self.schedule.final, "a share from 0 to 1")

    def rate_of(self, name: str) -> float:
        """The learning rate of a parameter, before the schedule."""
        found = self._group_of(name)
        return self.learning_rate if found is None or found.learning_rate is None else found.learning_rate

    def decay_of(self, name: str) -> float:
        """The weight decay of a parameter."""
        found = self._group_of(name)
        return self.weight_decay if found is None or found.weight_decay is None else found.weight_decay

    def _group_of(self, name: str) -> Group | None:
        return next((group for group in self.groups if any(fnmatchcase(name, each) for each in group.parameters)), None)

    def require_matches(self, names: Sequence[str]) -> None:
        """Raise UsageError for a group's pattern that no parameter among ``names`` matches: it may be misspelt."""
        for pattern in (pattern for group in self.groups for pattern in group.parameters):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError(
                    f"no parameter matches {pattern!r}", where="groups", expected=f"patterns of {', '.join(names[:5])}, ...",
                    remedy="see `cleave-plan gradient` for the parameters' names",
                )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The settings as JSON, as checkpoints keep them."""
        fields = asdict(self)
        fields["betas"] = list(self.betas)
        fields["groups"] = [{**asdict(group), "parameters": list(group.parameters)} for group in self.groups]
        return fields


def _require(holds: bool, name: str, found: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {found!r}", where="training settings", expected=expected)
