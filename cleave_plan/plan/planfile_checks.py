"""What is wrong with a plan file, as errors that name the JSON path, what was expected and what to do.

Types and ranges are msgspec's; here are the rules that types cannot say: columns of one length, tiles that are not
empty, indices and names that exist, no GEMM decided twice, shares that sum to 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from cleave_plan.cost.tile import Ints
from cleave_plan.errors import InputFileError
from cleave_plan.plan.document import COLUMNS, HELD, AssignmentDocument, PlanDocument
from cleave_plan.plan.plan import Mode, SolverStatus

REMEDY = "undo the edit, or write the plan again with `cleave-plan plan`"
SHARE_TOLERANCE = 1e-9
_CHOICES: dict[str, type[StrEnum]] = {"mode": Mode, "status": SolverStatus}


def fault(where: str, path: str, what: str, expected: str, remedy: str = REMEDY) -> InputFileError:
    """An error at the JSON path ``path`` (``$.assignments[2].m_stop``) of the file ``where``."""
    return InputFileError(what, where=f"{where}: {path}", expected=expected, remedy=remedy)


def decode_error(error: Exception, where: str) -> InputFileError:
    """msgspec's refusal (or a nesting that is too deep) as an error of ours."""
    if isinstance(error, RecursionError):
        return fault(where, "$", "the nesting is too deep", "a plan as `cleave-plan plan` writes it")
    if not isinstance(error, msgspec.ValidationError):
        return fault(where, "$", f"not a JSON document ({_lower(str(error))})", "the whole of a plan file")
    message, _, place = str(error).partition(" - at ")
    path = place.rpartition("`$")[2]  # "`$.dims`", and for a faulty key "`key` in `$.dims`"
    path = f"${path.removesuffix('`')}"
    got = re.fullmatch(r"Expected (.*), got (.*)", message)
    if got:
        return fault(where, path, f"found {got[2]}", got[1])
    if message.startswith("Expected "):
        return fault(where, path, "the value is outside its range", message.removeprefix("Expected "))
    choices = _CHOICES.get(path.rpartition(".")[2])
    expected = ", ".join(member.value for member in choices) if choices else "what plan.schema.json describes"
    return fault(where, path, _lower(message), expected)


def check_document(document: PlanDocument, where: str) -> None:
    """Raise the first fault of a document whose types are right (``where``: the file's name)."""
    for name, members in (("device_names", document.device_names), ("server_names", document.server_names)):
        twice = _duplicate(members)
        if twice is not None:
            raise fault(where, f"$.{name}[{twice}]", f"{members[twice]!r} is listed twice", "different names")
    owner: dict[str, int] = {}
    for place, assignment in enumerate(document.assignments):
        path = f"$.assignments[{place}]"
        _check_servers(assignment, document.server_names, where, path)
        _check_columns(assignment, len(document.device_names), where, path)
        if len(assignment.gemms) % assignment.joined or (assignment.joined > 1) != bool(assignment.join_axis):
            found = f"{len(assignment.gemms)} GEMMs, {assignment.joined} to a product along {assignment.join_axis!r}"
            raise fault(where, f"{path}.joined", found, "whole products, and an axis where several GEMMs make one")
        for position, gemm in enumerate(assignment.gemms):
            if gemm in owner:
                found = f"GEMM {gemm!r} is already in $.assignments[{owner[gemm]}]"
                raise fault(where, f"{path}.gemms[{position}]", found, "each GEMM in one place")
            owner[gemm] = place


def ints(column: Sequence[int]) -> Ints:
    """A column of integers that fit int64."""
    return np.array(column, dtype=np.int64)


def _check_servers(assignment: AssignmentDocument, known: tuple[str, ...], where: str, path: str) -> None:
    for place, name in enumerate(assignment.servers):
        if name not in known:
            raise fault(where, f"{path}.servers[{place}]", f"no server is named {name!r}", f"one of {', '.join(known)}")
    if _duplicate(assignment.servers) is not None:
        raise fault(where, f"{path}.servers", "a server is listed twice", "different names")
    if assignment.server != assignment.servers[0]:
        raise fault(where, f"{path}.server", f"found {assignment.server!r}", f"the first of servers, {assignment.servers[0]!r}")
    if len(assignment.shares) != len(assignment.servers):
        found = f"{len(assignment.shares)} shares for {len(assignment.servers)} servers"
        raise fault(where, f"{path}.shares", found, "one share for each server")
    total = math.fsum(assignment.shares)
    if abs(total - 1) > SHARE_TOLERANCE:
        raise fault(where, f"{path}.shares", f"the shares sum to {total!r}", "a sum of 1")


def _check_columns(assignment: AssignmentDocument, devices: int, where: str, path: str) -> None:
    length = len(assignment.device)
    for name in COLUMNS:
        entries = len(getattr(assignment, name))
        if entries != length:
            raise fault(where, f"{path}.{name}", f"a column of {entries} entries", f"{length} entries, as device has")
    for name in HELD:
        entries = len(getattr(assignment, name))
        if entries not in (0, length):
            raise fault(where, f"{path}.{name}", f"a column of {entries} entries", f"none, or {length} as device has")
    beyond = np.flatnonzero(ints(assignment.device) > devices)
    if beyond.size:
        place = int(beyond[0])
        expected = f"an index into device_names, below {devices}, or {devices} for a tile that 'server' computes itself"
        raise fault(where, f"{path}.device[{place}]", f"device index {assignment.device[place]}", expected)
    for axis in ("m", "n", "k", "batch"):
        starts, stops = getattr(assignment, f"{axis}_start"), getattr(assignment, f"{axis}_stop")
        empty = np.flatnonzero(ints(stops) <= ints(starts))
        if empty.size:
            place = int(empty[0])
            found, expected = f"the tile ends at {stops[place]}", f"a stop above its start, {starts[place]}"
            raise fault(where, f"{path}.{axis}_stop[{place}]", found, expected)


def _duplicate(names: tuple[str, ...]) -> int | None:
    """Place of the first name that stood before, or None."""
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            return place
        seen.add(name)
    return None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
