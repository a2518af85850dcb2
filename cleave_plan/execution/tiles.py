"""The tiles of one level: sent to their devices, computed here where the plan leaves them to the server, put together.

All that a run does about devices that are lost, lie, or are late is done here: the walk above sees results only. A tile may be
out twice, when its device is past its deadline and others have nothing to do; the first answer counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cleave_plan.errors import ExecutionError
from cleave_plan.execution.admission import Placed
from cleave_plan.execution.assembly import Assembly
from cleave_plan.execution.engines.base import Engine, Event, Failed, Finished, Joined, Lost, Task
from cleave_plan.execution.incidents import Incident, Key, Kind
from cleave_plan.execution.inspection import Inspector
from cleave_plan.execution.recovery import Figures, cut_anew
from cleave_plan.execution.tally import LevelTiming, Tally, TileTime
from cleave_plan.execution.watch import Watch, work_of
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.products import Operands
from cleave_plan.ordering import natural
from cleave_plan.progress import Progress, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One product of the level."""

    placed: Placed
    lowered: Operands
    assembly: Assembly


class LevelRun:
    """One level of a run on ``engine``; ``first_job`` is the first of as many new job numbers as products will be added.

    ``total`` is what ``progress`` counts up to, ``label`` what it is told; ``index``: the level's number. ``watch`` knows
    deadlines, ``inspector`` checks what comes back, ``figures`` are the fleet's, where they are known.
    """

    def __init__(
        self, engine: Engine, tally: Tally, first_job: int, *, watch: Watch, inspector: Inspector, figures: Figures | None = None,
        index: int = 0, total: int = 0, label: str = "", progress: Progress = silent,
    ) -> None:  # fmt: skip
        self._engine, self._tally, self._next_job = engine, tally, first_job
        self._watch, self._inspector, self._figures = watch, inspector, figures
        self._index, self._total, self._label, self._progress = index, total, label, progress
        self._out: dict[Key, Task] = {}
        self._twin: dict[Key, int] = {}  # second copies of tiles: the tile that each is one of
        self._late: set[str] = set()
        self._next_tile: dict[int, int] = {}
        self._parts: dict[int, _Part] = {}
        self._began = time.perf_counter()
        self._sent = False
        self._device_s: dict[str, float] = {}
        self._sent_at: dict[Key, float] = {}
        watch.begin()

    @property
    def timing(self) -> LevelTiming:
        """What it took so far."""
        return LevelTiming(
            seconds=time.perf_counter() - self._began, device_s=dict(self._device_s), start_s=self._began - self._tally.began
        )

    def add(self, placed: Placed, lowered: Operands) -> int:
        """Send the tiles of a product to their devices; returns at once, with the product's job number."""
        job, self._next_job = self._next_job, self._next_job + 1
        boxes = {tile: box for tile, (_, box) in enumerate(placed.tiles)}
        whole = self._engine.open(job, lowered.work, lowered.arrays) if placed.away else None
        assembly = Assembly(lowered.work, boxes, lowered.along, whole=whole)
        self._parts[job] = _Part(placed=placed, lowered=lowered, assembly=assembly)
        if placed.away and not self._sent:
            self._began, self._sent = time.perf_counter(), True
        self._next_tile[job] = len(placed.tiles)
        homeless = self._send(Task(job, tile, *spot) for tile, spot in placed.away.items())
        if homeless:
            names = _devices(homeless)
            self._move(homeless, names, Kind.LOST, where=", ".join(names), reason="was gone before the level began")
        return job

    def finish(self) -> Mapping[int, Array]:
        """The canonical result of each product by its job number, when the server's own tiles and all others are there.

        Raises ExecutionError when no device is left, or one cannot compute a tile.
        """
        for part in self._parts.values():
            for tile in part.placed.home:
                part.assembly.compute(tile, part.lowered.arrays)
                self._tally.at_home += 1
        while not all(part.assembly.complete for part in self._parts.values()):
            # Deadlines are worked out only where there is nothing to take in.
            event = self._engine.collect(0) or self._engine.collect(self._patience_s())
            if event is not None:
                self._take(event)
            else:
                self._help()
        for device in self._device_s.keys() - self._late:
            self._watch.in_time(device)
        results = {}
        for job, part in self._parts.items():
            results[job] = part.assembly.finish()
            if part.placed.away:
                self._engine.close(job)
        return results

    def _take(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._receive(event)
        elif isinstance(event, Failed):
            raise ExecutionError(
                f"tile {event.task.tile} of {self._parts[event.task.job].placed.gemm.name!r} failed: {event.reason}",
                where=f"device {event.task.device}",
            )
        elif isinstance(event, Lost):
            self._lose(event)
        elif isinstance(event, Joined):
            self._note(Kind.JOINED, event.devices, where=", ".join(event.devices), reason="joined")

    def _lose(self, event: Lost) -> None:
        """Move what only the lost devices were to give; those that are late with another copy may need help again."""
        lost = [self._out.pop((task.job, task.tile)) for task in event.tasks if (task.job, task.tile) in self._out]
        elsewhere = {(task.job, self._goal(task)): task.device for task in self._out.values()}
        owed: dict[Key, Task] = {}
        for task in lost:
            goal = (task.job, self._goal(task))
            if goal in elsewhere:
                self._late.discard(elsewhere[goal])
            elif self._wanted(*goal):
                owed[goal] = task._replace(tile=goal[1])
        self._move(list(owed.values()), event.devices, Kind.LOST, where=event.where, reason=event.reason)

    def _receive(self, event: Finished) -> None:
        """Take a tile in, unless it is not right or is there already."""
        task, now = event.task, time.perf_counter()
        self._out.pop((task.job, task.tile), None)
        self._watch.answered(task, now)
        self._time(event, now)
        goal, part = self._goal(task), self._parts[task.job]
        if not self._wanted(task.job, goal):
            return
        flaw = self._inspector.flaw(part.lowered, event)
        if flaw:
            self._refuse(task._replace(tile=goal), flaw)
            return
        contested = any((other.job, self._goal(other)) == (task.job, goal) and not other.apart for other in self._out.values())
        part.assembly.add(goal, event.result, in_place=event.in_place, contested=contested)
        self._tally.count(event)
        self._tally.journal.done((task.job, goal), self._at_s())
        self._progress(self._tally.tiles, max(self._total, self._tally.tiles), self._label)

    def _time(self, event: Finished, now: float) -> None:
        """Write down when a tile was there."""
        task, zero = event.task, self._tally.began
        before = self._began + self._device_s.get(task.device, -math.inf)
        start = max(before, self._sent_at.pop((task.job, task.tile), self._began))
        self._device_s[task.device] = now - self._began
        self._tally.tile_times.append(
            TileTime(
                task.device, self._parts[task.job].placed.gemm.name, self._index, start - zero, now - zero, event.seconds,
                event.bytes_down, event.bytes_up,
            )
        )  # fmt: skip

    def _refuse(self, task: Task, flaw: str) -> None:
        """A device lied: it is excluded, and its tile computed by others; what else it owes comes back with its loss."""
        gemm = self._parts[task.job].placed.gemm.name
        if task.device in self._engine.devices:
            self._engine.drop(task.device, "returned a wrong tile and was excluded")
        again = [] if any((other.job, self._goal(other)) == task[:2] for other in self._out.values()) else [task]
        self._move(
            again, (task.device,), Kind.WRONG, where=f"device {task.device}",
            reason=f"returned a wrong tile of {gemm!r} ({flaw}) and was excluded", barred=task.device,
        )  # fmt: skip

    def _patience_s(self) -> float | None:
        """How long to wait for an event before somebody is late whom somebody else could help."""
        if not self._idle():
            return None
        due = min((self._watch.due_s(device) for device in self._owing() - self._late), default=math.inf)
        return None if due == math.inf else max(0.0, due - time.perf_counter())

    def _help(self) -> None:
        """Give what is owed by devices that are past their deadline to those that have nothing to do, too."""
        now = time.perf_counter()
        for device in sorted(self._owing() - self._late, key=natural):
            idle = self._idle()
            if not idle or self._watch.due_s(device) > now:
                continue
            self._late.add(device)
            owed = [task for task in self._out.values() if task.device == device and self._wanted(task.job, self._goal(task))]
            load = dict.fromkeys(idle, 0.0)
            copies = []
            for task in owed:
                helper = min(load, key=lambda name: load[name])
                load[helper] += work_of(task)
                tile, self._next_tile[task.job] = self._next_tile[task.job], self._next_tile[task.job] + 1
                copy = Task(task.job, tile, helper, task.box, apart=True)
                if not self._send([copy]):
                    self._twin[copy.job, copy.tile] = self._goal(task)
                    copies.append(copy)
            silent = self._watch.silent_s(device, now)
            self._note(
                Kind.LATE, (device,), where=f"device {device}",
                reason=f"was past its deadline, {silent:.2g} s after it was last heard of", tiles=len(owed), pieces=copies,
            )  # fmt: skip
            if self._watch.overtaken(device) and device in self._engine.devices:
                self._engine.drop(device, "was past its deadline in level after level and was excluded")
                self._watch.forgive()

    def _owing(self) -> set[str]:
        """Devices that tiles are wanted of."""
        return {task.device for task in self._out.values() if self._wanted(task.job, self._goal(task))}

    def _idle(self) -> list[str]:
        """Devices that have nothing to do."""
        busy = {task.device for task in self._out.values()}
        return [device for device in self._engine.devices if device not in busy]

    def _goal(self, task: Task) -> int:
        """The tile that a task is to give."""
        return self._twin.get((task.job, task.tile), task.tile)

    def _wanted(self, job: int, goal: int) -> bool:
        return self._parts[job].assembly.waits_for(goal)

    def _send(self, tasks: Iterable[Task]) -> list[Task]:
        """Hand tiles to their devices together; those whose device is known to be gone."""
        there: list[Task] = []
        homeless: list[Task] = []
        devices = set(self._engine.devices)
        for task in tasks:
            (there if task.device in devices else homeless).append(task)
        if there:
            self._engine.send(*there)
        now = time.perf_counter()
        for task in there:
            self._out[task.job, task.tile] = task
            self._sent_at[task.job, task.tile] = now
            self._watch.sent(task, now)
        return homeless

    def _at_s(self) -> float:
        return time.perf_counter() - self._tally.began

    def _note(
        self, kind: Kind, devices: tuple[str, ...], *, where: str, reason: str, tiles: int = 0, pieces: Sequence[Task] = (),
        began_s: float | None = None,
    ) -> None:  # fmt: skip
        now = self._at_s()
        at_s = now if began_s is None else began_s
        silent_s = max((self._watch.silent_s(device, at_s + self._tally.began) for device in devices), default=0.0)
        incident = Incident(
            kind=kind, devices=devices, level=self._index, at_s=at_s, silent_s=silent_s, tiles=tiles, pieces=len(pieces),
            takers=len(_devices(pieces)), replan_s=now - at_s, where=where, reason=reason,
        )  # fmt: skip
        self._tally.journal.note(incident, [(task.job, self._goal(task)) for task in pieces])

    def _move(
        self, owed: Sequence[Task], devices: tuple[str, ...], kind: Kind, *, where: str, reason: str, barred: str = ""
    ) -> None:  # fmt: skip
        """Give the tiles ``owed`` by devices that are gone, or ``barred``, to others, and note it."""
        began_s = self._at_s()
        pieces: list[Task] = []
        for job in dict.fromkeys(task.job for task in owed):
            part, mine = self._parts[job], [task for task in owed if task.job == job]
            waiting = [*self._out.values(), *pieces]
            takers = [device for device in self._engine.devices if device != barred]
            found = cut_anew(
                part.placed.gemm, [task.box for task in mine], takers, waiting, grid=part.placed.grid, figures=self._figures
            )
            cuts: dict[int, dict[int, Box]] = {}
            for origin, device, box in found:
                tile, self._next_tile[job] = self._next_tile[job], self._next_tile[job] + 1
                cuts.setdefault(mine[origin].tile, {})[tile] = box
                pieces.append(Task(job, tile, device, box))
            for tile, parts in cuts.items():
                part.assembly.replace(tile, parts)
                self._tally.journal.moved((job, tile), ((job, piece) for piece in parts))
        self._note(kind, devices, where=where, reason=reason, tiles=len(owed), pieces=pieces, began_s=began_s)
        for device in devices:
            self._watch.gone(device)
        again = self._send(pieces)
        if again:
            names = _devices(again)
            self._move(again, names, Kind.LOST, where=", ".join(names), reason="was gone when it was asked to help")


def _devices(tasks: Iterable[Task]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(task.device for task in tasks))
