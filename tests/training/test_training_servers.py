"""Parameters over several server processes: the bits of one server, whatever the split, and what happens when one is killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from small_models import save
from training_cases import perceptron, samples, striped, train_here

from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.training.checkpoint import read_checkpoint
from cleave_plan.training.holding import MASTER, Holding, Part
from cleave_plan.training.ownership import Shard
from cleave_plan.training.parameters import Parameters
from cleave_plan.training.run import Duration, TrainingResult
from cleave_plan.training.settings import OptimizerKind, Settings

CLIPPED = Settings(learning_rate=0.01, weight_decay=0.1, clip_norm=0.3, seed=4)
SPLITS = {2: (0.25, 0.75), 3: (0.5, 0.125, 0.375)}


def facts(result: TrainingResult) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm."""
    return [(report.step, report.loss, report.gradient_norm) for report in result.steps]


def alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def memory_files() -> int:
    """Descriptors of shared memory that this process has open: one for each that is in use or has arrays left."""
    gc.collect()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("cleave-plan" in str(link.readlink()) for link in links)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize(
    "chosen",
    [CLIPPED, Settings(optimizer=OptimizerKind.SGD, learning_rate=0.1, momentum=0.9, accumulate=2)],
    ids=["adamw", "sgd"],
)
def test_several_servers_are_one(servers: int, chosen: Settings, tmp_path: Path) -> None:
    """Losses, norms before clipping, weights and state are those of one process, to the bit; no server outlives the run."""
    model, before = perceptron(tmp_path / "m.onnx"), memory_files()
    one = train_here(model, samples(), chosen, Duration(steps=6, checkpoints=tmp_path / "one"))
    several = train_here(
        model, samples(), chosen, Duration(steps=6, checkpoints=tmp_path / "several"), replan=striped(*SPLITS[servers])
    )
    assert facts(several) == facts(one)
    kept, again = (read_checkpoint(tmp_path / name / "step-00000006.npz") for name in ("one", "several"))
    assert kept.arrays.keys() == again.arrays.keys()
    assert all(np.array_equal(array, again.arrays[name]) for name, array in kept.arrays.items())
    processes = [server.process for server in several.servers]
    assert processes[0] is None
    assert len(set(processes)) == servers
    assert not any(alive(process) for process in processes if process is not None)
    del several  # its values lie in shared memory
    assert memory_files() == before


def test_each_server_has_its_share(tmp_path: Path) -> None:
    """A quarter of the weights of each product on one server, the rest on another, biases on the first; as measured there."""
    metrics = tmp_path / "m.jsonl"
    result = train_here(
        perceptron(tmp_path / "m.onnx"), samples(), Settings(), Duration(steps=3, metrics=metrics), replan=striped(0.25, 0.75)
    )
    first, second = 10 + 5 + 7 + 3, 32 + 16  # of w1 [6, 7], w2 [7, 3], b1 and b2; AdamW has two moments for each
    held = {server.name: (server.parameter_bytes, server.optimizer_bytes) for server in result.servers}
    assert held == {"a": (4 * first, 8 * first), "b": (4 * second, 8 * second)}
    assert all(server.resident_bytes > 1 << 20 for server in result.servers)
    told = json.loads(metrics.read_text().splitlines()[-1])["servers"]
    assert [(each["name"], each["parameter_bytes"], each["optimizer_bytes"]) for each in told] == [
        (name, *sizes) for name, sizes in held.items()
    ]


def test_what_is_more_than_planned_is_said(tmp_path: Path) -> None:
    """A plan that counts 100 bytes for a server that holds 12 x 48."""

    def counted(plan: Any) -> Any:
        plan = striped(0.25, 0.75)(plan)
        return replace(plan, predicted=replace(plan.predicted, server_memory_bytes={"a": 1e6, "b": 100.0}))

    result = train_here(perceptron(tmp_path / "m.onnx"), samples(), Settings(), Duration(steps=1), replan=counted)
    assert [server.planned_bytes for server in result.servers] == [1e6, 100]
    assert "server 'b' holds 576 B of parameters and optimizer state, the plan counted 100 B" in result.notes


def test_workers_read_what_a_server_process_wrote(tmp_path: Path) -> None:
    """With real workers, in whose memory the values lie: the curve of a run without any process."""
    model = perceptron(tmp_path / "m.onnx")
    one = train_here(model, samples(), CLIPPED, Duration(steps=3))
    two = train_here(model, samples(), CLIPPED, Duration(steps=3), engine=LocalEngine(2), replan=striped(0.5, 0.5))
    assert facts(two) == facts(one)
    assert all(np.array_equal(value, two.values[name]) for name, value in one.values.items())


def test_resumed_over_another_number_of_servers(tmp_path: Path) -> None:
    """Two servers, then three, then one: the curve of one undisturbed run, and a note where they are shared out anew; float16
    parameters bring their master copies along.
    """
    half, rng = onnx.TensorProto.FLOAT16, np.random.default_rng(3)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="w")
    weight = rng.standard_normal((5, 3)).astype(np.float16)
    model = save(tmp_path / "h.onnx", [node], {"x": (half, [4, 5])}, ["y"], {"w": weight})
    data = {"x": rng.standard_normal((8, 5)).astype(np.float16), "target": rng.standard_normal((8, 3)).astype(np.float16)}
    whole = train_here(model, data, CLIPPED, Duration(steps=9))
    found = []
    for steps, shares in ((3, (0.25, 0.75)), (6, (0.5, 0.2, 0.3)), (9, (1.0,))):
        part = Duration(steps=steps, checkpoints=tmp_path / "run", resume=steps > 3)
        result = train_here(model, data, CLIPPED, part, replan=striped(*shares))
        found += facts(result)
        assert any("shared out anew" in note for note in result.notes) == (steps > 3)
    assert found == facts(whole)
    assert np.array_equal(result.values["w"], whole.values["w"])


