"""Arrays of an ``.npz`` file without reading it: those that are not compressed are mapped, so that data may exceed memory."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from cleave_plan.errors import InputFileError
from cleave_plan.execution.cores import memory_bytes
from cleave_plan.kernels.arrays import Array

_EXPECTED = "an .npz file of arrays (numpy.savez) named like the inputs of the training step"
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a member: a mark, what the directory says too, and the lengths of the name and of what follows it."""

_LOCAL_MARK = b"PK\x03\x04"


def map_arrays(path: str | Path) -> tuple[dict[str, Array], str]:
    """The arrays by name, and a fingerprint of the file: its members with their sizes and checksums.

    Compressed arrays are unpacked, if they fit into memory. Raises InputFileError for anything that is no such file,
    pickled objects included.
    """
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(member.file_size for member in members if member.compress_type != zipfile.ZIP_STORED)
            if unpacked > memory_bytes():
                raise InputFileError(
                    f"it unpacks to {unpacked} bytes", where=where, expected=f"at most the {memory_bytes()} bytes of memory",
                    remedy="save it with numpy.savez, whose arrays can be read where they are",
                )  # fmt: skip
            arrays = {member.filename.removesuffix(".npy"): _array(Path(path), archive, member) for member in members}
    except FileNotFoundError:
        raise InputFileError("there is no such file", where=where, expected=_EXPECTED, remedy="check the path") from None
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputFileError(f"the file cannot be read: {error}", where=where, expected=_EXPECTED) from None
    print_ = ";".join(f"{member.filename}:{member.file_size}:{member.CRC:08x}" for member in members)
    return arrays, f"{zlib.crc32(print_.encode()):08x} of {len(members)} arrays"


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        header = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename!r} holds Python objects")
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if needed > member.file_size - header:
        raise ValueError(f"{member.filename!r} claims the shape {list(shape)} and holds {member.file_size} bytes")
    order: Any = "F" if fortran else "C"
    if member.compress_type != zipfile.ZIP_STORED or not needed:
        with archive.open(member) as file:
            file.read(header)
            unpacked: Array = np.frombuffer(file.read(needed), dtype).reshape(shape, order=order)
        return unpacked
    return np.memmap(path, dtype, "r", _data_offset(path, member) + header, shape, order)


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where a member's data begins: behind its local header, whose length only itself says."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        mark, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if mark != _LOCAL_MARK:
        raise ValueError(f"{member.filename!r} is not where the file says")
    return member.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
