"""What the local engine writes down of its workers and of the jobs that are open."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cleave_plan.execution.engines import wire
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.engines.process import WorkerProcess
from cleave_plan.execution.engines.together import rectangles
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.tile import Product

Group = tuple[Task, ...]
"""Tiles of one job that a worker computes as one."""


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """``devices`` are those that it plays still; ``known`` the jobs that it has been told of; ``closings`` are
    messages on those that are closed, which go with its next tiles."""

    process: WorkerProcess
    devices: tuple[str, ...]
    late: bool
    ready: bool = False
    waiting: deque[Group] = field(default_factory=deque)
    in_hand: dict[tuple[int, int], Task] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    closings: list[bytes] = field(default_factory=list)
    answers: wire.Answers = field(default_factory=wire.Answers)
    last_beat: int = 0
    silent_s: float = 0.0

    @property
    def unanswered(self) -> list[Task]:
        """Tasks that it owes."""
        return [*self.in_hand.values(), *(task for group in self.waiting for task in group)]

    def forget(self, job: int) -> int:
        """Take back the tiles of a job that it does not have in hand yet; how many they were."""
        kept = deque(group for group in self.waiting if group[0].job != job)
        tasks = sum(map(len, self.waiting)) - sum(map(len, kept))
        self.waiting = kept
        return tasks


@dataclass(slots=True, kw_only=True, eq=False)
class OpenJob:
    """An opened job and what keeps its memory: ``arrays`` until nobody works on it any more."""

    work: Work
    opening: bytes
    whole: Array
    arrays: tuple[Array, ...]
    apart: dict[int, tuple[int, Array]] = field(default_factory=dict)
    out: int = 0
    closed: bool = False

    def goes_in_place(self, task: Task) -> bool:
        """Whether a tile is written where it belongs in the whole result."""
        return not task.apart and self.work.holds_inner(task.box)

    def groups(self, tasks: Iterable[Task]) -> list[Group]:
        """Tiles of this job for one worker, those together that it should compute as one: of convolutions, in place."""
        whole = isinstance(self.work, Product) and self.work.window is not None
        joined = [task for task in tasks if whole and self.goes_in_place(task)]
        places = rectangles(tuple(task.box for task in joined))
        alone = [(task,) for task in tasks if not whole or not self.goes_in_place(task)]
        return [*(tuple(joined[place] for place in group) for group in places), *alone]
