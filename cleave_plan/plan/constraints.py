"""What a user demands of a plan, by name: the values, and which GEMMs, devices and servers each of them speaks of.

A constraint matches GEMMs or devices by name or glob pattern (``*.fc1``, ``phone-*``) and says one or several of

- of GEMMs: which ``modes`` they may be cut in, which ``servers`` may hold their weights and compute of them;
- of devices: ``exclude``; ``memory_bytes`` (use no more); ``headroom`` (leave that share of the memory); ``work`` (at most
  that share of the multiply-adds of any level); ``time_s`` (busy at most so long in any level, by executed cost).

Several constraints on one thing all hold. The planner sees the fleet through :func:`fleet_view`, and so does the second
opinion: with caps and headroom a device *has* less memory, and its stream buffers are a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from cleave_plan.errors import InputFileError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.plan.plan import Constraint, Mode
from cleave_plan.units import Unit, format_value

Floats = NDArray[np.float64]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether ``name`` is one of ``patterns`` or fits one as a glob."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRule:
    """What all constraints on a GEMM leave: modes, servers (None: any), and the constraints' names."""

    modes: frozenset[Mode]
    servers: frozenset[str] | None
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """One text for each rule, "" for none: GEMMs under different rules are not planned as one."""
        return " & ".join(self.names)


def rule_of(constraints: Sequence[Constraint], gemm: str) -> GemmRule:
    """The rule for the GEMM called ``gemm``."""
    modes, servers = frozenset(Mode), None
    names = []
    for constraint in constraints:
        if not matches(gemm, constraint.gemms):
            continue
        names.append(constraint.name)
        if constraint.modes:
            modes &= frozenset(constraint.modes)
        if constraint.servers:
            allowed = frozenset(constraint.servers)
            servers = allowed if servers is None else servers & allowed
    return GemmRule(modes=modes, servers=servers, names=tuple(names))


def on_device(constraints: Sequence[Constraint], device: str) -> list[Constraint]:
    """The constraints that speak of ``device``."""
    return [constraint for constraint in constraints if matches(device, constraint.devices)]


def excluded(constraints: Sequence[Constraint], fleet: Fleet) -> dict[str, str]:
    """Devices that may not be used, each with the name of the constraint that says so."""
    found = {}
    for device in fleet.devices:
        names = [constraint.name for constraint in on_device(constraints, device.name) if constraint.exclude]
        if names:
            found[device.name] = names[0]
    return found


def fleet_view(constraints: Sequence[Constraint], fleet: Fleet) -> Fleet:
    """``fleet`` with the memory that caps and headroom leave; its name and hash stay, for it is the same fleet."""
    if not any(constraint.memory_bytes is not None or constraint.headroom is not None for constraint in constraints):
        return fleet
    return replace(fleet, devices=tuple(_with_memory(constraints, device) for device in fleet.devices))


def _with_memory(constraints: Sequence[Constraint], device: Device) -> Device:
    left = device.memory_bytes
    for constraint in on_device(constraints, device.name):
        if constraint.headroom is not None:
            left = min(left, device.memory_bytes * (1 - constraint.headroom))
        if constraint.memory_bytes is not None:
            left = min(left, constraint.memory_bytes)
    return device if left == device.memory_bytes else replace(device, memory_bytes=left)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caps:
    """Columns over devices: the largest share of a level's multiply-adds, and of seconds in a level (inf: no cap)."""

    work: Floats
    time_s: Floats

    @property
    def any(self) -> bool:
        """Whether any device is capped."""
        return bool(np.isfinite(self.work).any() or np.isfinite(self.time_s).any())


def caps_of(constraints: Sequence[Constraint], devices: Sequence[Device]) -> Caps:
    """The caps on ``devices``; the smallest of several holds."""
    work, time_s = np.full(len(devices), np.inf), np.full(len(devices), np.inf)
    if any(constraint.work is not None or constraint.time_s is not None for constraint in constraints):
        for place, device in enumerate(devices):
            for constraint in on_device(constraints, device.name):
                work[place] = min(work[place], np.inf if constraint.work is None else constraint.work)
                time_s[place] = min(time_s[place], np.inf if constraint.time_s is None else constraint.time_s)
    return Caps(work=work, time_s=time_s)


def check_names(constraints: Sequence[Constraint], gemms: Iterable[str], fleet: Fleet) -> None:
    """Raise InputFileError for a pattern that matches nothing, or a server that the fleet does not have."""
    gemm_names, device_names = list(gemms), [device.name for device in fleet.devices]
    server_names = [server.name for server in fleet.servers]
    for constraint in constraints:
        where = f"constraint {constraint.name!r}"
        for kind, patterns, names in (
            ("GEMM of the model", constraint.gemms, gemm_names), ("device of the fleet", constraint.devices, device_names),
        ):  # fmt: skip
            for pattern in patterns:
                if not any(matches(name, [pattern]) for name in names):
                    raise InputFileError(
                        f"no {kind} matches {pattern!r}", where=where, expected=f"a name or a pattern such as {names[0]!r}"
                        if names else "", remedy="correct the pattern, or remove it",
                    )  # fmt: skip
        for server in constraint.servers:
            if server not in server_names:
                raise InputFileError(f"no server is named {server!r}", where=where, expected=f"one of {', '.join(server_names)}")


def in_words(constraint: Constraint) -> str:
    """What the constraint demands, as a clause."""
    said = []
    if constraint.modes:
        said.append(f"cut as {' or '.join(mode.value for mode in constraint.modes)}")
    if constraint.servers:
        said.append(f"on {' or '.join(constraint.servers)}")
    if constraint.exclude:
        said.append("left out")
    if constraint.memory_bytes is not None:
        said.append(f"at most {format_value(constraint.memory_bytes, Unit.BYTES)} of memory")
    if constraint.headroom is not None:
        said.append(f"{constraint.headroom:.3g} of the memory left free")
    if constraint.work is not None:
        said.append(f"at most {constraint.work:.3g} of the work of a level")
    if constraint.time_s is not None:
        said.append(f"at most {format_value(constraint.time_s, Unit.SECONDS)} in a level")
    return f"{', '.join((*constraint.gemms, *constraint.devices))}: {', '.join(said)}"
