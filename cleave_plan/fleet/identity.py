"""What makes two fleets the same fleet: the names and figures of its members, however they were written down."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.fleet.figures import figures_of


def fingerprint(servers: Sequence[Server], devices: Sequence[Device]) -> str:
    """SHA-256 (hex) over names, every figure, its quartiles where known, and every efficiency point, members in their order.

    The fleet's own name, provenance, and anything about the file are left out: none of them changes a plan.
    """
    digest = hashlib.sha256(b"cleave-plan fleet 1\n")
    for kind, members in (("server", servers), ("device", devices)):
        for member in members:
            points = [(point.flop, point.fraction) for point in member.efficiency] if isinstance(member, Device) else []
            # + 0.0 makes -0.0 plain zero, which equals it and should hash the same
            figures = {name: float(value) + 0.0 for name, value in figures_of(member).items()}
            text = f"{kind} {member.name!r} {figures!r} {points!r}\n"
            if isinstance(member, Device) and member.spread:  # plans at a percentile depend on it
                quartiles = [(name, float(s.lower) + 0.0, float(s.upper) + 0.0) for name, s in sorted(member.spread.items())]
                text = f"{text[:-1]} {quartiles!r}\n"
            digest.update(text.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def make_fleet(name: str, servers: Sequence[Server], devices: Sequence[Device]) -> Fleet:
    """A fleet with its fingerprint; raises InputFileError when it has no devices, no servers or two of one name."""
    return Fleet(name=name, servers=tuple(servers), devices=tuple(devices), sha256=fingerprint(servers, devices))
