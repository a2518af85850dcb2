"""The part of a run's record that calibration reads: levels as predicted and measured, and the figures behind predictions.

It is the ``comparison`` of the JSON document that ``run --json`` prints and ``run --record`` writes; other keys are left alone.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.textfile import read_text

_EXPECTED = "what `cleave-plan run --record` wrote of a run beside its fleet"
_NEEDED = ("downlink", "uplink", "latency")


class RunDevice(msgspec.Struct, kw_only=True, frozen=True):
    """A device in a level: seconds, and its phases (seconds of latency, bytes down, seconds of arithmetic, bytes up)."""

    measured_s: float
    work: tuple[tuple[float, float, float, float], ...] = ()


class RunLevel(msgspec.Struct, kw_only=True, frozen=True):
    """A level: whether devices may have waited for one another, and the element types of its GEMMs."""

    crowded: bool
    dtypes: tuple[str, ...]
    devices: dict[str, RunDevice]


class RunRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A run beside its plan; ``figures`` by device and name, in SI; ``where`` is the file."""

    emulated: bool
    levels: tuple[RunLevel, ...]
    figures: dict[str, dict[str, float]]
    where: str = ""


class _File(msgspec.Struct, kw_only=True, frozen=True):
    comparison: RunRecord | None = None


def read_run(path: str | Path) -> RunRecord:
    """The comparison in a run's record; raises InputFileError when the file has none, or numbers that none can be."""
    text = read_text(path, _EXPECTED)
    try:
        found = msgspec.json.decode(text, type=_File).comparison
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputFileError(str(error), where=str(path), expected=_EXPECTED) from error
    if found is None:
        raise InputFileError(
            "it does not say what was predicted",
            where=str(path),
            expected=_EXPECTED,
            remedy="run again with --fleet and --record",
        )
    for place, level in enumerate(found.levels):
        for name, own in level.devices.items():
            numbers = [own.measured_s, *(number for phase in own.work for number in phase)]
            figures = found.figures.get(name, {})
            if not all(0 <= number < math.inf for number in numbers) or not _usable(figures, level.dtypes):
                raise InputFileError(
                    f"numbers of {name!r} that cannot be used", where=f"{path}: $.comparison.levels[{place}]", expected=_EXPECTED
                )
    return msgspec.structs.replace(found, where=str(path))


def _usable(figures: dict[str, float], dtypes: tuple[str, ...]) -> bool:
    """Whether all figures that a prediction needs are there, and rates above 0."""
    if any(name not in figures for name in _NEEDED) or not 0 <= figures["latency"] < math.inf:
        return False
    flops = [figures.get(f"flops.{dtype}", figures.get("flops.any", 0.0)) for dtype in dtypes]
    return all(0 < rate < math.inf for rate in (figures["downlink"], figures["uplink"], *flops))
