"""The local engine when things go wrong: workers that die, hang or fail, servers that die, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small_models
from hand_plans import random_plan

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.base import Task
from cleave_plan.execution.engines.local import LocalEngine, share_out
from cleave_plan.execution.engines.memory import Arena
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.planfile import save_plan
from cleave_plan.workload.gemm import GemmShape

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests look into /proc and /dev/shm")

SIZE = 400
PRODUCT = Product(
    shape=GemmShape(1, SIZE, SIZE, SIZE), a_dtype=DType.INT64, b_dtype=DType.INT64, out_dtype=DType.INT64, window=None
)  # fmt: skip
WHOLE = Box(0, SIZE, 0, SIZE, 0, SIZE, 0, 1)
OPERAND = np.ones((1, SIZE, SIZE), np.int64)


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    """Two workers with three identities, a slow product (integers have no BLAS) opened as job 0; stopped afterwards."""
    engine = LocalEngine(2, hang_limit_s=1.5)
    engine.start({"a": 1.0, "b": 1.0, "c": 1.0})
    engine.open(0, PRODUCT, (OPERAND, OPERAND), dict.fromkeys(range(60), WHOLE))
    try:
        yield engine
    finally:
        engine.stop()


def alive(process: int) -> bool:
    """Whether a process runs (one that has ended and is not yet waited for does not)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(processes: tuple[int, ...], limit_s: float = 10.0) -> None:
    """Wait for processes to end; fail when they do not."""
    deadline = time.monotonic() + limit_s
    while any(alive(process) for process in processes):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.05)


def busy(engine: LocalEngine, tiles: int = 60) -> None:
    """Give every identity work."""
    for tile in range(tiles):
        engine.send(Task(0, tile, "abc"[tile % 3], WHOLE))


def collect_all(engine: LocalEngine, tiles: int = 60) -> None:
    """Take every result, or the error that comes first."""
    for _ in range(tiles):
        engine.collect()


def test_a_killed_worker_is_named_with_its_devices(engine: LocalEngine) -> None:
    """SIGKILL during a tile: the error names worker, process, signal and identities, which then count as lost."""
    busy(engine)
    os.kill(engine.processes[0], signal.SIGKILL)
    with pytest.raises(ExecutionError, match=rf"worker 0 \(process {engine.processes[0]}\) with devices a, c: .*SIGKILL"):
        collect_all(engine)
    assert engine.lost() == ("a", "c")


def test_a_stopped_worker_is_found_by_its_heartbeat(engine: LocalEngine) -> None:
    """SIGSTOP closes no line: only the missing heartbeat tells, and the worker is ended."""
    busy(engine)
    engine.collect()
    os.kill(engine.processes[1], signal.SIGSTOP)
    with pytest.raises(ExecutionError, match=r"device b: it has shown no sign of life"):
        collect_all(engine)
    assert engine.lost() == ("b",)


def test_a_fault_in_a_tile_reaches_the_server(engine: LocalEngine) -> None:
    """A box outside the operand fails in the worker; the error says on which device and why, and the worker lives on."""
    outside = Box(0, SIZE, 0, SIZE, SIZE, 2 * SIZE, 0, 1)
    engine.open(1, PRODUCT, (OPERAND, OPERAND), {0: outside})
    engine.send(Task(1, 0, "b", outside))
    with pytest.raises(ExecutionError, match=r"tile 0 failed on b: ValueError: .* leaves the product"):
        engine.collect()
    engine.send(Task(0, 0, "b", WHOLE))
    assert int(engine.collect().result[0, 0, 0]) == SIZE


def test_stop_in_the_middle_leaves_no_process(engine: LocalEngine) -> None:
    """Workers that are busy are ended at once; stopping twice is harmless."""
    busy(engine)
    processes = engine.processes
    engine.stop()
    assert not any(alive(process) for process in processes)
    engine.stop()


def test_operands_that_are_shared_are_placed_once(engine: LocalEngine) -> None:
    """GEMMs that read the same array read the same memory."""
    engine.open(1, PRODUCT, (OPERAND, OPERAND), {0: WHOLE})
    blocks = {*engine._jobs[0].operands, *engine._jobs[1].operands}
    assert len(blocks) == 1


def test_devices_are_shared_out_evenly() -> None:
    """The heaviest first, each to the lightest worker so far; identities without load are spread too."""
    assert share_out({"a": 5, "b": 4, "c": 3, "d": 2}, 2) == [("a", "d"), ("b", "c")]
    assert share_out(dict.fromkeys("abcd", 0.0), 2) == [("a", "c"), ("b", "d")]


def test_an_arena_grows_without_moving_what_it_holds() -> None:
    """Views made before growth still see their block; clearing starts from the front again."""
    arena = Arena()
    first = arena.allocate((3,), DType.INT64)
    view = arena.view(first)
    view[:] = 7
    second = arena.allocate((1 << 20,), DType.FLOAT64)
    arena.view(second)[:] = 1.5
    assert view.tolist() == arena.view(first).tolist() == [7, 7, 7]
    assert arena.view(arena.allocate((0, 4), DType.FLOAT32)).shape == (0, 4)
    arena.clear()
    assert arena.allocate((1,), DType.INT8).offset == 0
    arena.close()


SCRIPT = """
import sys
import numpy as np
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.server import run
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.planfile import load_plan
plan, model = load_plan(sys.argv[1]), sys.argv[2]
inputs = random_inputs(load_model(model))
def progress(done, total, label):
    if done == 1:
        print("running", flush=True)
while True:
    run(plan, model, inputs, workers=2, progress=progress)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_server_that_ends_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, a plain kill or SIGKILL of the server in the middle: no worker and no shared memory is left."""
    path = small_models.transformer_block(tmp_path / "block.onnx")
    save_plan(random_plan(load_model(path).workload, seed=1, keep=0.0), tmp_path / "plan.json")
    before = named_shared_memory()
    server = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "plan.json"), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    workers = children(server.pid)
    server.send_signal(how)
    server.communicate(timeout=20)
    wait_until_gone(workers)
    assert named_shared_memory() <= before


def named_shared_memory() -> set[Path]:
    """What lies in the system's folder of shared memory."""
    return set(Path("/dev/shm").iterdir())


def children(process: int) -> tuple[int, ...]:
    """Process ids whose parent is ``process``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == process:
                found.append(int(entry.name))
    return tuple(found)
