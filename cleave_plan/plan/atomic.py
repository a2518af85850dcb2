"""Files that are there whole or not at all: written beside, flushed to the disk, renamed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Make ``path`` hold ``content``; a reader sees the old file or the whole new one. Raises OSError, leaving nothing."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must survive a power cut too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
