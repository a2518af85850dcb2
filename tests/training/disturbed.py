"""``python disturbed.py MODEL DATA FOLDER [--kill-worker N] [--join N] [--kill-server N]``: six devices, and what befalls them.

What is killed is killed some milliseconds after step N is done, while the next one runs. The run resumes when there is something
to resume from; metrics and checkpoints are written into FOLDER.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from cleave_plan.api import generate_fleet, make_plan
from cleave_plan.api.models import gradient_request
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.session import Session
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
    fleet = generate_fleet(6, preset="measured-2023", seed=1)
    plan = make_plan(training_workload(step.imported.workload), fleet, without=["server"])
    engine = LocalEngine(3)
    checkpoints = options.folder / "checkpoints"
    resumes = checkpoints.exists()
    lost: list[str] = []

    def kill(process: int) -> None:
        threading.Timer(0.01, os.kill, (process, signal.SIGKILL)).start()

    def observe(done: int, total: int, label: str) -> None:
        if resumes:
            return
        if done == options.kill_worker:
            lost.extend(engine.devices)
            kill(engine.processes[0])
        if done == options.join:
            missing = [device for device in lost if device not in engine.devices]
            assert missing
            engine.join(missing)
        if done == options.kill_server:
            kill(os.getpid())

    duration = Duration(
        steps=STEPS, metrics=options.folder / "metrics.jsonl", checkpoints=checkpoints, checkpoint_every=7, resume=True
    )
    with Session(plan, step.imported, engine=engine, reproducible=SETTINGS.reproducible) as session:
        batches = batches_of(options.data, step.inputs, seed=SETTINGS.seed, shuffle=SETTINGS.shuffle)
        result = Trainer(step, plan, session, batches, SETTINGS).run(duration, observe)
    print(f"{plan.predicted.devices_used} devices", *result.notes, sep="\n")


if __name__ == "__main__":
    main()
