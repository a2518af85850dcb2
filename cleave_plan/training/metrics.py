"""Metrics as JSON lines: one line a step, there as soon as the step is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from cleave_plan.atomic import replace_file
from cleave_plan.errors import ExecutionError, InputFileError


class MetricsFile:
    """The lines of steps up to ``kept`` stay (a resumed run writes on), any other is removed. Use it in a ``with``.

    Raises ExecutionError when the file cannot be written, InputFileError when a line that should stay is no JSON.
    """

    def __init__(self, path: Path, *, kept: int) -> None:
        self._path = path
        try:
            replace_file(path, _lines_up_to(path, kept) if kept else b"")
            self._file: IO[bytes] = path.open("ab")
        except OSError as error:
            raise self._fault(error) from None

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._fault(error) from None

    def _fault(self, error: OSError) -> ExecutionError:
        return ExecutionError(
            f"the metrics cannot be written: {error.strerror or error}", where=str(self._path),
            remedy="make room or choose another file; a run with --checkpoint goes on with --resume",
        )  # fmt: skip

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:  # fmt: skip
        try:
            self._file.close()
        except OSError as fault:  # what could not be written before is tried once more
            if error is None:
                raise self._fault(fault) from None


def _lines_up_to(path: Path, step: int) -> bytes:
    """The lines of steps up to ``step``; a last line without an end was being written when its run was killed."""
    if not path.exists():
        return b""
    kept = []
    for place, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            number = json.loads(line)["step"]
            wanted = isinstance(number, int) and number <= step
        except (ValueError, KeyError, TypeError):
            raise InputFileError(
                "this is no line of metrics", where=f"{path}, line {place}", expected='{"step": ..., "loss": ...}',
                remedy="name another file",
            ) from None  # fmt: skip
        if wanted:
            kept.append(line + b"\n")
    return b"".join(kept)
