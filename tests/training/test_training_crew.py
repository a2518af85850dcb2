"""Devices that are lost, join and leave in the middle of a training run: what becomes of the plan, and that no bit shows it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from training_cases import perceptron, samples

from cleave_plan.api import load_fleet, make_plan
from cleave_plan.api.models import gradient_request
from cleave_plan.chronicle import REPLANS, STEPS, Chronicle
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.session import Session
from cleave_plan.fleet.device import Fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.training.crew import Crew, CrewChange, FleetFile
from cleave_plan.training.data import batches_of
from cleave_plan.training.run import Duration, TrainingResult
from cleave_plan.training.settings import Settings
from cleave_plan.training.step import TrainingStep, training_step
from cleave_plan.training.trainer import Trainer
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.graph import Workload

HOME = "{name: home, flops: 1 MFLOP/s, memory: 8 GB, memory_bandwidth: 5 GB/s, egress: 2 Gbit/s, ingress: 2 Gbit/s}"
DEVICE = "{{name: {}, flops: {}, downlink: 800 Mbit/s, uplink: 400 Mbit/s, latency: 1 us, memory: 2 GB}}"
CHOSEN = Settings(learning_rate=0.01, weight_decay=0.1, clip_norm=0.3, seed=4)


def write(path: Path, **flops: str) -> Path:
    """A fleet file with these devices, beside a slow server."""
    devices = "".join(f"  - {DEVICE.format(name, rate)}\n" for name, rate in flops.items())
    path.write_text(f"schema: 1\nname: some\nservers:\n  - {HOME}\ndevices:\n{devices}")
    return path


def prepared(folder: Path, file: Path) -> tuple[TrainingStep, Workload, Fleet, Plan]:
    """The perceptron's step, planned over a fleet's devices."""
    step = training_step(perceptron(folder / "m.onnx"), *gradient_request(loss="mse"))
    workload, fleet = training_workload(step.imported.workload), load_fleet(file)
    return step, workload, fleet, make_plan(workload, fleet, without=["server", "reuse"])


class Run:
    """A run of 40 steps whose ``observe`` meddles."""

    def __init__(self, folder: Path, file: Path, engine: Engine | None = None) -> None:
        self.file, self.engine = file, engine or LocalEngine(2)
        self.step, self.workload, self.fleet, self.plan = prepared(folder, file)
        self.metrics, self.chronicle = folder / "m.jsonl", Chronicle()

    def train(self, observe: object = lambda done: None) -> TrainingResult:
        """Train; ``observe`` is told of each step."""
        assert callable(observe)
        batches = batches_of(samples(), self.step.inputs, seed=CHOSEN.seed, shuffle=True)
        with Session(self.plan, self.step.imported, engine=self.engine, reproducible=True) as self.session:
            crew = Crew(self.plan, self.workload, self.fleet, self.session, file=FleetFile(self.file))
            trainer = Trainer(self.step, self.plan, self.session, batches, CHOSEN, crew=crew, chronicle=self.chronicle)
            return trainer.run(Duration(steps=40, metrics=self.metrics), lambda done, total, label: observe(done))


def changes(result: TrainingResult) -> list[CrewChange]:
    """What became of the plan, in order."""
    return [report.change for report in result.steps if report.change is not None]


def test_lost_joined_and_left(tmp_path: Path) -> None:
    """A worker is killed, the file then names a device more: the lost ones come back, the new one comes; the file names it no
    more. The plan follows, once each time, and losses and norms are those of an undisturbed run, to the bit.
    """
    first = {"a": "2 MFLOP/s", "b": "1 MFLOP/s", "c": "1 MFLOP/s"}
    whole = Run(tmp_path, write(tmp_path / "calm.yaml", **first)).train()
    run = Run(tmp_path, write(tmp_path / "fleet.yaml", **first))
    lost: list[str] = []

    def observe(done: int) -> None:
        if done == 5:
            lost.extend(run.session.devices)
            os.kill(run.engine.processes[0], signal.SIGKILL)
        if done == 10:
            assert isinstance(run.engine, LocalEngine)
            lost[:] = sorted(set(lost) - run.session.devices)
            write(run.file, **first, d="4 MFLOP/s")
        if 10 < done < 35 and "d" not in run.session.devices:
            time.sleep(0.2)
        if done == 35:
            write(run.file, **first)

    disturbed = run.train(observe)
    gone, came, left = changes(disturbed)
    assert gone.lost == tuple(lost)
    assert set(came.joined) == {*lost, "d"}
    assert came.batch_s < gone.batch_s
    assert (left.lost, left.joined) == (("d",), ())
    assert [(a.loss, a.gradient_norm) for a in disturbed.steps] == [(b.loss, b.gradient_norm) for b in whole.steps]
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert sum(bool(line["lost_devices"]) for line in lines) == 1
    assert [line["joined_devices"] for line in lines if line["joined_devices"]] == [[*came.joined]]
    assert [line["change"]["lost"] for line in lines if line["change"]] == [lost, [], ["d"]]
    assert lines[-1]["predicted_step_s"] == left.batch_s
    replans = [span for span in run.chronicle.entries if span.track == REPLANS]
    assert [span.details.get("lost") for span in replans] == [", ".join(lost), None, "d"]
    assert [span.details.get("joined") for span in replans] == [None, ", ".join(came.joined), None]
    stops = [span.stop_s or 0.0 for span in run.chronicle.entries if span.track == STEPS]
    assert all(stops[step - 1] <= span.start_s for step, span in zip((6, 11, 36), replans, strict=True))


class Told:
    """A session that has these devices, and keeps what it is told."""

    def __init__(self, here: Sequence[str], employed: Sequence[str]) -> None:
        self.devices, self.employed = frozenset(here), frozenset(employed)
        self.plans: list[Plan] = []
        self.asked: list[str] = []

    def change(self, plan: Plan) -> None:
        """Keep it."""
        self.plans.append(plan)

    def join(self, devices: Sequence[str]) -> None:
        """Keep them."""
        self.asked += devices


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two devices."""
    return write(tmp_path / "fleet.yaml", a="2 MFLOP/s", b="1 MFLOP/s")


