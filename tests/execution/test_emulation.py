"""Emulation: predicted figures beside the verifier's, results held back until the fleet would have sent them, and the scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_models
from hand_plans import random_plan
from in_process import InProcess

from cleave_plan.api import emulate_run
from cleave_plan.errors import AnswerIsNoError
from cleave_plan.execution.emulation import LONGEST_RUN_S, ROOM, SHORTEST_LEVEL_S, scale_for
from cleave_plan.execution.engines.base import Event, Failed, Finished, Joined, Lost, Task
from cleave_plan.execution.engines.emulated import EmulatedEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.prices import FleetPrices, PredictedLevel
from cleave_plan.execution.session import Session
from cleave_plan.execution.tally import LevelTiming
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.objective import Recount
from cleave_plan.plan.plan import Mode, Plan


def slow_fleet(servers: int) -> Fleet:
    """Six unequal devices on slow links that no server's link holds up, and servers slow enough to matter."""
    devices = tuple(
        Device(
            name=f"device-{place}", flop_per_s={"any": 1e6 * (1 + place)}, downlink_bytes_per_s=1e5 * (1 + place),
            uplink_bytes_per_s=5e4, latency_s=1e-3 * place, memory_bytes=1e9,
        )
        for place in range(6)
    )  # fmt: skip
    members = tuple(
        Server(
            name=name, flop_per_s={"any": 2e5}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e7, egress_bytes_per_s=1e9,
            ingress_bytes_per_s=1e9,
        )
        for name in ("server", "other")[:servers]
    )  # fmt: skip
    return Fleet(name="hand", devices=devices, servers=members)


@pytest.fixture(scope="module", params=[1, 2], ids=["one server", "two servers"])
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, Fleet]:
    """A transformer block cut at random over the slow fleet, some tiles and one GEMM left to the server."""
    path = small_models.transformer_block(tmp_path_factory.mktemp("emulation") / "block.onnx")
    fleet = slow_fleet(request.param)
    plan = random_plan(load_model(path).workload, seed=3, devices=7, cuts=6, keep=0.2)
    names = tuple(server.name for server in fleet.servers)
    shares = (1.0,) if len(names) == 1 else (0.6, 0.4)
    assignments = tuple(
        a if a.mode is Mode.SERVER else replace(a, servers=names, shares=shares) for a in plan.assignments
    )  # fmt: skip
    # Without its last name the last device's tiles are the server's own.
    return path, replace(plan, device_names=plan.device_names[:6], server_names=names, assignments=assignments), fleet


def prices_of(path: Path, plan: Plan, fleet: Fleet) -> FleetPrices:
    """The prices of a plan, jobs in the order of a run."""
    with Session(plan, path, engine=InProcess()) as session:
        return FleetPrices(plan, session.workload, fleet, session.jobs)


def test_predictions_are_the_verifiers(planned: tuple[Path, Plan, Fleet]) -> None:
    """Seconds of each level and of each device in it are those that the second opinion works out by other code."""
    path, plan, fleet = planned
    figures = Recount(load_model(path).workload, plan.assignments, fleet.devices, fleet.servers).figures()
    predicted = prices_of(path, plan, fleet).predicted()
    assert len(predicted) == len(figures.levels)
    assert any(level.device_s for level in predicted)
    for promise, level in zip(predicted, figures.levels, strict=True):
        assert promise.seconds == pytest.approx(level.executed_s)
        wanted = {d.name: s for d, s in zip(fleet.devices, level.device_executed_s.tolist(), strict=True) if s}
        assert dict(promise.device_s) == pytest.approx(wanted)
        assert promise.server_s == pytest.approx(max(level.server_s.values()))
        for name, phases in promise.work.items():
            device = next(each for each in fleet.devices if each.name == name)
            alone = sum(
                wait + max(down / device.downlink_bytes_per_s, flop_s, up / device.uplink_bytes_per_s)
                for wait, down, flop_s, up in phases
            )
            assert alone == pytest.approx(wanted[name])


