"""Files that are there whole or not at all: written beside, flushed to the disk, renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def beside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write; when the block ends well, ``path`` holds what was written: a reader sees the old file or the whole new
    one. Raises OSError, and leaves nothing when the block raises."""
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with written.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must survive a power cut too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(path: Path, content: bytes) -> None:
    """Make ``path`` hold ``content``, whole or not at all. Raises OSError, leaving nothing."""
    with beside(path) as file:
        file.write(content)