def crew_of(folder: Path, file: Path, told: Told) -> Crew:
    """The crew of a stand-in."""
    _, workload, fleet, plan = prepared(folder, file)
    return Crew(plan, workload, fleet, told, file=FleetFile(file))  # type: ignore[arg-type]


def test_a_file_that_is_no_fleet_is_said_once(tmp_path: Path, file: Path) -> None:
    """The run goes on with what it has; a good version is taken again."""
    told = Told("ab", "ab")
    crew = crew_of(tmp_path, file, told)
    assert crew.meet() is None
    file.write_text("schema: 1\nname: some\n")
    change = crew.meet()
    assert change is not None
    assert "servers" in change.refused
    assert crew.meet() is None
    file.unlink()
    assert crew.meet() is None
    write(file, a="2 MFLOP/s", b="1 MFLOP/s", c="1 MFLOP/s")
    assert crew.meet() is None
    assert (told.asked, told.plans) == (["c"], [])


def test_nobody_left(tmp_path: Path, file: Path) -> None:
    """There is no plan without devices that have the work: the next batch says so."""
    told = Told("", "ab")
    assert crew_of(tmp_path, file, told).meet() is None
    assert not told.plans


def test_a_plan_that_employs_nobody_takes_who_is_listed(tmp_path: Path, file: Path) -> None:
    """No engine has been started that could say who is there: the file's word counts."""
    told = Told("", "")
    crew = crew_of(tmp_path, file, told)
    write(file, a="2 MFLOP/s", b="1 MFLOP/s", c="900 MFLOP/s")
    change = crew.meet()
    assert change is not None
    assert (change.joined, change.anew, told.asked) == (("c",), True, [])
    assert told.plans == [crew.plan]


def test_devices_that_never_came_are_not_counted_on(tmp_path: Path, file: Path) -> None:
    """A device without tiles that is not there gets none when another is lost."""
    write(file, a="2 MFLOP/s", b="1 MFLOP/s", c="900 MFLOP/s")
    told = Told("b", "ab")
    crew = crew_of(tmp_path, file, told)
    change = crew.meet()
    assert change is not None
    assert (change.lost, change.takers) == (("a",), 1)
    used = {crew.plan.device_names[place] for each in crew.plan.assignments for place in each.tiles.device.tolist()}
    assert used == {"b"}
