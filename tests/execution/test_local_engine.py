"""The local engine when things go wrong: workers that die, hang or fail, servers that die, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import small_models
from hand_plans import random_plan

from cleave_plan.dtypes import DType
from cleave_plan.errors import ExecutionError
from cleave_plan.execution.engines.base import Event, Failed, Finished, Joined, Lost, Task
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.engines.memory import Arena, Block
from cleave_plan.execution.engines.process import share_out
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.planfile import save_plan
from cleave_plan.workload.gemm import GemmShape

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests look into /proc and /dev/shm")

SIZE = 256
PRODUCT = Product(
    shape=GemmShape(1, SIZE, SIZE, SIZE), a_dtype=DType.INT64, b_dtype=DType.INT64, out_dtype=DType.INT64, window=None
)  # fmt: skip
WHOLE = Box(0, SIZE, 0, SIZE, 0, SIZE, 0, 1)
TILES = 36
OPERAND = np.ones((1, SIZE, SIZE), np.int64)


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    """Two workers with three identities, a slow product (integers have no BLAS) opened as job 0; stopped afterwards."""
    engine = LocalEngine(2, hang_limit_s=2.5)
    engine.start({"a": 1.0, "b": 1.0, "c": 1.0})
    engine.open(0, PRODUCT, (OPERAND, OPERAND))
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


def busy(engine: LocalEngine, tiles: int = TILES) -> None:
    """Give every identity work."""
    for tile in range(tiles):
        engine.send(Task(0, tile, "abc"[tile % 3], WHOLE))


def events_until_idle(engine: LocalEngine, tiles: int = TILES) -> list[Event]:
    """Events until each of ``tiles`` tasks is answered or lost."""
    found: list[Event] = []
    while tiles:
        event = engine.collect(20)
        assert event is not None, "nothing is heard of some tasks"
        found.append(event)
        tiles -= len(event.tasks) if isinstance(event, Lost) else isinstance(event, Finished | Failed)
    return found


def losses(events: list[Event]) -> list[Lost]:
    """The losses among events."""
    return [event for event in events if isinstance(event, Lost)]


def test_a_killed_worker_is_named_with_its_devices(engine: LocalEngine) -> None:
    """SIGKILL during a tile: one event names worker, process, signal and identities; every task is heard of exactly once."""
    busy(engine)
    process = engine.processes[0]
    os.kill(process, signal.SIGKILL)
    events = events_until_idle(engine)
    (lost,) = losses(events)
    assert lost.devices == ("a", "c")
    assert lost.where == f"worker 0 (process {process}) with devices a, c"
    assert lost.reason == "was ended by SIGKILL"
    done = [event.task.tile for event in events if isinstance(event, Finished)]
    assert sorted([*done, *(task.tile for task in lost.tasks)]) == list(range(TILES))
    assert engine.devices == ("b",)
    with pytest.raises(KeyError):
        engine.send(Task(0, TILES, "a", WHOLE))


def test_a_stopped_worker_is_found_by_its_heartbeat(engine: LocalEngine) -> None:
    """SIGSTOP closes no line: only the missing heartbeat tells, and the worker is ended."""
    busy(engine)
    events_until_idle(engine)  # each worker has answered: one that is only starting is given longer
    busy(engine)
    os.kill(engine.processes[1], signal.SIGSTOP)
    (lost,) = losses(events_until_idle(engine))
    assert lost.devices == ("b",)
    assert "has shown no sign of life" in lost.reason


def test_a_device_that_is_dropped_takes_no_other_with_it(engine: LocalEngine) -> None:
    """The other identity of its process goes on with its tasks, on a new process."""
    busy(engine)
    engine.drop("a", "was too slow")
    events = events_until_idle(engine)
    (lost,) = losses(events)
    assert (lost.devices, lost.reason) == (("a",), "was too slow")
    assert {task.device for task in lost.tasks} == {"a"}
    done = [event.task for event in events if isinstance(event, Finished)]
    assert sorted(task.tile for task in done if task.device == "c") == list(range(2, TILES, 3))
    assert set(engine.devices) == {"b", "c"}


def test_a_device_that_joins_late_can_be_sent_tiles(engine: LocalEngine) -> None:
    """It is said when it is there, and only then it takes tasks."""
    engine.join(("d",))
    engine.join(("d",))
    assert set(engine.devices) == {"a", "b", "c"}
    assert len(engine.processes) == 3
    assert engine.collect(20) == Joined(devices=("d",))
    engine.send(Task(0, 0, "d", WHOLE))
    (event,) = events_until_idle(engine, 1)
    assert isinstance(event, Finished)
    assert event.result.min() == event.result.max() == SIZE


def test_a_wait_ends_with_its_time(engine: LocalEngine) -> None:
    """Nothing was sent, so nothing comes."""
    assert engine.collect(0.0) is None
    assert engine.collect(0.05) is None


def test_results_stand_in_place_unless_asked_apart(engine: LocalEngine) -> None:
    """A tile goes into the whole result; one that is sent a second time, or is a partial sum, has an array of its own."""
    whole = engine.open(1, PRODUCT, (OPERAND, OPERAND))
    whole[:] = 0
    half = Box(0, SIZE, 0, SIZE, 0, SIZE // 2, 0, 1)
    upper = Box(0, SIZE // 2, 0, SIZE, 0, SIZE, 0, 1)
    engine.send(Task(1, 0, "a", half))
    engine.send(Task(1, 1, "a", WHOLE, apart=True))
    engine.send(Task(1, 2, "a", upper))
    partial, apart, placed = events_until_idle(engine, 3)
    assert isinstance(partial, Finished)
    assert isinstance(apart, Finished)
    assert isinstance(placed, Finished)
    assert [event.in_place for event in (partial, apart, placed)] == [False, False, True]
    assert [int(event.result[0, 0, 0]) for event in (partial, apart, placed)] == [SIZE // 2, SIZE, SIZE]
    assert whole[0, : SIZE // 2].min() == SIZE
    assert whole[0, SIZE // 2 :].max() == 0


def test_a_job_can_be_closed_while_tiles_are_out(engine: LocalEngine) -> None:
    """Its tiles are heard of no more, and its memory is used again only when they are in."""
    busy(engine)
    engine.close(0)
    whole = engine.open(1, PRODUCT, (OPERAND, OPERAND))
    engine.send(Task(1, 0, "a", WHOLE))
    (event,) = events_until_idle(engine, 1)
    assert isinstance(event, Finished)
    assert event.task.job == 1
    assert whole.min() == whole.max() == SIZE
    assert engine.collect(0.3) is None


def test_answers_that_nobody_has_collected_go_with_their_job(engine: LocalEngine) -> None:
    """A second copy of a tile may have come in just before its job is closed."""
    small = engine.open(1, PRODUCT, (OPERAND, OPERAND))
    for tile, job in enumerate((1, 1, 1)):
        engine.send(Task(job, tile, "abc"[tile], WHOLE))
    assert isinstance(engine.collect(20), Finished)
    time.sleep(1.0)  # the other two have come meanwhile, and are read together with this one
    engine.send(Task(0, 0, "a", WHOLE))
    assert isinstance(engine.collect(20), Finished)
    engine.close(1)
    (event,) = events_until_idle(engine, 1)
    assert isinstance(event, Finished)
    assert event.task.job == 0
    assert small.min() == SIZE


def test_a_fault_in_a_tile_reaches_the_server(engine: LocalEngine) -> None:
    """A box outside the operand fails in the worker; the event says why, and the worker lives on."""
    outside = Box(0, SIZE, 0, SIZE, SIZE, 2 * SIZE, 0, 1)
    engine.open(1, PRODUCT, (OPERAND, OPERAND))
    engine.send(Task(1, 0, "b", outside))
    (event,) = events_until_idle(engine, 1)
    assert isinstance(event, Failed)
    assert "leaves the product" in event.reason
    engine.send(Task(0, 0, "b", WHOLE))
    (event,) = events_until_idle(engine, 1)
    assert isinstance(event, Finished)
    assert int(event.result[0, 0, 0]) == SIZE


def test_stop_in_the_middle_leaves_no_process(engine: LocalEngine) -> None:
    """Workers that are busy are ended at once; stopping twice is harmless."""
    busy(engine)
    processes = engine.processes
    engine.stop()
    assert not any(alive(process) for process in processes)
    engine.stop()


def test_operands_are_placed_once(engine: LocalEngine) -> None:
    """GEMMs that read the same array read the same memory, and what lies in shared memory is not copied at all."""
    engine.open(1, PRODUCT, (OPERAND, OPERAND))
    assert len({id(array) for job in (0, 1) for array in engine._jobs[job].arrays}) == 1
    own = engine.empty((SIZE, SIZE), DType.INT64)
    engine.open(2, PRODUCT, (own[None], own.T[None]))
    assert all(np.shares_memory(own, array) for array in engine._jobs[2].arrays)


def test_devices_are_shared_out_evenly() -> None:
    """The heaviest first, each to the lightest worker so far; identities without load are spread too."""
    assert share_out({"a": 5, "b": 4, "c": 3, "d": 2}, 2) == [("a", "d"), ("b", "c")]
    assert share_out(dict.fromkeys("abcd", 0.0), 2) == [("a", "c"), ("b", "d")]


def test_an_arena_gives_a_place_again_when_its_last_view_is_gone() -> None:
    """Places are disjoint while they are in use, and joined again afterwards."""
    arena = Arena()
    first, second, third = (arena.empty((1000,), DType.INT64) for _ in range(3))
    for number, array in enumerate((first, second, third)):
        array[:] = number
    assert [array.max() for array in (first, second, third)] == [0, 1, 2]
    view = second[10:20].reshape(2, 5)
    del first, second
    assert not np.shares_memory(arena.empty((1001,), DType.INT64), view)
    assert view.min() == view.max() == 1
    del view
    both = arena.empty((2000,), DType.INT64)
    block = arena.block_of(both)
    assert block is not None
    assert block.offset == 0
    assert third.min() == 2
    assert arena.empty((0, 4), DType.FLOAT32).shape == (0, 4)


def test_an_arena_knows_its_arrays_and_shows_nothing_outside() -> None:
    """A view is found by where it lies, transposed and reversed ones too; a block that leaves the arena is refused."""
    arena = Arena()
    array = arena.empty((4, 6), DType.INT32)
    array[:] = np.arange(24).reshape(4, 6)
    for view in (array.T, array[::-1, 1:], np.broadcast_to(array[0], (3, 6))):
        block = arena.block_of(view)
        assert block is not None
        assert np.array_equal(arena.view(block), view)
    assert arena.block_of(np.zeros(3)) is None
    for block in (
        Block(-8, (1,), (8,), DType.INT64),
        Block(0, (1 << 60,), (8,), DType.INT64),
        Block(0, (2,), (-8,), DType.INT64),
    ):
        with pytest.raises(ValueError, match="leaves the shared memory"):
            arena.view(block)
    with pytest.raises(ExecutionError, match="no shared memory"):
        arena.empty((1 << 50,), DType.INT64)


SCRIPT = """
import sys
import numpy as np
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import run
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
    server = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "plan.json"), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert server.stdout is not None
    server.stdout.readline()
    workers = children(server.pid)
    named = set().union(*map(named_shared_memory, (server.pid, *workers)))
    server.send_signal(how)
    server.communicate(timeout=20)
    wait_until_gone(workers)
    assert not any(path.exists() for path in named)


def named_shared_memory(process: int) -> set[Path]:
    """The files in the system's folder of shared memory that a process has open or mapped: others' files say nothing of it."""
    folder = Path(f"/proc/{process}")
    names = {"/" + line.partition("/")[2] for line in (folder / "maps").read_text().splitlines()}
    for link in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.add(str(link.readlink()))
    return {Path(name) for name in names if name.startswith("/dev/shm/")}


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
