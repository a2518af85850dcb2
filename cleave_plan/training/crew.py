"""The devices of a run between its steps: those that were lost go out of the plan, those that come are taken into it.

Within a batch the engine's events decide (:mod:`cleave_plan.execution.tiles`): what a lost device owes is cut anew, and one that
comes helps out. Here, after a step, the plan itself follows, by the planner's own code (:mod:`cleave_plan.planning.replan`), so
that the loss of a device costs its work once and not anew in each level of each step.

Devices are asked to come when the fleet's file changes: all that it names and that are not there. The file is looked at after
each step; what it says of devices that are there does not count before they are lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from cleave_plan.errors import InfeasibleError, InputFileError
from cleave_plan.execution.session import Session
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.fleet.fleetfile import load_fleet
from cleave_plan.ordering import natural
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.replan import GAIN, lost_before, replan
from cleave_plan.workload.graph import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewChange:
    """What became of the plan after a step.

    ``lost`` devices, which had tiles, went out of it, and ``joined`` ones were taken in; ``tiles`` of products became ``pieces``
    on ``takers`` devices, or, if ``anew``, the whole plan was made again; that took ``seconds``. A batch is predicted to take
    ``batch_s`` now, it was ``batch_before_s``. ``refused``: why a changed fleet file was not used ("" when nothing is wrong).
    """

    lost: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    tiles: int = 0
    pieces: int = 0
    takers: int = 0
    anew: bool = False
    seconds: float = 0.0
    batch_s: float = 0.0
    batch_before_s: float = 0.0
    refused: str = ""


class FleetFile:
    """A fleet's file, in the version that is there now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._now()

    def news(self) -> Fleet | None:
        """What the file says if it has changed since it was looked at last; raises InputFileError for a file that is none."""
        before, self._stamp = self._stamp, self._now()
        return None if self._stamp in (before, None) else load_fleet(self._path)

    def _now(self) -> tuple[int, int, int] | None:
        """What tells this version from others; None when there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class Crew:
    """Who works for ``session``, which runs ``plan`` (made for ``workload`` and ``fleet``, whose servers are the plan's).

    ``file``: the fleet's (None: nobody is asked to come in the middle of the run).
    """

    def __init__(self, plan: Plan, workload: Workload, fleet: Fleet, session: Session, *, file: FleetFile | None = None) -> None:
        self.plan = plan
        self._workload, self._fleet, self._session, self._file = workload, fleet, session, file
        self._listed = {device.name: device for device in fleet.devices}

    def meet(self) -> CrewChange | None:
        """Look who is there after a step, and let the plan follow; None when nothing has changed.

        When nobody is left the plan stays, and the next batch says so.
        """
        refused = self._look()
        out, known, employed = lost_before(self.plan), set(self.plan.device_names), self._session.employed
        here = self._session.devices if employed else frozenset(self._listed)
        lost = (employed - here) | (known - out - self._listed.keys())
        joined = [device for name, device in self._listed.items() if name in here and (name in out or name not in known)]
        if lost or joined:
            return self._follow(lost, (known - out - here) | lost, joined, refused)
        return CrewChange(refused=refused) if refused else None

    def _follow(self, lost: Set[str], absent: Set[str], joined: Sequence[Device], refused: str) -> CrewChange | None:
        """Re-plan: ``lost`` are those of the ``absent`` whose work others take."""
        begin, before = time.perf_counter(), self.plan.predicted.batch_s
        try:
            found = replan(self.plan, self._workload, self._fleet, absent, joined, gain=GAIN if joined else None)
        except InfeasibleError:
            return None
        self.plan, self._fleet = found.plan, found.fleet
        self._session.change(found.plan)
        return CrewChange(
            lost=tuple(sorted(lost, key=natural)), joined=found.joined, tiles=found.tiles, pieces=found.pieces,
            takers=found.takers, anew=found.anew, seconds=time.perf_counter() - begin, batch_s=found.plan.predicted.batch_s,
            batch_before_s=before, refused=refused,
        )  # fmt: skip

    def _look(self) -> str:
        """Read the fleet's file if it has changed, and ask for the devices that are not there; why that cannot be done."""
        try:
            found = None if self._file is None else self._file.news()
        except InputFileError as error:
            return str(error)
        if found is not None:
            self._listed = {device.name: device for device in found.devices}
            asked = sorted(self._listed.keys() - self._session.devices, key=natural)
            if asked and self._session.employed:
                self._session.join(asked)
        return ""