def killing(step: int, metrics: Path, number: int) -> Callable[[int], None]:
    """An observer that sends a signal to the second server's process after ``step``."""

    def observe(done: int) -> None:
        if done == step:
            os.kill(json.loads(metrics.read_text().splitlines()[-1])["servers"][1]["process"], number)

    return observe


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """The run ends with the server's name; no process and no shared memory stay; resumed, the curve is the undisturbed one."""
    model, metrics, before = perceptron(tmp_path / "m.onnx"), tmp_path / "m.jsonl", memory_files()
    whole = train_here(model, samples(), CLIPPED, Duration(steps=8))
    begun = Duration(steps=8, metrics=metrics, checkpoints=tmp_path / "run", checkpoint_every=3)
    with pytest.raises(ExecutionError, match=r"server 'b' \(process \d+\).*SIGKILL.*--resume"):
        train_here(model, samples(), CLIPPED, begun, replan=striped(*SPLITS[3]), observe=killing(5, metrics, signal.SIGKILL))
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert not any(alive(server["process"]) for server in lines[-1]["servers"][1:])
    assert memory_files() == before
    resumed = train_here(model, samples(), CLIPPED, replace(begun, resume=True), replan=striped(*SPLITS[3]))
    assert resumed.first_step == 4
    assert facts(resumed) == facts(whole)[3:]


def test_a_server_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped does not hold the run for ever."""
    model, metrics = perceptron(tmp_path / "m.onnx"), tmp_path / "m.jsonl"
    stop = killing(2, metrics, signal.SIGSTOP)

    def observe(done: int) -> None:
        stop(done)
        if done == 2:
            monkeypatch.setattr("cleave_plan.training.servers.PATIENCE_S", 0.5)

    with pytest.raises(ExecutionError, match=r"server 'b' \(process \d+\): has not answered for"):
        train_here(model, samples(), CLIPPED, Duration(steps=9, metrics=metrics), replan=striped(0.5, 0.5), observe=observe)
    process = json.loads(metrics.read_text().splitlines()[-1])["servers"][1]["process"]
    assert not alive(process)


def test_gradients_that_are_not_finite_change_nothing(tmp_path: Path) -> None:
    """On any server: they all hear of it before one of them moves."""
    values = {"w": np.arange(8, dtype=np.float32)}
    shards = [Shard("w", "a", 0, 3), Shard("w", "b", 3, 8)]
    parameters = Parameters(values, {}, shards, Settings(), servers=["a", "b"], room=None)
    try:
        for place in (1, 6):
            gradient = np.ones(8, np.float32)
            gradient[place] = np.inf
            with pytest.raises(ExecutionError, match="infinities or NaN"):
                parameters.step({"w": gradient}, step=1, share=1.0)
        assert np.array_equal(parameters.feeds["w"], values["w"])
        assert parameters.step({"w": np.ones(8, np.float32)}, step=1, share=1.0) == pytest.approx(8**0.5)
        assert np.all(parameters.feeds["w"] < values["w"])
    finally:
        parameters.close()
        parameters.close()


def test_servers_leave_when_their_run_is_gone(tmp_path: Path) -> None:
    """A run that cannot say good-bye: its line closes, and its servers with it."""
    shards = [Shard("w", "a", 0, 3), Shard("w", "b", 3, 8)]
    child = os.fork()
    if child == 0:  # pragma: no cover: another process
        parameters = Parameters({"w": np.zeros(8, np.float32)}, {}, shards, Settings(), servers=["a", "b"], room=None)
        (tmp_path / "pid").write_text(str(parameters.processes["b"]))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    process, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while alive(process) and time.monotonic() < deadline:
        status = Path(f"/proc/{process}/status")
        if status.exists() and "Z (zombie)" in status.read_text():
            break
        time.sleep(0.02)
    else:
        assert not alive(process)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_split_shows(data: st.DataObject) -> None:
    """Parameters cut at any places over servers: the chunks' sums in order are those of NumPy on the whole gradient, and a step
    of AdamW is the textbook's, in the same bits as on one server.
    """
    size = data.draw(st.integers(1, 60))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    start, gradient = rng.standard_normal(size), rng.standard_normal(size)
    chosen = Settings(learning_rate=0.1, weight_decay=0.2)
    with (
        mock.patch("cleave_plan.training.holding.CHUNK_ELEMENTS", 7),
        mock.patch("cleave_plan.training.holding.BLOCK_ELEMENTS", 5),
    ):
        moved = []
        for places in ([0, size], [0, *cuts, size]):
            values, sums, first, master = start.copy(), [], np.empty(size), np.empty(size)
            for low, high in pairwise(places):
                holding = Holding([Part("w", values, low, high)], chosen, threads=1)
                sums += holding.squares({"w": gradient})[0]
                holding.update({"w": gradient}, step=1, share=0.5, factor=0.25)
                holding.give("first", {"w": first})
                holding.give(MASTER, {"w": master})
            moved.append(values)
            assert np.array_equal(master, values)
            assert sums == [float(np.sum(gradient[at : at + 7] ** 2)) for at in range(0, size, 7)]
            assert np.array_equal(first, gradient * 0.25 * (1 - 0.9))
    assert np.array_equal(*moved)
    down = 0.25 * gradient
    textbook = start * (1 - 0.05 * 0.2) - 0.05 * down / (np.abs(down) + 1e-8)
    assert moved[0] == pytest.approx(textbook, rel=1e-12, abs=1e-12)
