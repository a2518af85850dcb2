"""Text files in and out: bounded, UTF-8, and written beside before they replace what was there."""

from __future__ import annotations

from pathlib import Path

from cleave_plan.atomic import replace_file
from cleave_plan.errors import ExecutionError, InputFileError

LARGEST_FILE_BYTES = 64 * 2**20
"""The largest text file that is read: about 400,000 devices as a table."""


def read_text(path: str | Path, expected: str) -> str:
    """The text of ``path``; ``expected`` says what kind of file it should be.

    Raises InputFileError when it is missing, unreadable, larger than LARGEST_FILE_BYTES, or not UTF-8.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InputFileError(
            f"cannot be read ({error.strerror or error})", where=str(path), expected=expected, remedy="check the path"
        ) from error
    if len(raw) > LARGEST_FILE_BYTES:
        raise InputFileError("the file is too large", where=str(path), expected=f"at most {LARGEST_FILE_BYTES >> 20} MiB of text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputFileError(f"byte {error.start} is not UTF-8 text", where=str(path), expected=expected) from error


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it there, so that nobody ever sees half a file.

    Raises ExecutionError when the folder cannot be written.
    """
    try:
        replace_file(Path(path), text.encode())
    except OSError as error:
        raise ExecutionError(
            f"cannot be written ({error.strerror or error})", where=str(path), remedy="check that the folder exists and has room"
        ) from error