class FakeTime:
    """A clock that stands still but for what is waited."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Patient(InProcess):
    """Computes at once; waiting for more lets the fake time pass. ``told`` are events to give first."""

    def __init__(self, clock: FakeTime) -> None:
        super().__init__()
        self._clock = clock
        self.told: list[Event] = []

    def collect(self, timeout_s: float | None = None) -> Event | None:  # type: ignore[override]
        if self.told:
            return self.told.pop(0)
        if self._tasks:
            return super().collect(timeout_s)
        assert timeout_s is not None, "this would wait for ever"
        self._clock.now_s += timeout_s
        return None


def emulated(planned: tuple[Path, Plan, Fleet], scale: float) -> tuple[EmulatedEngine, Patient, FakeTime, FleetPrices]:
    """An emulated engine over a patient one."""
    prices, clock = prices_of(*planned), FakeTime()
    inner = Patient(clock)
    return EmulatedEngine(inner, prices, scale, clock=clock), inner, clock, prices


def test_a_run_takes_the_fleets_time(planned: tuple[Path, Plan, Fleet], monkeypatch: pytest.MonkeyPatch) -> None:
    """In fake time, where arithmetic is free: levels and devices take what was predicted, no more and no less."""
    path, plan, _ = planned
    engine, _, clock, prices = emulated(planned, 3.0)
    monkeypatch.setattr("cleave_plan.execution.tiles.time.perf_counter", clock)
    inputs = random_inputs(load_model(path))
    with Session(plan, path, engine=engine) as session:
        result = session.run(inputs)
    with Session(plan, path, engine=InProcess()) as session:
        for name, value in session.run(inputs).outputs.items():
            np.testing.assert_array_equal(result.outputs[name], value)
    compared = 0
    for promise, timing in zip(prices.predicted(), result.timings, strict=True):
        if promise.device_s:
            compared += 1
            assert timing.seconds == pytest.approx(3 * promise.seconds, rel=1e-6)
            assert set(timing.device_s) == set(promise.device_s)
            last = max(timing.device_s.values())
            for name, seconds in timing.device_s.items():
                # The level's last result also waits for what the server does itself.
                assert seconds == pytest.approx(3 * promise.device_s[name], rel=1e-6) or seconds == last
    assert compared


def first_tasks(planned: tuple[Path, Plan, Fleet]) -> tuple[list[Task], Callable[[EmulatedEngine], None]]:
    """The tiles of the first level's first product, and what opens their job."""
    path, plan, _ = planned
    tasks: list[Task] = []
    opened: list[tuple[object, ...]] = []

    class Spy(InProcess):
        def open(self, job, work, operands):  # type: ignore[no-untyped-def]
            opened.append((job, work, operands))
            return super().open(job, work, operands)

        def send(self, *sent: Task) -> None:
            tasks.extend(sent)
            super().send(*sent)

    with Session(plan, path, engine=Spy()) as session:
        session.run(random_inputs(load_model(path)))
    first = [task for task in tasks if task.job == tasks[0].job]
    return first, lambda engine: [engine.open(*each) for each in opened if each[0] == first[0].job] and None


def test_other_events_come_at_once(planned: tuple[Path, Plan, Fleet]) -> None:
    """A device that is lost, fails or joins is reported when it happens; a lost device's tiles are not played on."""
    tasks, opening = first_tasks(planned)
    engine, inner, clock, _ = emulated(planned, 1.0)
    engine.start({task.device: 1.0 for task in tasks})
    opening(engine)
    for task in tasks:
        engine.send(task)
    gone = tasks[0].device
    owed = tuple(task for task in tasks if task.device == gone)
    inner._tasks.clear()
    inner.told = [Lost(devices=(gone,), tasks=owed, where="here", reason="was ended"), Joined(devices=("new",))]
    inner.told += [Failed(task=task, reason="no") for task in tasks if task.device != gone]
    events = [engine.collect(5.0) for _ in range(2 + len(tasks) - len(owed))]
    assert [type(event) for event in events[:2]] == [Lost, Joined]
    assert all(isinstance(event, Failed) for event in events[2:])
    assert clock.now_s == 0
    assert engine.collect(0) is None
    assert engine.collect(2.0) is None
    assert clock.now_s == pytest.approx(2.0)


