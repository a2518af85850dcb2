"""A fleet's device figures as columns for one element type, with measured efficiency curves applied.

F(flop) = peak * fraction(flop), where ``fraction`` is interpolated on log(flop) between the measured points and held
constant outside them; a device without a curve runs at its figure whatever the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, EfficiencyPoint

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Curve = tuple[EfficiencyPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceColumns:
    """Columns over devices: FLOP/s, bytes/s, seconds, bytes. ``curve`` indexes ``curves`` (-1: no curve)."""

    flop_per_s: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    curve: Ints
    curves: tuple[Curve, ...]

    def __len__(self) -> int:
        return len(self.flop_per_s)

    def take(self, index: Ints) -> DeviceColumns:
        """The columns of the devices ``index``, in that order, repeats allowed."""
        return DeviceColumns(
            flop_per_s=self.flop_per_s[index], downlink=self.downlink[index], uplink=self.uplink[index],
            latency=self.latency[index], memory=self.memory[index], curve=self.curve[index], curves=self.curves,
        )  # fmt: skip

    def rate(self, flop: Floats) -> Floats:
        """FLOP/s of each device on a tile of ``flop`` FLOP (one entry per device; of a single device any number)."""
        if not self.curves:
            return self.flop_per_s
        fraction, curve = np.ones(len(flop)), np.broadcast_to(self.curve, flop.shape)
        for place, points in enumerate(self.curves):
            mine = curve == place
            log_flop = np.log(np.maximum(flop[mine], 1.0))
            fraction[mine] = np.interp(log_flop, np.log([p.flop for p in points]), [p.fraction for p in points])
        return self.flop_per_s * fraction

    @property
    def best_rate(self) -> Floats:
        """The most FLOP/s that any tile size reaches: what a lower bound may assume."""
        if not self.curves:
            return self.flop_per_s
        best = np.array([1.0] + [max(p.fraction for p in points) for points in self.curves])
        fastest: Floats = self.flop_per_s * best[self.curve + 1]
        return fastest


def device_columns(devices: Sequence[Device], dtype: DType) -> DeviceColumns:
    """Columns of ``devices`` for arithmetic in ``dtype``; raises MissingFigureError when a device has no figure for it."""
    curves: dict[Curve, int] = {}
    places = [curves.setdefault(d.efficiency, len(curves)) if d.efficiency else -1 for d in devices]
    return DeviceColumns(
        flop_per_s=np.array([d.rate(dtype) for d in devices], dtype=float),
        downlink=np.array([d.downlink_bytes_per_s for d in devices], dtype=float),
        uplink=np.array([d.uplink_bytes_per_s for d in devices], dtype=float),
        latency=np.array([d.latency_s for d in devices], dtype=float),
        memory=np.array([d.memory_bytes for d in devices], dtype=float),
        curve=np.array(places, dtype=np.int64), curves=tuple(curves),
    )  # fmt: skip
