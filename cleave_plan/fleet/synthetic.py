"""Seeded fleets to plan with before any device is known.

``cleave``: the defaults of the authors' public code. All from numpy.random.default_rng(seed), one array of D values
after another: FLOP/s U(5, 7)e12, downlink U(10, 100)e6 B/s, uplink U(5, 10)e6 B/s, memory U(1, 3)e9 B; latency 0. Its
FLOP/s and uplinks are optimistic for phones of today.

``measured-2023``: four classes of device with public figures. Arrays of D values in this order, every device drawing
all six whether it needs them or not: class (choice by share), link kind (uniform; below 0.5 is mobile, for phones only),
FLOP/s (uniform in the class's range of FP32 peaks, times its sustained share), memory (uniform in the class's range),
downlink factor and uplink factor (lognormal(0, 0.5)). float16 is twice float32. Other element types have no public
figure for these classes and stay absent: planning a model that needs one raises MissingFigureError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from cleave_plan.errors import UsageError
from cleave_plan.fleet.device import ANY_DTYPE, Device, Fleet, Provenance, Quality, Server
from cleave_plan.fleet.fleetfile import LARGEST_FLEET
from cleave_plan.fleet.identity import make_fleet
from cleave_plan.fleet.reading import unknown

Floats = NDArray[np.float64]

STRAGGLER_FACTOR = 10.0
"""How many times slower a straggler is in FLOP/s, downlink and uplink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A kind of fleet: what it is in one sentence, and the function that draws its devices."""

    summary: str
    draw: Callable[[int, np.random.Generator], list[Device]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """A class of the preset ``measured-2023``: share of the fleet, ranges of FP32 peak (FLOP/s) and memory (bytes)."""

    name: str
    share: float
    peak_flop_per_s: tuple[float, float]
    peak_source: str
    sustained: float
    share_source: str
    memory_bytes: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClass:
    """A kind of link of the preset ``measured-2023``: medians in bytes/s and seconds."""

    name: str
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    latency_s: float


_EXO, _LIKE_M4 = "(exo community table)", "sustained as measured on the Apple M4 (arXiv 2502.05317)"
CLASSES_2023 = (
    DeviceClass(
        name="phone", share=0.5, peak_flop_per_s=(0.7e12, 2.2e12), peak_source=_EXO, memory_bytes=(1e9, 2e9),
        sustained=0.6, share_source="sustained when hot (arXiv 2603.23640)",
    ),
    DeviceClass(
        name="laptop", share=0.3, peak_flop_per_s=(2.3e12, 4.3e12), peak_source=_EXO, memory_bytes=(3e9, 6e9),
        sustained=0.68, share_source=_LIKE_M4,
    ),
    DeviceClass(
        name="desktop", share=0.15, peak_flop_per_s=(10e12, 22e12), peak_source=_EXO, memory_bytes=(6e9, 10e9),
        sustained=0.7, share_source="sustained by assumption",
    ),
    DeviceClass(
        name="board", share=0.05, peak_flop_per_s=(1.2e12, 2.1e12), peak_source="(Jetson Orin Nano by arithmetic)",
        memory_bytes=(2e9, 4e9), sustained=0.68, share_source=_LIKE_M4,
    ),
)  # fmt: skip
MOBILE_2023 = LinkClass(name="mobile", downlink_bytes_per_s=97e6 / 8, uplink_bytes_per_s=9e6 / 8, latency_s=0.031)
FIXED_2023 = LinkClass(name="fixed", downlink_bytes_per_s=214e6 / 8, uplink_bytes_per_s=24e6 / 8, latency_s=0.013)
LINK_SPREAD = 0.5  # sigma of the lognormal factor on each rate
MOBILE_SHARE = 0.5  # of the phones


def _assumed(source: str) -> Provenance:
    return Provenance(quality=Quality.ASSUMED, source=source, date="2025-12")


_REFERENCE = _assumed("reference server: a many-core CPU with 100 Gbit/s each way")
_CLEAVE = _assumed("defaults of the public code of the Cleave authors (arXiv 2512.22142), drawn uniformly")


def reference_server(name: str = "server-1", *, unlimited: bool = False) -> Server:
    """The reference server: 1 TFLOP/s for all element types, 200 GB/s memory bandwidth, 4 TB, 100 Gbit/s each way.

    ``unlimited`` lifts its links and memory; its arithmetic and memory bandwidth always count.
    """
    limit = float("inf")
    return Server(
        name=name,
        flop_per_s={ANY_DTYPE: 1e12},
        memory_bytes=limit if unlimited else 4e12,
        memory_bandwidth_bytes_per_s=200e9,
        egress_bytes_per_s=limit if unlimited else 100e9 / 8,
        ingress_bytes_per_s=limit if unlimited else 100e9 / 8,
        provenance=dict.fromkeys(("flops", "memory", "memory_bandwidth", "egress", "ingress"), _REFERENCE),
    )


def _draw_cleave(count: int, rng: np.random.Generator) -> list[Device]:
    flops = rng.uniform(5e12, 7e12, count)
    downlink = rng.uniform(10e6, 100e6, count)
    uplink = rng.uniform(5e6, 10e6, count)
    memory = rng.uniform(1e9, 3e9, count)
    marks = dict.fromkeys(("flops", "downlink", "uplink", "latency", "memory"), _CLEAVE)
    return [
        Device(
            name=f"device-{index + 1}", flop_per_s={ANY_DTYPE: f}, downlink_bytes_per_s=d, uplink_bytes_per_s=u,
            latency_s=0.0, memory_bytes=m, provenance=marks,
        )
        for index, (f, d, u, m) in enumerate(zip(*(column.tolist() for column in (flops, downlink, uplink, memory)), strict=True))
    ]  # fmt: skip


def _draw_measured_2023(count: int, rng: np.random.Generator) -> list[Device]:
    kind = rng.choice(len(CLASSES_2023), size=count, p=[group.share for group in CLASSES_2023])
    mobile = (rng.uniform(size=count) < MOBILE_SHARE) & (kind == 0)
    peak = _between([group.peak_flop_per_s for group in CLASSES_2023], kind, rng)
    memory = _between([group.memory_bytes for group in CLASSES_2023], kind, rng)
    downlink_factor = rng.lognormal(0.0, LINK_SPREAD, count)
    uplink_factor = rng.lognormal(0.0, LINK_SPREAD, count)

    flops = peak * np.array([group.sustained for group in CLASSES_2023])[kind]
    links = [MOBILE_2023 if on_air else FIXED_2023 for on_air in mobile.tolist()]
    marks = {(group.name, link.name): _marks_2023(group, link) for group in CLASSES_2023 for link in (MOBILE_2023, FIXED_2023)}
    devices = []
    for index, (place, link) in enumerate(zip(kind.tolist(), links, strict=True)):
        group = CLASSES_2023[place]
        devices.append(Device(
            name=f"{group.name}-{index + 1}",
            flop_per_s={"float32": float(flops[index]), "float16": float(2 * flops[index])},
            downlink_bytes_per_s=link.downlink_bytes_per_s * float(downlink_factor[index]),
            uplink_bytes_per_s=link.uplink_bytes_per_s * float(uplink_factor[index]),
            latency_s=link.latency_s, memory_bytes=float(memory[index]), provenance=marks[group.name, link.name],
        ))  # fmt: skip
    return devices


def _between(ranges: list[tuple[float, float]], kind: NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """One uniform value per device in the range of its class."""
    low, high = np.array(ranges).T
    drawn: Floats = rng.uniform(low[kind], high[kind])
    return drawn


def _marks_2023(group: DeviceClass, link: LinkClass) -> dict[str, Provenance]:
    """Where each figure of a device of this class on this link comes from; what was multiplied by an assumption is assumed."""
    low, high = (peak / 1e12 for peak in group.peak_flop_per_s)
    median = f"Ookla US {link.name} median Q3 2023 by tvtechnology.com"
    spread = f"{median}, times a lognormal(0, {LINK_SPREAD}) factor"
    return {
        "flops.float32": _assumed(
            f"FP32 peaks {low:g}-{high:g} TFLOP/s {group.peak_source}, times {group.sustained:g} {group.share_source}"
        ),
        "flops.float16": _assumed("twice float32, as the exo community table lists"),
        "downlink": _assumed(spread),
        "uplink": _assumed(spread),
        "latency": Provenance(quality=Quality.MEASURED, source=median, date="2023-09"),
        "memory": _assumed(f"what a {group.name} may set apart, drawn uniformly"),
    }


PRESETS: Mapping[str, Preset] = MappingProxyType({
    "cleave": Preset(
        summary="the setting of the Cleave authors: 5-7 TFLOP/s, 10-100 MB/s down, 5-10 MB/s up, optimistic for phones of today",
        draw=_draw_cleave,
    ),
    "measured-2023": Preset(
        summary="phones, laptops, desktops and boards by public figures of 2023, shares and spread assumed",
        draw=_draw_measured_2023,
    ),
})  # fmt: skip


def generate_fleet(
    devices: int,
    *,
    preset: str = "cleave",
    seed: int = 42,
    stragglers: float = 0.0,
    servers: int = 1,
    unlimited_servers: bool = False,
) -> Fleet:
    """A fleet of ``devices`` drawn from ``preset`` around ``servers`` reference servers; the same arguments, the same fleet.

    ``stragglers`` is the share of devices (rounded to whole devices) that are ten times slower in FLOP/s, downlink and
    uplink; they are chosen after everything else is drawn, so the others keep their figures. ``unlimited_servers``
    lifts the servers' links and memory. Raises UsageError for arguments that cannot be meant.
    """
    if preset not in PRESETS:
        fault = unknown(f"preset {preset!r}", preset, tuple(PRESETS), "")
        raise UsageError(fault.what, expected=fault.expected, remedy=fault.remedy)
    if not 1 <= devices <= LARGEST_FLEET or not 1 <= servers <= LARGEST_FLEET:
        raise UsageError(f"{devices} devices and {servers} servers", expected=f"1 to {LARGEST_FLEET} of each")
    if not 0 <= stragglers <= 1:
        raise UsageError(f"a share of {stragglers} stragglers", expected="a share from 0 to 1")
    if seed < 0:
        raise UsageError(f"seed {seed}", expected="a whole number of 0 or more")
    rng = np.random.default_rng(seed)
    drawn = PRESETS[preset].draw(devices, rng)
    slow = rng.choice(devices, size=round(stragglers * devices), replace=False) if stragglers else ()
    for index in slow:
        drawn[index] = _slowed(drawn[index])
    name = f"{preset}-{devices}-seed{seed}" + (f"-stragglers{stragglers:g}" if stragglers else "")
    around = [reference_server(f"server-{index + 1}", unlimited=unlimited_servers) for index in range(servers)]
    return make_fleet(name, around, drawn)


def _slowed(device: Device) -> Device:
    mark = _assumed(f"made a straggler: {STRAGGLER_FACTOR:g} x slower than drawn")
    slowed = ("downlink", "uplink", *(figure for figure in device.provenance if figure.startswith("flops")))
    return replace(
        device,
        flop_per_s={dtype: rate / STRAGGLER_FACTOR for dtype, rate in device.flop_per_s.items()},
        downlink_bytes_per_s=device.downlink_bytes_per_s / STRAGGLER_FACTOR,
        uplink_bytes_per_s=device.uplink_bytes_per_s / STRAGGLER_FACTOR,
        provenance=dict(device.provenance) | dict.fromkeys(slowed, mark),
    )
