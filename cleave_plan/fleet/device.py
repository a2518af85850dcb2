"""Devices, servers and fleets as values in SI units, each figure with where it came from.

Links are modelled apart: ``downlink`` is server -> device, ``uplink`` is device -> server. A figure that nobody gave
is absent and raises when it is used; it is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError, MissingFigureError

ANY_DTYPE = "any"


class Quality(StrEnum):
    """How a figure is known."""

    MEASURED = "measured"
    SPECIFIED = "specified"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one figure came from: how it is known, the source in words, and its date (ISO, may be empty)."""

    quality: Quality
    source: str
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far samples of a measured figure lay apart: their quartiles (in its unit) and how many there were."""

    lower: float
    upper: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyPoint:
    """A tile of ``flop`` FLOP runs at ``fraction`` of the device's FLOP/s figure (0 < fraction <= 1)."""

    flop: float
    fraction: float


def _require_positive(owner: str, figure: str, value: float, *, zero: bool = False, infinite: bool = False) -> None:
    bad = math.isnan(value) or value < 0 or (value == 0 and not zero) or (math.isinf(value) and not infinite)
    if bad:
        raise InputFileError(
            f"{figure} is {value!r}", where=owner, expected="a finite number above 0" if not zero else "a number of 0 or more"
        )


def _rate(owner: str, table: Mapping[str, float], dtype: DType) -> float:
    value = table.get(dtype.value, table.get(ANY_DTYPE))
    if value is None:
        raise MissingFigureError(
            f"no FLOP/s figure for {dtype.value}", where=owner, expected=f"one of {', '.join(sorted(table))} to cover it",
            remedy=f"measure it with `cleave-plan profile measure --dtype {dtype.value}` or add it to the fleet file",
        )  # fmt: skip
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device identity.

    ``flop_per_s`` maps an element type ("float32", ... or "any") to its sustained FLOP/s on large tiles;
    ``efficiency`` (sorted by ``flop``, may be empty = always 1) says what share of it a smaller tile reaches.
    ``latency_s`` is paid once per tile and includes the per-message overhead. ``spread`` has the quartiles of figures that
    were measured several times, by their name in fleet files ("downlink", "flops.float32"); figures are medians then.
    """

    name: str
    flop_per_s: Mapping[str, float]
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    latency_s: float
    memory_bytes: float
    power_watt: float | None = None
    dollars_per_hour: float | None = None
    efficiency: tuple[EfficiencyPoint, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    spread: Mapping[str, Spread] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = f"device {self.name}"
        if not self.flop_per_s:
            raise MissingFigureError("no FLOP/s figure", where=owner)
        for dtype, value in self.flop_per_s.items():
            _require_positive(owner, f"flop_per_s[{dtype}]", value)
        _require_positive(owner, "downlink_bytes_per_s", self.downlink_bytes_per_s)
        _require_positive(owner, "uplink_bytes_per_s", self.uplink_bytes_per_s)
        _require_positive(owner, "latency_s", self.latency_s, zero=True)
        _require_positive(owner, "memory_bytes", self.memory_bytes)
        if self.power_watt is not None:
            _require_positive(owner, "power_watt", self.power_watt, zero=True)
        if self.dollars_per_hour is not None:
            _require_positive(owner, "dollars_per_hour", self.dollars_per_hour, zero=True)
        for point in self.efficiency:
            _require_positive(owner, "efficiency flop", point.flop)
            if not 0 < point.fraction <= 1:
                raise InputFileError(f"efficiency {point.fraction!r}", where=owner, expected="a fraction above 0, at most 1")
        if self.spread:
            self._check_spread(owner)

    def _check_spread(self, owner: str) -> None:
        known = {"downlink": self.downlink_bytes_per_s, "uplink": self.uplink_bytes_per_s, "latency": self.latency_s}
        known |= {f"flops.{dtype}": value for dtype, value in self.flop_per_s.items()}
        for name, spread in self.spread.items():
            if name not in known:
                raise InputFileError(f"a spread of {name!r}", where=owner, expected=f"one of {', '.join(sorted(known))}")
            above_0 = spread.lower > 0 or name == "latency"
            rising = 0 <= spread.lower <= known[name] <= spread.upper < math.inf
            if not (rising and above_0 and spread.samples >= 1):
                raise InputFileError(
                    f"quartiles {spread.lower!r} and {spread.upper!r} of {spread.samples} samples around {name} {known[name]!r}",
                    where=owner, expected="a lower quartile, the figure and an upper quartile, rising, of 1 sample or more",
                )  # fmt: skip

    def rate(self, dtype: DType) -> float:
        """Sustained FLOP/s for ``dtype``; raises MissingFigureError when neither it nor "any" is known."""
        return _rate(f"device {self.name}", self.flop_per_s, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One parameter server. Link figures may be infinite ("unlimited")."""

    name: str
    flop_per_s: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    egress_bytes_per_s: float
    ingress_bytes_per_s: float
    dollars_per_hour: float | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = f"server {self.name}"
        if not self.flop_per_s:
            raise MissingFigureError("no FLOP/s figure", where=owner)
        for dtype, value in self.flop_per_s.items():
            _require_positive(owner, f"flop_per_s[{dtype}]", value)
        _require_positive(owner, "memory_bytes", self.memory_bytes, infinite=True)
        _require_positive(owner, "memory_bandwidth_bytes_per_s", self.memory_bandwidth_bytes_per_s)
        _require_positive(owner, "egress_bytes_per_s", self.egress_bytes_per_s, infinite=True)
        _require_positive(owner, "ingress_bytes_per_s", self.ingress_bytes_per_s, infinite=True)
        if self.dollars_per_hour is not None:
            _require_positive(owner, "dollars_per_hour", self.dollars_per_hour, zero=True)

    def rate(self, dtype: DType) -> float:
        """Sustained FLOP/s for ``dtype``; raises MissingFigureError when neither it nor "any" is known."""
        return _rate(f"server {self.name}", self.flop_per_s, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Devices around parameter servers; the first server walks the graph and runs the operators.

    ``sha256`` identifies the figures (canonical form, not the file's bytes); names are unique.
    """

    name: str
    servers: tuple[Server, ...]
    devices: tuple[Device, ...]
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputFileError("the fleet has no devices", where=self.name, expected="at least one device")
        if not self.servers:
            raise InputFileError("the fleet has no servers", where=self.name, expected="at least one server")
        for kind, members in (("device", self.devices), ("server", self.servers)):
            seen: set[str] = set()
            for member in members:
                if member.name in seen:
                    raise InputFileError(
                        f"two {kind}s are named {member.name!r}", where=self.name, expected=f"a different name for each {kind}"
                    )
                seen.add(member.name)
