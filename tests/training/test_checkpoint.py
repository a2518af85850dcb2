"""Checkpoints and metrics: what comes back, what is refused, what survives a full disk, and who may write."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.training.checkpoint import Checkpoint, CheckpointFolder, read_checkpoint
from cleave_plan.training.metrics import MetricsFile


def checkpoint(step: int, *, size: int = 5) -> Checkpoint:
    """Arrays of several types; the step is among the values."""
    arrays = {
        "parameter/a.b": np.full((2, size), step, np.float32), "state/first/ä": np.arange(3.0),
        "parameter/half": np.ones(4, ml_dtypes.bfloat16), "statistic/none": np.empty((0, 2), np.float32),
    }  # fmt: skip
    return Checkpoint(step=step, arrays=arrays, facts={"identity": {"seed": 3}, "data": {"random_state": [3, step]}})


def same(first: Checkpoint, second: Checkpoint) -> bool:
    """Whether two hold the same step, facts and arrays."""
    facts = all(second.facts[key] == value for key, value in first.facts.items())
    arrays = first.arrays.keys() == second.arrays.keys() and all(
        array.dtype == second.arrays[name].dtype and np.array_equal(array, second.arrays[name])
        for name, array in first.arrays.items()
    )
    return facts and arrays and first.step == second.step


@contextmanager
def full_behind(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond so many bytes of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Values, types and facts; and NumPy reads the file by itself."""
    with CheckpointFolder(tmp_path / "new" / "run") as folder:
        path = folder.write(checkpoint(7))
        found = folder.newest()
    assert path.name == "step-00000007.npz"
    assert found.path == path
    assert found.checkpoint is not None
    assert same(checkpoint(7), found.checkpoint)
    with np.load(path) as archive:
        assert np.array_equal(archive["parameter/a.b"], np.full((2, 5), 7, np.float32))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    """Whatever was there before, and nothing half-written."""
    (tmp_path / ".step-00000001.npz.0123.tmp").write_bytes(b"of a run that was killed")
    (tmp_path / "notes.txt").write_text("somebody's own")
    with CheckpointFolder(tmp_path) as folder:
        for step in (2, 4, 6, 8):
            folder.write(checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000006.npz", "step-00000008.npz"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint."""
    with CheckpointFolder(tmp_path_factory.mktemp("whole")) as folder:
        return folder.write(checkpoint(3)).read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_flipped_bit_is_seen(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Wherever it is, the file is refused by name."""
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    with pytest.raises(InputFileError, match=r"flipped\.npz: is (damaged|truncated)"):
        read_checkpoint(path)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_truncation_is_seen(whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """However much is there."""
    path = tmp_path_factory.getbasetemp() / "short.npz"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputFileError, match=r"short\.npz: is (damaged|truncated)"):
        read_checkpoint(path)


def test_a_file_that_was_sealed_by_someone_else(tmp_path: Path) -> None:
    """A good checksum over something that is no checkpoint."""
    import hashlib

    content = b"PK\x05\x06" + b"\0" * 18
    path = tmp_path / "step-00000001.npz"
    path.write_bytes(content + b"sha256:" + hashlib.sha256(content).hexdigest().encode())
    with pytest.raises(InputFileError, match="is no checkpoint"):
        read_checkpoint(path)


def write_lines(path: Path) -> None:
    """The metrics of eight steps."""
    with MetricsFile(path, kept=0) as metrics:
        for step in range(1, 9):
            metrics.write({"step": step, "loss": 0.5})


def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    """The error names the file; the lines that were written are whole."""
    path = tmp_path / "metrics.jsonl"
    with full_behind(50), pytest.raises(ExecutionError, match=r"metrics\.jsonl: the metrics cannot be written"):
        write_lines(path)
    with MetricsFile(path, kept=8):
        assert path.read_bytes() == b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.5}\n'


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The error says which checkpoint is the last one; it is whole, and nothing is left of the new one."""
    with CheckpointFolder(tmp_path) as folder:
        folder.write(checkpoint(1))
        with full_behind(20_000), pytest.raises(ExecutionError, match=r"step-00000001\.npz is the last one, and is whole"):
            folder.write(checkpoint(2, size=10_000))
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.npz"]
        found = folder.newest().checkpoint
    assert found is not None
    assert same(checkpoint(1), found)


def test_one_run_has_the_folder(tmp_path: Path) -> None:
    """A second one is refused until the first is over; a folder that cannot be made is an error."""
    with CheckpointFolder(tmp_path), pytest.raises(UsageError, match="another run"):
        CheckpointFolder(tmp_path)
    with CheckpointFolder(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutionError, match="cannot be used"):
        CheckpointFolder(tmp_path / "file")
