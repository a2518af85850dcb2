"""Where a tensor's bytes lie when they are not in the model file: located and checked, not read.

A location is relative to the folder of the model file, whatever the working folder is. One that leads out of that folder
(absolute, through "..", or through a link) is refused: a model from elsewhere must not make us read other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx

from cleave_plan.errors import InputFileError

# Looked up once: a name of a protobuf class takes as long to find as a field.
_EXTERNAL = onnx.TensorProto.EXTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """A range of bytes in a file beside the model; ``length`` is None when the file does not say it (to the end)."""

    path: Path
    offset: int
    length: int | None

    @property
    def present(self) -> bool:
        """Whether the file is there and long enough for the range."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return False
        return self.path.is_file() and self.offset + (self.length or 0) <= size


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is outside the model file."""
    return bool(tensor.data_location == _EXTERNAL)


def _number(entries: dict[str, str], key: str, where: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InputFileError(f"external data has {key} {text!r}", where=where, expected="a whole number of bytes, 0 or more")
    return int(text)


def locate(tensor: onnx.TensorProto, folder: Path, resolved: dict[str, Path] | None = None) -> ExternalData:
    """The range that an external tensor names; ``folder`` is the folder of the model file.

    ``resolved`` keeps checked locations between calls for tensors of one model. Raises InputFileError when the location
    is missing or outside the folder, or offset or length are not numbers.
    """
    where = f"tensor {tensor.name!r} of the model in {folder}"
    entries = {entry.key: entry.value for entry in tensor.external_data[:]}
    location = entries.get("location", "")
    path = None if resolved is None else resolved.get(location)
    if path is None:
        path = _inside(location, folder, where)
        if resolved is not None:
            resolved[location] = path
    return ExternalData(path=path, offset=_number(entries, "offset", where) or 0, length=_number(entries, "length", where))


def _inside(location: str, folder: Path, where: str) -> Path:
    """The file that ``location`` names, links followed; refused outside ``folder``."""
    if not isinstance(location, str) or not location or "\0" in location:
        raise InputFileError("external data has no usable location", where=where, expected="a file name beside the model")
    try:
        home = folder.resolve()
        path = (home / location.replace("\\", "/")).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputFileError(f"external data at {location!r} cannot be found: {error}", where=where) from None
    if not path.is_relative_to(home) or path == home:
        raise InputFileError(
            f"external data at {location!r} lies outside the model's folder",
            where=where,
            expected="a file in the folder of the model",
            remedy="move the data file beside the model and save the model again",
        )
    return path
