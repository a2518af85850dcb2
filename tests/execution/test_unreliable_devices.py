"""Devices that lie, are late, die in a race or come late, played in this process: what a level makes of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small_models
from hand_plans import hand_plan, rows
from in_process import InProcess

from cleave_plan.cost.lateness import GRACE_S, PATIENCE
from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.execution.engines.base import Event, Joined, Lost, Task
from cleave_plan.execution.incidents import Incident, Journal, Kind
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.execution.watch import OVERHEAD_S, Watch
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.importer import load_model

SIZE = 64
BATCHES = 3
A = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
B = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)


class Unreliable(InProcess):
    """``lie(task, result)`` may change what a device returns; tasks of ``silent`` devices wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[str] = set()
        self.lie: Callable[[Task, np.ndarray], None] = lambda task, result: None
        self.events: list[Event] = []
        self.dropped: dict[str, str] = {}

    def join(self, devices: tuple[str, ...]) -> None:
        """They are there at once."""
        self._devices += tuple(devices)
        self.events.append(Joined(devices=tuple(devices)))

    def drop(self, device: str, reason: str) -> None:
        """What it owes comes back."""
        self.dropped[device] = reason
        self.lose(device, reason)

    def lose(self, device: str, reason: str = "is gone") -> None:
        """As if its process had died."""
        self._devices = tuple(name for name in self._devices if name != device)
        owed = [task for task in self._tasks if task.device == device and task.job in self._jobs]
        self._tasks = type(self._tasks)(task for task in self._tasks if task.device != device)
        self.events.append(Lost(devices=(device,), tasks=tuple(owed), where=f"device {device}", reason=reason))

    def send(self, *tasks: Task) -> None:
        """Refuse devices that are gone."""
        if gone := {task.device for task in tasks}.difference(self._devices):
            raise KeyError(*gone)
        super().send(*tasks)

    def collect(self, timeout_s: float | None = None) -> Event | None:
        """The oldest tile of a device that answers."""
        if self.events:
            return self.events.pop(0)
        for _ in range(len(self._tasks)):
            if self._tasks[0].job in self._jobs and self._tasks[0].device not in self.silent:
                event = super().collect()
                self.lie(event.task, event.result)
                return event
            self._tasks.rotate(-1)
        assert timeout_s is not None, "nothing will ever come"
        time.sleep(timeout_s)
        return None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One product, A B."""
    nodes = [small_models.helper.make_node("MatMul", ["a", "b"], ["y"], name="y")]
    return small_models.save(tmp_path / "one.onnx", nodes, {"a": (small_models.FLOAT, [SIZE, SIZE])}, ["y"], {"b": B})


def run_batches(
    path: Path, engine: Unreliable, before: Callable[[int, Session], None], *, batches: int = BATCHES
) -> list[RunResult]:
    """Batches over four devices with 16 rows each; ``before`` is told the number of each. Every one must be right."""
    workload = load_model(path).workload
    plan = hand_plan(workload, {"y": rows(workload.gemms[0], 16, 16, 16, 16)}, devices=4)
    results = []
    with Session(plan, path, engine=engine, integrity=True) as session:
        for batch in range(batches):
            before(batch, session)
            results.append(session.run({"a": A}))
            np.testing.assert_allclose(results[-1].outputs["y"], A @ B, rtol=1e-4, atol=1e-4)
    return results


def test_a_wrong_tile_is_computed_again_and_its_device_excluded(path: Path) -> None:
    """One element is off: the device is named with what it returned, and gets nothing more in later batches."""
    engine = Unreliable()
    seen: list[str] = []

    def lie(task: Task, result: np.ndarray) -> None:
        seen.append(task.device)
        if task.device == "device-2":
            result[0, 3, 5] += 1.0

    engine.lie = lie
    results = run_batches(path, engine, lambda batch, session: None)
    (wrong,) = [incident for incident in results[0].incidents if incident.kind is Kind.WRONG]
    assert wrong.devices == ("device-2",)
    assert "element [0, 35, 5]" in wrong.reason
    assert wrong.tiles == 1
    assert wrong.takers in (1, 2, 3)
    assert wrong.recovery_s is not None
    assert list(engine.dropped) == ["device-2"]
    assert seen.count("device-2") == 1
    assert results[0].tiles_checked > 4


def test_without_integrity_nothing_is_checked(path: Path) -> None:
    """The default on this machine: a wrong element passes, and that is what the option is for."""
    engine = Unreliable()
    engine.lie = lambda task, result: result.__setitem__((0, 0, 0), 99.0)
    workload = load_model(path).workload
    with Session(hand_plan(workload, {"y": rows(workload.gemms[0], SIZE)}), path, engine=engine) as session:
        result = session.run({"a": A})
    assert result.outputs["y"][0, 0] == 99.0
    assert result.tiles_checked == 0


def test_when_every_device_lies_there_is_an_error(path: Path) -> None:
    """Never a wrong result."""
    engine = Unreliable()
    engine.lie = lambda task, result: result.fill(0)
    with pytest.raises(ExecutionError, match="no device is left"):
        run_batches(path, engine, lambda batch, session: None)


def test_a_late_device_is_helped_and_given_up_when_it_stays_late(path: Path) -> None:
    """Its tile is computed by another in the first batches; after some it is excluded, and its tiles are cut anew."""
    engine = Unreliable()

    def before(batch: int, session: Session) -> None:
        if batch == 1:
            engine.silent.add("device-1")

    results = run_batches(path, engine, before, batches=PATIENCE + 2)
    for result in results[1 : PATIENCE + 1]:
        late = [incident for incident in result.incidents if incident.kind is Kind.LATE]
        assert [incident.devices for incident in late] == [("device-1",)]
        assert late[0].silent_s >= GRACE_S
        assert (late[0].tiles, late[0].pieces) == (1, 1)
    assert list(engine.dropped) == ["device-1"]
    assert [incident.kind for incident in results[PATIENCE + 1].incidents] == [Kind.LOST]


def test_a_device_that_is_late_once_stays(path: Path) -> None:
    """Being in time again is forgiven: only lateness in level after level ends a device."""
    engine = Unreliable()

    def before(batch: int, session: Session) -> None:
        engine.silent = {"device-1"} if batch % 2 else set()

    run_batches(path, engine, before, batches=2 * PATIENCE + 1)
    assert not engine.dropped


def test_who_helps_may_die_too(path: Path) -> None:
    """The late device's tile goes to another, which is lost with it; then to a third."""
    engine = Unreliable()
    helpers: list[str] = []

    def before(batch: int, session: Session) -> None:
        if batch == 1:
            engine.silent.add("device-1")

    plain = engine.send

    def send(*tasks: Task) -> None:
        plain(*tasks)
        for task in tasks:
            if not task.apart:
                continue
            helpers.append(task.device)
            if len(helpers) == 1:
                engine.lose(task.device)

    engine.send = send  # type: ignore[method-assign]
    run_batches(path, engine, before, batches=2)
    assert len(helpers) == 2


