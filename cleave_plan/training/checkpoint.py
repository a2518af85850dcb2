"""Checkpoints: what a run needs to go on as if nothing had happened, in one file that is whole or not there.

A checkpoint is an ``.npz`` file (any NumPy reads it) that carries its own checksum: the archive's comment is the SHA-256 of
everything before it. ``manifest.json`` in it says which step, which settings, and where the data stands. Files are written
beside, flushed to the disk and renamed; the two newest are kept, so that one is there whatever happens to the other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from cleave_plan.atomic import beside
from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.kernels.arrays import Array

KEPT = 2
"""Checkpoints that are kept."""

_NAME = re.compile(r"step-([0-9]{8,})\.npz")
_LEFT_OVER = ".step-*.tmp"
_MANIFEST = "manifest.json"
_MARK = b"sha256:"
_SEAL_BYTES = len(_MARK) + 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """What was kept after ``step`` steps: ``arrays`` by name (each is asked for once when it is written), ``facts`` as JSON."""

    step: int
    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The newest good checkpoint with its ``path`` (both None when there is none), and a sentence on each damaged newer one."""

    path: Path | None
    checkpoint: Checkpoint | None
    damaged: tuple[str, ...]


class CheckpointFolder:
    """The checkpoints of one run; made when it is not there. Use it in a ``with``: one process at a time has it.

    Raises ExecutionError when the folder cannot be made or written, UsageError when another process has it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ExecutionError(
                f"the folder of checkpoints cannot be used: {error.strerror}", where=str(folder), expected="a folder of your own"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise UsageError(
                "another run writes its checkpoints here",
                where=str(folder),
                remedy="wait until it is over, or take another folder",
            ) from None

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def newest(self) -> Found:
        """The newest checkpoint that is whole.

        Raises InputFileError when there are checkpoints and none of them is.
        """
        damaged: list[str] = []
        for path in reversed(self._paths()):
            try:
                return Found(path=path, checkpoint=read_checkpoint(path), damaged=tuple(damaged))
            except InputFileError as error:
                damaged.append(error.sentence())
        if damaged:
            raise InputFileError(
                f"no checkpoint is whole: {'; '.join(damaged)}", where=str(self._folder), expected="a good checkpoint",
                remedy="restore one from a backup, or begin anew in another folder",
            )  # fmt: skip
        return Found(path=None, checkpoint=None, damaged=())

    def is_empty(self) -> bool:
        """Whether there is no checkpoint, good or damaged."""
        return not self._paths()

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove those that are no longer kept.

        Raises ExecutionError when it cannot be written (a full disk); those that were there are there still.
        """
        path = self._folder / f"step-{checkpoint.step:08d}.npz"
        try:
            for left_over in self._folder.glob(_LEFT_OVER):  # of a run that was killed while it wrote
                left_over.unlink()
            with beside(path) as file:
                _write(checkpoint, file)
        except OSError as error:
            last = [str(each) for each in self._paths()[-1:]]
            raise ExecutionError(
                f"the checkpoint cannot be written: {error.strerror or error}", where=str(path),
                expected=f"room for it; {last[0]} is the last one, and is whole" if last else "room for it",
                remedy="make room, then go on with --resume",
            ) from None  # fmt: skip
        older = [each for each in self._paths() if _step_of(each) < checkpoint.step]
        for each in older[: max(0, len(older) + 1 - KEPT)]:
            with suppress(OSError):
                each.unlink()
        return path

    def _paths(self) -> list[Path]:
        """Checkpoints by step, the oldest first."""
        return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), key=_step_of)


def _step_of(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises InputFileError when a byte of it is not as it was written, or it is no checkpoint."""
    expected = "a checkpoint as it was written"
    try:
        _check_seal(path, expected)
        with np.load(path, allow_pickle=False) as archive:
            facts = json.loads(archive[_MANIFEST])
            arrays = {name: _restored(archive[name], facts["types"].get(name)) for name in archive.files if name != _MANIFEST}
        return Checkpoint(step=int(facts["step"]), arrays=arrays, facts=facts)
    except OSError as error:
        raise InputFileError(f"cannot be read: {error.strerror}", where=str(path), expected=expected) from None
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputFileError(f"is no checkpoint: {error}", where=str(path), expected=expected) from None


def _check_seal(path: Path, expected: str) -> None:
    digest, length = hashlib.sha256(), path.stat().st_size - _SEAL_BYTES
    with path.open("rb") as file:
        while length > 0 and (piece := file.read(min(length, 1 << 20))):
            digest.update(piece)
            length -= len(piece)
        seal = file.read()
    if not seal.startswith(_MARK):
        raise InputFileError("is truncated: its checksum is not at its end", where=str(path), expected=expected)
    if seal != _MARK + digest.hexdigest().encode():
        raise InputFileError("is damaged: its content does not have the checksum at its end", where=str(path), expected=expected)


def _write(checkpoint: Checkpoint, file: IO[bytes]) -> None:
    sealed = _Sealed(file)
    types: dict[str, str] = {}
    with zipfile.ZipFile(sealed, "w") as archive:
        archive.comment = b"?" * _SEAL_BYTES
        for name, array in checkpoint.arrays.items():
            plain = array
            if array.dtype.isbuiltin != 1:
                types[name], plain = array.dtype.name, array.view(f"u{array.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(plain, order="C"), allow_pickle=False)
        facts = {**checkpoint.facts, "step": checkpoint.step, "types": types}
        archive.writestr(_MANIFEST, json.dumps(facts, indent=1))
    sealed.finish()


def _restored(array: Array, dtype: str | None) -> Array:
    """``array`` in a type that NumPy's format lacks."""
    if dtype is None:
        return array
    import ml_dtypes

    restored: Array = array.view(getattr(ml_dtypes, dtype))
    return restored


class _Sealed:
    """A file behind a checksum: its last bytes are held back, and what is written in their place is that of all others."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self._held = file, hashlib.sha256(), b""

    def write(self, data: Any) -> int:
        """Write all but the newest bytes; zipfile finds out that this file cannot be rewound."""
        given = bytes(data)
        self._held += given
        ready, self._held = self._held[:-_SEAL_BYTES], self._held[-_SEAL_BYTES:]
        self._digest.update(ready)
        self._file.write(ready)
        return len(given)

    def flush(self) -> None:
        """Hand on what is not held back."""
        self._file.flush()

    def close(self) -> None:
        """Nothing: the file is its opener's."""

    def finish(self) -> None:
        """Write the checksum."""
        self._file.write(_MARK + self._digest.hexdigest().encode())


@contextmanager
def checkpoints_in(folder: Path | None) -> Iterator[CheckpointFolder | None]:
    """The folder's checkpoints, or None where no folder is given."""
    if folder is None:
        yield None
        return
    with CheckpointFolder(folder) as found:
        yield found
