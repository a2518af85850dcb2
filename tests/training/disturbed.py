"""``python disturbed.py MODEL DATA FOLDER [--kill-worker N] [--join N] [--kill-server N]``: six devices, and what befalls them.

What is killed is killed some milliseconds after step N is done, while the next one runs; to join, a seventh device is written
into the fleet file. The run resumes when there is something to resume from; metrics and checkpoints are written into FOLDER.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from cleave_plan.api import generate_fleet, make_plan, save_fleet
from cleave_plan.api.models import gradient_request
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.session import Session
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.training.crew import Crew, FleetFile
from cleave_plan.training.data import batches_of
from cleave_plan.training.run import Duration
from cleave_plan.training.settings import Schedule, ScheduleKind, Settings
from cleave_plan.training.step import training_step
from cleave_plan.training.trainer import Trainer
from cleave_plan.workload.backward import training_workload

STEPS, BATCH, SEQUENCE = 50, 8, 12
SETTINGS = Settings(
    learning_rate=3e-3, weight_decay=0.1, clip_norm=1.0, seed=11, schedule=Schedule(kind=ScheduleKind.COSINE, warmup_steps=5)
)


def main() -> None:
    """Train, and strike when it is time."""
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "folder"):
        parser.add_argument(name, type=Path)
    for name in ("--kill-worker", "--join", "--kill-server"):
        parser.add_argument(name, type=int, default=0)
    options = parser.parse_args()
    dims = {"batch": BATCH, "seq": SEQUENCE}
    step = training_step(options.model, *gradient_request(loss="cross-entropy", dims=dims))
    fleet, file = generate_fleet(6, preset="measured-2023", seed=1), options.folder / "fleet.yaml"
    newcomer = generate_fleet(7, preset="measured-2023", seed=2).devices[6]
    save_fleet(fleet, file)
    workload = training_workload(step.imported.workload)
    plan = make_plan(workload, fleet, without=["server"])
    engine = LocalEngine(3)
    checkpoints = options.folder / "checkpoints"
    resumes = checkpoints.exists()

    def kill(process: int) -> None:
        threading.Timer(0.01, os.kill, (process, signal.SIGKILL)).start()

    def observe(done: int, total: int, label: str) -> None:
        if resumes:
            return
        if done == options.kill_worker:
            kill(engine.processes[0])
        if done == options.join:
            save_fleet(make_fleet(fleet.name, fleet.servers, [*fleet.devices, newcomer]), file)
        if done == options.kill_server:
            kill(os.getpid())

    duration = Duration(
        steps=STEPS, metrics=options.folder / "metrics.jsonl", checkpoints=checkpoints, checkpoint_every=7, resume=True
    )
    with Session(plan, step.imported, engine=engine, reproducible=SETTINGS.reproducible) as session:
        batches = batches_of(options.data, step.inputs, seed=SETTINGS.seed, shuffle=SETTINGS.shuffle)
        crew = Crew(plan, workload, fleet, session, file=FleetFile(file))
        result = Trainer(step, plan, session, batches, SETTINGS, crew=crew).run(duration, observe)
    print(f"{plan.predicted.devices_used} devices", *result.notes, sep="\n")


if __name__ == "__main__":
    main()
