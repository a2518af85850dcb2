"""Training settings in a YAML file (``--config``); what it leaves out keeps its default.

schema: 1
optimizer: adamw
learning_rate: 0.0003
betas: [0.9, 0.95]
weight_decay: 0.1
groups:
  - {parameters: ["*.bias", "*norm*"], weight_decay: 0}
  - {parameters: "head.*", learning_rate: 0.001}
clip_norm: 1
schedule: {kind: cosine, warmup_steps: 100, final: 0.1}
accumulate: 4
seed: 7
shuffle: yes
reproducible: yes
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.reading import expect_list, expect_mapping, expect_name, unknown
from cleave_plan.fleet.textfile import read_text
from cleave_plan.fleet.yamlfile import parse_yaml
from cleave_plan.training.settings import Group, OptimizerKind, Schedule, ScheduleKind

SCHEMA = "1"


def load_settings(path: str | Path) -> dict[str, Any]:
    """The fields of :class:`~cleave_plan.training.settings.Settings` that a file sets.

    Raises InputFileError with the place of the first fault.
    """
    where = str(path)
    root = expect_mapping(
        parse_yaml(read_text(path, "training settings (YAML)"), where), where, keys=("schema", *_READERS), required=("schema",)
    )
    if root["schema"] != SCHEMA:
        raise InputFileError(f"found schema {root['schema']!r}", where=f"{where}: schema", expected=f"schema: {SCHEMA}")
    return _fields(root, _READERS, where)


def _fields(entry: Mapping[str, Any], readers: Mapping[str, Callable[[object, str], Any]], where: str) -> dict[str, Any]:
    return {key: read(entry[key], f"{where}: {key}") for key, read in readers.items() if key in entry}


def _number(value: object, where: str) -> float:
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputFileError(f"found {value!r}", where=where, expected="a plain number, such as 0.001")
    return number


def _whole(value: object, where: str) -> int:
    if not isinstance(value, str) or not re.fullmatch("[0-9]{1,18}", value):
        raise InputFileError(f"found {value!r}", where=where, expected="a whole number of 0 or more")
    return int(value)


def _switch(value: object, where: str) -> bool:
    if value not in ("yes", "no", "true", "false"):
        raise InputFileError(f"found {value!r}", where=where, expected="yes or no")
    return value in ("yes", "true")


def _pair(value: object, where: str) -> tuple[float, float]:
    entries = expect_list(value, where, "two numbers")
    if len(entries) != 2:
        raise InputFileError(f"found {len(entries)} entries", where=where, expected="two numbers, such as [0.9, 0.999]")
    return _number(entries[0], where), _number(entries[1], where)


def _patterns(value: object, where: str) -> tuple[str, ...]:
    return tuple(expect_name(each, where) for each in (value if isinstance(value, list) else [value]))


def _groups(value: object, where: str) -> tuple[Group, ...]:
    readers: dict[str, Callable[[object, str], Any]] = {
        "parameters": _patterns, "weight_decay": _number, "learning_rate": _number,
    }  # fmt: skip
    found = []
    for place, each in enumerate(expect_list(value, where, "groups")):
        entry = expect_mapping(each, f"{where}[{place}]", keys=tuple(readers), required=("parameters",))
        found.append(Group(**_fields(entry, readers, f"{where}[{place}]")))
    return tuple(found)


def _schedule(value: object, where: str) -> Schedule:
    readers: dict[str, Callable[[object, str], Any]] = {"kind": _schedule_kind, "warmup_steps": _whole, "final": _number}
    return Schedule(**_fields(expect_mapping(value, where, keys=tuple(readers)), readers, where))


def _schedule_kind(value: object, where: str) -> ScheduleKind:
    return ScheduleKind(_one_of(value, [kind.value for kind in ScheduleKind], where))


def _optimizer(value: object, where: str) -> OptimizerKind:
    return OptimizerKind(_one_of(value, [kind.value for kind in OptimizerKind], where))


def _one_of(value: object, known: list[str], where: str) -> str:
    word = expect_name(value, where)
    if word not in known:
        raise unknown(repr(word), word, known, where)
    return word


_READERS: dict[str, Callable[[object, str], Any]] = {
    "optimizer": _optimizer, "learning_rate": _number, "momentum": _number, "nesterov": _switch, "betas": _pair,
    "epsilon": _number, "weight_decay": _number, "groups": _groups, "clip_norm": _number, "schedule": _schedule,
    "accumulate": _whole, "seed": _whole, "shuffle": _switch, "reproducible": _switch,
}  # fmt: skip
