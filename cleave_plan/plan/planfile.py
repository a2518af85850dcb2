"""Plans as JSON files: written beside and renamed, read back with every field checked.

The same input gives the same bytes: what the planner took is left out (null), fields stand in the order of
:mod:`cleave_plan.plan.document`, mappings are sorted by key, lists of plain values are on one line (a plan for 10,000
devices is mostly columns), everything else is indented for people.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cleave_plan.atomic import replace_file
from cleave_plan.cost.tile import Tiles
from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.plan.document import COLUMNS, HELD, AssignmentDocument, PlanDocument
from cleave_plan.plan.plan import SCHEMA_VERSION, Assignment, Constraint, LevelReport, Plan, Predicted, Reference, SolverReport
from cleave_plan.plan.planfile_checks import check_document, decode_error, fault, ints
from cleave_plan.workload.recompute import Recomputed

SIZE_LIMIT_BYTES = 512 * 2**20
"""A larger file is refused unread: a plan for 100,000 devices is a fifth of it."""


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as the JSON-ready dictionary that :func:`save_plan` writes, here with the seconds that its solver took.

    Raises InputFileError, with the JSON path, where the plan holds something that no plan file may hold (NaN, a tile
    whose stop is not above its start, two GEMMs of one name, ...).
    """
    return _builtins(plan, where="plan")


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write ``plan`` to ``path``; a reader sees the old file or the whole new one, never a part.

    Raises InputFileError as :func:`plan_document`, UsageError when ``path`` cannot be written to, ExecutionError when
    writing fails half-way (a full disk); neither leaves anything behind.
    """
    timeless = replace(plan, solver=replace(plan.solver, build_s=None, solve_s=None))
    text = b"".join(_render(_builtins(timeless, where=str(path)), "")) + b"\n"
    try:
        replace_file(Path(path), text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise UsageError(
            f"the plan cannot be written: {error.strerror}", where=str(path), expected="a file in a folder that can be written to"
        ) from error
    except OSError as error:
        raise ExecutionError(f"writing the plan failed: {error.strerror}", where=str(path)) from error


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises InputFileError with the file, the JSON path of the first fault, what was expected and what to do.
    """
    where = str(path)
    raw = _read(Path(path), where)
    try:
        _check_version(raw, where)
        document = msgspec.json.decode(raw, type=PlanDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise decode_error(error, where) from error
    check_document(document, where)
    return _plan(document)


def holds_plan(raw: bytes) -> bool:
    """Whether the text of a JSON file looks like a plan's, told by its keys alone."""
    try:
        return "assignments" in msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > SIZE_LIMIT_BYTES:
                raise _too_large(where)
            raw = file.read(SIZE_LIMIT_BYTES + 1)  # bounded here too: a device or a pipe has no size to ask for
    except OSError as error:
        raise InputFileError(f"the plan cannot be read: {error.strerror}", where=where, expected="a plan file") from error
    if len(raw) > SIZE_LIMIT_BYTES:
        raise _too_large(where)
    return raw


def _too_large(where: str) -> InputFileError:
    return InputFileError(
        "the file is too large for a plan", where=where, expected=f"at most {SIZE_LIMIT_BYTES // 2**20} MiB",
        remedy="name the plan file that `cleave-plan plan` wrote",
    )  # fmt: skip


class _Version(msgspec.Struct):
    schema_version: int


def _check_version(raw: bytes, where: str) -> None:
    """Before anything else: a newer format should be called that, not be blamed for its new fields."""
    version = msgspec.json.decode(raw, type=_Version).schema_version
    if version != SCHEMA_VERSION:
        found, expected = f"a plan of format {version}", f"format {SCHEMA_VERSION}"
        raise fault(where, "$.schema_version", found, expected, "use the version of cleave-plan that wrote it")


def _plan(document: PlanDocument) -> Plan:
    parts = _shallow(document)
    predicted, solver = _shallow(document.predicted), _shallow(document.solver)
    predicted["levels"] = tuple(LevelReport(**_shallow(level)) for level in document.predicted.levels)
    parts |= {
        "model": Reference(**_shallow(document.model)),
        "fleet": Reference(**_shallow(document.fleet)),
        "predicted": Predicted(**predicted),
        "solver": SolverReport(**solver),
        "recompute": None if document.recompute is None else Recomputed(**_shallow(document.recompute)),
        "constraints": tuple(Constraint(**_shallow(constraint)) for constraint in document.constraints),
        "assignments": tuple(_assignment(assignment) for assignment in document.assignments),
    }
    return Plan(**parts)


def _assignment(document: AssignmentDocument) -> Assignment:
    parts = _shallow(document)
    tiles = Tiles(**{name: ints(parts.pop(name)) for name in COLUMNS})
    parts |= {name: ints(parts[name]) for name in HELD}
    return Assignment(**parts, tiles=tiles)


def _shallow(document: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(document)


def _builtins(plan: Plan, where: str) -> dict[str, Any]:
    """Lists, dictionaries and numbers of the plan, checked as a file would be when it is read."""
    plain = _plain(plan)
    for path, value in _floats(plain, "$"):
        if not math.isfinite(value):
            raise fault(where, path, f"found {value!r}", "a finite number")
    try:
        document = msgspec.convert(plain, PlanDocument)
    except msgspec.ValidationError as error:
        raise decode_error(error, where) from error
    check_document(document, where)
    builtins: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return builtins


def _plain(value: Any) -> Any:
    if isinstance(value, Assignment):
        held = {"held_a": value.held_a.tolist(), "held_b": value.held_b.tolist()}
        parts = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name not in ("tiles", *HELD)}
        return parts | {name: value.tiles.column(name).tolist() for name in COLUMNS} | held
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _floats(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every float with its JSON path; columns hold integers by construction and are passed over."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in COLUMNS:
                yield from _floats(item, f"{path}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _floats(item, f"{path}[{place}]")


def _render(value: Any, indent: str) -> Iterator[bytes]:
    """JSON text: dictionaries and lists of them one entry a line, everything else compact."""
    encode = msgspec.json.encode
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        entries = [(encode(key) + b": ", item) for key, item in value.items()]
        brackets = (b"{\n", b"}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        entries = [(b"", item) for item in value]
        brackets = (b"[\n", b"]")
    else:
        yield encode(value)
        return
    yield brackets[0]
    for place, (key, item) in enumerate(entries):
        yield deeper.encode() + key
        yield from _render(item, deeper)
        yield b",\n" if place + 1 < len(entries) else b"\n"
    yield indent.encode() + brackets[1]