def test_joined_devices_take_over(path: Path) -> None:
    """All planned devices die; one that came late computes everything, in this batch and the next."""
    engine = Unreliable()

    def before(batch: int, session: Session) -> None:
        if batch == 1:
            session.join(["newcomer"])
            for number in range(4):
                engine.lose(f"device-{number}")
            with pytest.raises(UsageError, match="newcomer"):
                session.join(["newcomer"])

    results = run_batches(path, engine, before)
    assert Kind.JOINED in {incident.kind for incident in results[1].incidents}
    assert set(results[1].device_s) == set(results[2].device_s) == {"newcomer"}


def test_deadlines_by_hand() -> None:
    """A device that took 3 s for a tile of nothing is due after 3 s times e, and the grace; one without any pace never."""
    watch, task = Watch(), Task(0, 0, "a", Box(0, 0, 0, 0, 0, 0, 0, 0))
    watch.begin()
    watch.sent(task, 10.0)
    assert watch.due_s("a") == math.inf
    watch.answered(task, 13.0)
    assert watch.due_s("a") == math.inf
    watch.begin()
    watch.sent(task, 20.0)
    watch.sent(task._replace(device="b"), 20.0)
    assert watch.due_s("a") == pytest.approx(20 + 3 * math.e + GRACE_S)
    assert watch.due_s("b") == pytest.approx(watch.due_s("a"))
    watch.sent(task, 21.0)
    assert watch.due_s("a") == pytest.approx(21 + 6 * math.e + GRACE_S)
    assert OVERHEAD_S == 1e-4


def test_a_recovery_ends_with_the_last_piece_of_pieces() -> None:
    """Two pieces, of which one is lost and cut again."""
    journal = Journal()
    journal.note(Incident(kind=Kind.LOST, devices=("a",), level=0, at_s=1.0, where="", reason=""), [(0, 4), (0, 5)])
    journal.done((0, 4), 2.0)
    journal.moved((0, 5), [(0, 6), (0, 7)])
    journal.done((0, 6), 3.0)
    assert journal.incidents[0].recovery_s is None
    journal.done((0, 7), 4.5)
    assert journal.incidents[0].recovery_s == 3.5


def test_an_answer_in_place_after_the_race_does_no_harm(path: Path) -> None:
    """A late device writes nonsense into the whole result after its tile was taken from another."""
    engine = Unreliable()
    wholes: list[np.ndarray] = []
    opened = engine.open

    def keep(job: int, work: object, operands: object) -> np.ndarray:
        wholes.append(opened(job, work, operands))  # type: ignore[arg-type]
        return wholes[-1]

    engine.open = keep  # type: ignore[method-assign]
    workload = load_model(path).workload
    plan = hand_plan(workload, {"y": rows(workload.gemms[0], 16, 48)}, devices=2)

    def nonsense(done: int, total: int, label: str) -> None:
        if len(wholes) == 2 and done == total:
            wholes[-1][0, :16] = np.nan

    with Session(plan, path, engine=engine, progress=nonsense) as session:
        session.run({"a": A})
        engine.silent.add("device-0")
        result = session.run({"a": A})
    assert np.isnan(wholes[-1][0, 0, 0])
    np.testing.assert_allclose(result.outputs["y"], A @ B, rtol=1e-4, atol=1e-4)
