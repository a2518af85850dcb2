"""Constraint files: YAML, each constraint with a name.

    schema: 1
    constraints:
      - {name: scores stay home, gemms: "*.scores", mode: server}
      - {name: no columns, gemms: [fc1, "*.fc1"], forbid: column}
      - {name: head on spare, gemms: head, server: spare}
      - {name: phones rest, devices: "phone-*", exclude: yes}
      - {name: laptop is in use, devices: laptop, memory: 2 GB, work: 0.2, time: 5 s}
      - {name: spare room, devices: "*", headroom: 0.1}

``mode`` and ``forbid`` take the modes of plan files, ``server`` names of servers; each may be a list. Unknown keys are
refused, and so is a constraint that says nothing, or that speaks of GEMMs and devices at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.catalogue import read_share
from cleave_plan.fleet.figures import FigureSpec, read_figure
from cleave_plan.fleet.reading import expect_list, expect_mapping, expect_name, unknown
from cleave_plan.fleet.textfile import read_text
from cleave_plan.fleet.yamlfile import parse_yaml
from cleave_plan.plan.plan import Constraint, Mode
from cleave_plan.units import Unit

SCHEMA = "1"
GEMM_KEYS = ("mode", "forbid", "server")
DEVICE_KEYS = ("exclude", "memory", "headroom", "work", "time")
KEYS = ("name", "gemms", "devices", *GEMM_KEYS, *DEVICE_KEYS)

_MEMORY = FigureSpec(unit=Unit.BYTES, field="memory_bytes")
_TIME = FigureSpec(unit=Unit.SECONDS, field="time_s")


def load_constraints(path: str | Path) -> tuple[Constraint, ...]:
    """Read a constraint file; raises InputFileError with the file, the place in it and what was expected."""
    where = str(path)
    document = parse_yaml(read_text(path, "a constraint file (YAML)"), where)
    root = expect_mapping(document, where, keys=("schema", "constraints"), required=("schema", "constraints"))
    if root["schema"] != SCHEMA:
        raise InputFileError(f"found schema {root['schema']!r}", where=f"{where}: schema", expected=f"schema: {SCHEMA}")
    entries = expect_list(root["constraints"], f"{where}: constraints", "constraints")
    found = tuple(_constraint(entry, f"{where}: constraints[{place}]") for place, entry in enumerate(entries))
    names: set[str] = set()
    for place, constraint in enumerate(found):
        if constraint.name in names:
            raise InputFileError(
                f"{constraint.name!r} is a second time", where=f"{where}: constraints[{place}].name", expected="different names"
            )
        names.add(constraint.name)
    return found


def _constraint(value: object, where: str) -> Constraint:
    entry = expect_mapping(value, where, keys=KEYS, required=("name",))
    name = expect_name(entry["name"], f"{where}.name")
    kinds = [kind for kind in ("gemms", "devices") if kind in entry]
    if len(kinds) != 1:
        raise InputFileError(
            f"constraint {name!r} speaks of {' and '.join(kinds) or 'nothing'}", where=where, expected="either gemms or devices"
        )
    allowed = GEMM_KEYS if kinds == ["gemms"] else DEVICE_KEYS
    said = [key for key in (*GEMM_KEYS, *DEVICE_KEYS) if key in entry]
    strange = [key for key in said if key not in allowed]
    if strange or not said:
        raise InputFileError(
            f"{strange[0]!r} is not for {kinds[0]}" if strange else f"constraint {name!r} demands nothing",
            where=where, expected=f"one or several of {', '.join(allowed)}",
        )  # fmt: skip
    patterns = _texts(entry[kinds[0]], f"{where}.{kinds[0]}")
    if kinds == ["gemms"]:
        return Constraint(
            name=name, gemms=patterns, modes=_modes(entry, where),
            servers=_texts(entry["server"], f"{where}.server") if "server" in entry else (),
        )  # fmt: skip
    return Constraint(name=name, devices=patterns, **_demands(entry, where))


def _demands(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a constraint on devices."""
    found: dict[str, Any] = {}
    if "exclude" in entry:
        if entry["exclude"] not in ("yes", "true"):
            raise InputFileError(f"found {entry['exclude']!r}", where=f"{where}.exclude", expected="yes, or no such key")
        found["exclude"] = True
    if "memory" in entry:
        found["memory_bytes"] = read_figure(entry["memory"], _MEMORY, f"{where}.memory")
    if "time" in entry:
        found["time_s"] = read_figure(entry["time"], _TIME, f"{where}.time")
    for key in ("headroom", "work"):
        if key in entry:
            found[key] = read_share(entry[key], f"{where}.{key}")
    if found.get("headroom") == 1:
        raise InputFileError("found '1'", where=f"{where}.headroom", expected="a share below 1, or exclude: yes")
    return found


def _modes(entry: Mapping[str, Any], where: str) -> tuple[Mode, ...]:
    """The modes that ``mode`` names and ``forbid`` does not; () when neither is there."""
    if "mode" not in entry and "forbid" not in entry:
        return ()
    wanted = _mode_list(entry["mode"], f"{where}.mode") if "mode" in entry else set(Mode)
    left = wanted - (_mode_list(entry["forbid"], f"{where}.forbid") if "forbid" in entry else set())
    if not left:
        raise InputFileError("no mode is left", where=where, expected="mode and forbid that leave one")
    return tuple(mode for mode in Mode if mode in left)


def _mode_list(value: object, where: str) -> set[Mode]:
    known = [mode.value for mode in Mode]
    for text in _texts(value, where):
        if text not in known:
            raise unknown(f"mode {text!r}", text, known, where)
    return {Mode(text) for text in _texts(value, where)}


def _texts(value: object, where: str) -> tuple[str, ...]:
    """A text, or a list of at least one."""
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise InputFileError("found an empty list", where=where, expected="at least one name or pattern")
    return tuple(expect_name(text, where) for text in texts)
