"""What a file is that was given for an ONNX model: told by how it begins."""

from __future__ import annotations

_UNPACK = "unpack it first"
_EXPORT = "export the model to ONNX"

_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "the file is compressed (gzip)", _UNPACK),
    (b"BZh", "the file is compressed (bzip2)", _UNPACK),
    (b"\xfd7zXZ", "the file is compressed (xz)", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "the file is compressed (zstd)", _UNPACK),
    (b"PK\x03\x04", "the file is a zip archive (PyTorch's .pt files are)", f"{_UNPACK}, or {_EXPORT}"),
    (b"\x80", "the file is a Python pickle", _EXPORT),
    (b"\x89HDF", "the file is HDF5 (Keras's .h5 files are)", _EXPORT),
    (b"GGUF", "the file is GGUF", _EXPORT),
    (b"version https://git-lfs", "the file is a pointer of Git LFS, not the model", "fetch the model with git lfs pull"),
    (b"<", "the file is a web page or XML", "download the model itself"),
    (b"ir_version", "the file is the text form of a protobuf", "save the model in the binary form"),
    (b"{", "the file is JSON", "save the model in the binary form"),
)  # fmt: skip


_FLATBUFFER = b"ORTM", "the file is in onnxruntime's own format", "take the .onnx file that it was made of"


def told_by(data: bytes) -> tuple[str, str] | None:
    """What a file that holds ``data`` is, and what to do about it; None where nothing tells."""
    if data[4:8] == _FLATBUFFER[0]:  # a flatbuffer's name stands behind an offset
        return _FLATBUFFER[1:]
    start = data[:64].lstrip()
    return next(((what, remedy) for beginning, what, remedy in _BEGINNINGS if start.startswith(beginning)), None)
