"""SIGKILL at 50 random moments of a run that writes a checkpoint after every step (long)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_cases import perceptron

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
KILLS, STEPS = 50, 1000


def start(model: Path, folder: Path) -> subprocess.Popen[str]:
    """The run in a process of its own."""
    folder.mkdir(exist_ok=True)
    here = Path(__file__).parent
    path = ":".join(map(str, (ROOT, here, here.parent / "execution", here.parent / "plan", here.parent / "planning")))
    command = [sys.executable, str(here / "killed.py"), str(model), str(folder), str(STEPS)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a run that is not killed; what it printed."""
    printed, fault = process.communicate(timeout=280)
    assert process.returncode == 0, fault
    return printed


def lines_of(folder: Path) -> list[str]:
    """The lines of metrics."""
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def curve(folder: Path) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of each line of metrics."""
    lines = [json.loads(line) for line in lines_of(folder)]
    return [(line["step"], line["loss"], line["gradient_norm"]) for line in lines]


def test_fifty_kills_leave_no_trace(tmp_path: Path) -> None:
    """Wherever the run is (a step, a checkpoint half written, a rename, a start), it goes on, and its curve is the same, bit for
    bit, as if nothing had happened.
    """
    model, generator = perceptron(tmp_path / "m.onnx"), random.Random(0)
    finish(start(model, tmp_path / "whole"))
    folder, reached = tmp_path / "killed", []
    folder.mkdir()
    for _ in range(KILLS):
        process, wanted = start(model, folder), len(lines_of(folder)) + generator.randrange(5)
        early, deadline = generator.random() < 0.2, time.monotonic() + generator.uniform(0, 1.5)
        while process.poll() is None and len(lines_of(folder)) <= wanted and not (early and time.monotonic() > deadline):
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.03))  # into a step or a checkpoint
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reached.append(process.returncode)
    assert reached.count(-signal.SIGKILL) == KILLS, "the run was over before it was killed so often"
    assert "passed over" not in finish(start(model, folder))
    assert curve(folder) == curve(tmp_path / "whole")
    assert len(list((folder / "run").iterdir())) == 2