def with_tasks_out(planned: tuple[Path, Plan, Fleet]) -> tuple[EmulatedEngine, Patient, list[Task]]:
    """An engine that the tiles of the first level have been sent to, what computes them, and the tiles."""
    tasks, opening = first_tasks(planned)
    engine, inner, _, _ = emulated(planned, 1.0)
    opening(engine)
    for task in tasks:
        engine.send(task)
    return engine, inner, tasks


def test_results_are_held_back(planned: tuple[Path, Plan, Fleet]) -> None:
    """Looking at once finds nothing, though everything is computed; a closed job is forgotten."""
    engine, inner, tasks = with_tasks_out(planned)
    for _ in range(len(tasks) + 1):
        assert engine.collect(0) is None
    assert not inner._tasks
    found = engine.collect()
    assert isinstance(found, Finished)
    engine.close(tasks[0].job)
    assert engine.collect(1000.0) is None


def test_a_lost_device_owes_what_it_had_not_sent(planned: tuple[Path, Plan, Fleet]) -> None:
    """Tiles that were computed here, but that the device would not have sent yet, come back with its loss, once."""
    engine, inner, tasks = with_tasks_out(planned)
    while inner._tasks:
        assert engine.collect(0) is None
    gone = tasks[0].device
    inner.told = [Lost(devices=(gone,), tasks=(), where="here", reason="was ended")]
    event = engine.collect(0)
    assert isinstance(event, Lost)
    assert set(event.tasks) == {task for task in tasks if task.device == gone}
    answers = [engine.collect(1000.0) for _ in range(len(tasks) - len(event.tasks))]
    assert {answer.task for answer in answers if isinstance(answer, Finished)} == set(tasks) - set(event.tasks)
    assert engine.collect(1000.0) is None


def test_seconds_of_a_tile_are_those_that_it_is_played_for(planned: tuple[Path, Plan, Fleet]) -> None:
    """Alone on its device, a tile is done when its seconds are over."""
    prices = prices_of(*planned)
    tasks, _ = first_tasks(planned)
    for task in tasks:
        pacer = prices.pacer()
        pacer.add(task.device, task, *prices.phases(task), 0.0)
        assert [done.at_s for done in pacer.advance(1e9)] == pytest.approx([prices.seconds(task)])


def promise(seconds: float) -> PredictedLevel:
    """A level of one device."""
    return PredictedLevel(
        gemms=("g",), seconds=seconds, device_s={"d": seconds}, work={}, server_s=0.0, crowded=False, dtypes=("float32",)
    )  # fmt: skip


def timing(seconds: float) -> LevelTiming:
    return LevelTiming(seconds=seconds, device_s={})


def test_the_scale() -> None:
    """Room for the arithmetic where that is scarce, else levels long enough for the clock, within a bounded run."""
    assert scale_for([promise(1), promise(1)], [timing(2), timing(1)])[0] == ROOM * 2
    assert scale_for([promise(0.01), promise(0.02)], [timing(1e-6), timing(1e-6)])[0] == SHORTEST_LEVEL_S / 0.01
    assert scale_for([promise(1)] * 1000, [timing(1e-6)] * 1000)[0] == LONGEST_RUN_S / 1000
    assert scale_for([promise(1e-6), promise(1)], [timing(1), timing(0.5)])[0] == ROOM * 0.5  # a millionth does not count
    assert scale_for([replace(promise(1), device_s={})], [timing(1)])[0] == 1


def test_an_emulated_run_on_workers(planned: tuple[Path, Plan, Fleet]) -> None:
    """Over processes: right numbers, and never faster than the fleet."""
    path, plan, fleet = planned
    inputs = random_inputs(load_model(path))
    done = emulate_run(plan, path, fleet, inputs, workers=2, scale=0.5)
    with Session(plan, path, engine=InProcess()) as session:
        for name, value in session.run(inputs).outputs.items():
            np.testing.assert_allclose(done.result.outputs[name], value, rtol=1e-5, atol=1e-5)
    assert done.comparison.emulated
    assert done.comparison.scale == 0.5
    assert all(level.measured_s >= level.predicted_s * 0.999 for level in done.comparison.levels)
    with pytest.raises(AnswerIsNoError):
        emulate_run(plan, path, replace(fleet, sha256="0" * 64), inputs, workers=1)
