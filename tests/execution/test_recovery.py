"""Runs that lose workers on the way give the right numbers, and say what happened."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import small_models
from hand_plans import random_plan

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.incidents import Kind
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.recovery import cut_anew
from cleave_plan.execution.server import RunResult
from cleave_plan.execution.session import Session
from cleave_plan.kernels.tile import Box
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import Gemm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests look into /proc")


def run_while(path: Path, disturb: Callable[[LocalEngine, int], None], *, batches: int = 2) -> tuple[RunResult, tuple[int, ...]]:
    """The last of ``batches`` runs of a transformer block over 8 devices in 4 processes.

    ``disturb`` is told of every tile from the second batch on, when all workers have shown that they are up.
    """
    imported = load_model(path)
    engine = LocalEngine(4, hang_limit_s=1.5)

    finished: list[RunResult] = []

    def progress(done: int, total: int, label: str) -> None:
        assert done <= total
        if finished:
            disturb(engine, done)

    plan = random_plan(imported.workload, seed=3, cuts=6, keep=0.1)
    with Session(plan, path, engine=engine, progress=progress) as session:
        for _ in range(batches):
            finished.append(session.run(random_inputs(imported)))
        return finished[-1], engine.processes


def assert_right(result: RunResult, path: Path) -> None:
    """The outputs are onnxruntime's."""
    for name, value in small_models.unsplit(path, random_inputs(load_model(path))).items():
        np.testing.assert_allclose(result.outputs[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_goes_on_without_lost_workers(tmp_path: Path, count: int) -> None:
    """Killed after a few tiles; also the next batch, whose plan still names them, runs over the others."""
    path = small_models.transformer_block(tmp_path / "block.onnx")

    def disturb(engine: LocalEngine, done: int) -> None:
        if done == 3 and len(engine.processes) == 4:
            for process in engine.processes[:count]:
                os.kill(process, signal.SIGKILL)

    result, processes = run_while(path, disturb)
    assert_right(result, path)
    assert len(processes) == 4 - count
    gone = [incident for incident in result.incidents if incident.where.startswith("worker")]
    assert len(gone) == count
    assert all(incident.kind is Kind.LOST and incident.devices for incident in gone)
    assert all(incident.recovery_s is not None for incident in gone if incident.tiles)
    again, _ = run_while(path, disturb, batches=3)
    assert_right(again, path)


def test_a_stopped_worker_is_helped_and_then_given_up(tmp_path: Path) -> None:
    """Others compute what it owes once it is past its deadline; after some levels of that it is ended."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    stopped: list[int] = []

    def disturb(engine: LocalEngine, done: int) -> None:
        if done == 3 and not stopped:
            stopped.append(engine.processes[0])
            os.kill(stopped[0], signal.SIGSTOP)

    result, processes = run_while(path, disturb, batches=4)
    assert_right(result, path)
    assert stopped[0] not in processes


def test_without_devices_there_is_an_error_and_nothing_left(tmp_path: Path) -> None:
    """All workers killed: no waiting, and no process afterwards."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    seen: list[int] = []

    def disturb(engine: LocalEngine, done: int) -> None:
        if done == 2:
            seen.extend(engine.processes)
            for process in engine.processes:
                os.kill(process, signal.SIGKILL)

    with pytest.raises(ExecutionError, match="no device is left"):
        run_while(path, disturb)
    assert len(seen) == 4
    assert not any(Path(f"/proc/{process}").exists() for process in seen)


class OneIsFast:
    """Figures of a fleet in which arithmetic alone takes time, and one device, whose memory is ``memory_bytes``, is nine times as
    fast as the others."""

    def __init__(self, memory_bytes: float) -> None:
        self._memory = memory_bytes

    def seconds(self, task: Task) -> float:
        g, r, c = task.box.result_shape
        return 2.0 * g * r * c * (task.box.k_stop - task.box.k_start) / (9e9 if task.device == "fast" else 1e9)

    def columns(self, gemm: Gemm, devices: Sequence[str]) -> DeviceColumns:
        count = len(devices)
        return DeviceColumns(
            flop_per_s=np.array([9e9 if name == "fast" else 1e9 for name in devices]), downlink=np.full(count, 1e15),
            uplink=np.full(count, 1e15), latency=np.zeros(count), memory=np.full(count, self._memory),
            curve=np.full(count, -1, dtype=np.int64), curves=(),
        )  # fmt: skip


@pytest.mark.parametrize(("memory", "share"), [(1e15, 0.9), (1.0, 0.5)], ids=["figures", "memory of none is enough"])
def test_pieces_are_shared_by_the_fleets_figures(tmp_path: Path, memory: float, share: float) -> None:
    """Nine tenths go to a device nine times as fast; by halves where no device could take any by its figures."""
    gemm = load_model(small_models.transformer_block(tmp_path / "block.onnx")).workload.gemms[0]
    pieces = cut_anew(gemm, [Box(0, 5000, 0, 3000, 0, gemm.shape.k, 0, 1)], ("slow", "fast"), [], figures=OneIsFast(memory))
    given = dict.fromkeys(("slow", "fast"), 0)
    for _, device, piece in pieces:
        given[device] += (piece.m_stop - piece.m_start) * (piece.n_stop - piece.n_start)
    assert sum(given.values()) == 5000 * 3000
    assert given["fast"] / sum(given.values()) == pytest.approx(share, abs=0.01)


def test_pieces_cover_what_was_lost_and_go_where_there_is_time(tmp_path: Path) -> None:
    """Every element once, K as it was, nothing for a device with much to do."""
    gemm = load_model(small_models.transformer_block(tmp_path / "block.onnx")).workload.gemms[0]
    lost = [Box(0, 5000, 0, 3000, 7, 9000, 0, 1), Box(5000, 5001, 2, 3, 0, 7, 0, 1)]
    busy = Task(0, 0, "busy", Box(0, 100_000, 0, 100_000, 0, 1000, 0, 1))
    pieces = cut_anew(gemm, lost, ("busy", "a", "b", "c"), [busy])
    assert "busy" not in {device for _, device, _ in pieces}
    for origin, box in enumerate(lost):
        hits = np.zeros((box.m_stop, box.n_stop), np.int8)
        for place, _, piece in pieces:
            if place == origin:
                assert piece.inner == box.inner
                hits[piece.rows, piece.columns] += 1
        assert (hits[box.rows, box.columns] == 1).all()
        assert hits.sum() == (box.m_stop - box.m_start) * (box.n_stop - box.n_start)
