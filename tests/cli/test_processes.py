"""What only a process of its own can show: clean stdout, a killed worker, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_cases import Files

LIMIT_S = 60
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds worker processes through /proc")


@contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own; ended when the block is left."""
    command = [sys.executable, "-m", "cleave_plan.cli.main", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def children(process: subprocess.Popen[str], count: int = 1) -> list[int]:
    """Process ids of the workers, once there are ``count`` at least."""
    place = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    limit = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < limit:
        found = [int(word) for word in place.read_text().split()]
        if len(found) >= count:
            return found
        time.sleep(0.005)
    raise AssertionError(f"no worker was started: {process.communicate()}")


def all_end(pids: list[int]) -> bool:
    """Whether every process is gone, now or soon (a worker whose server is gone ends by itself)."""
    limit = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < limit:
        time.sleep(0.05)
    return not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("command", ["inspect", "plan", "check", "run"])
def test_json_is_all_there_is_on_stdout(command: str, files: Files, tmp_path: Path) -> None:
    """Nothing that a library prints below Python gets into the document, and nothing at all onto stderr."""
    arguments: dict[str, list[str | Path]] = {
        "inspect": [files.model, "--dim", "batch=64"],
        "plan": [files.model, "--dim", "batch=64", "--fleet", files.fleet, "-o", tmp_path / "plan.json"],
        "check": [files.plan, "--model", files.model, "--fleet", files.fleet],
        "run": [files.plan, "--model", files.model, "--workers", "1", "--verify"],
    }
    with started(command, *arguments[command], "--json") as process:
        out, complaints = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, complaints) == (0, "")
    assert json.loads(out)


@needs_proc
def test_a_run_whose_workers_are_all_killed_ends_with_a_sentence(files: Files, tmp_path: Path) -> None:
    """Exit 5 and one sentence, no outputs and no worker left."""
    out = tmp_path / "y.npz"
    with started("run", files.plan, "--model", files.model, "--workers", "2", "--outputs", out) as process:
        workers = children(process, 2)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        _, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 5
    assert len(complaints.splitlines()) == 1
    assert "no device is left" in complaints
    assert not out.exists()
    assert all_end(workers)


@needs_proc
def test_a_run_goes_on_without_a_killed_worker(files: Files) -> None:
    """Right outputs, exit 0, and the document says who was lost."""
    with started("run", files.plan, "--model", files.model, "--workers", "2", "--verify", "--json") as process:
        workers = children(process, 2)
        os.kill(workers[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    document = json.loads(out)
    assert document["verified"]["ok"]
    assert any("SIGKILL" in incident["reason"] for incident in document["incidents"])
    assert all_end(workers)


@needs_proc
def test_ctrl_c_ends_the_workers(files: Files) -> None:
    """Exit 130 and no process left behind."""
    with started("run", files.plan, "--model", files.model, "--workers", "2") as process:
        workers = children(process)
        process.send_signal(signal.SIGINT)
        out, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert (out, complaints.strip()) == ("", "cleave-plan: error: interrupted")
    assert all_end(workers)


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_training_ends_with_a_checkpoint(files: Files, how: signal.Signals, tmp_path: Path) -> None:
    """The step under way is finished and kept, though no checkpoint was due; the same command goes on with the next one."""
    rng = np.random.default_rng(0)
    data, metrics = tmp_path / "data.npz", tmp_path / "metrics.jsonl"
    np.savez(data, x=rng.standard_normal((64, 256)).astype(np.float32), target=rng.integers(0, 10, 64))
    command: list[str | Path] = [
        "train", files.model, "--dim", "batch=64", "--loss", "cross-entropy", "--fleet", files.fleet, "--data", data,
        "--metrics", metrics, "--checkpoint", tmp_path / "run", "--checkpoint-every", "1000000", "-o", tmp_path / "out.onnx",
    ]  # fmt: skip
    with started(*command, "--steps", "1000000") as process:
        workers = children(process)
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit and process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        process.send_signal(how)
        out, complaints = process.communicate(timeout=LIMIT_S)
    reached = len(metrics.read_text().splitlines())
    assert (process.returncode, out) == (130, "")
    kept = f"ended by {how.name} after step {reached} of 1000000, which is kept"
    assert f"{kept}; go on with the same command and --resume" in complaints
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == [f"step-{reached:08}.npz"]
    assert all_end(workers)
    if how is signal.SIGTERM:
        return  # to go on once is enough
    with started(*command, "--steps", str(reached + 1), "--resume", "--json") as process:
        document = json.loads(process.communicate(timeout=LIMIT_S)[0])
    assert (process.returncode, document["first_step"], document["last_step"]) == (0, reached + 1, reached + 1)
