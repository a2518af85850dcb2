"""What a plan promised beside what was measured: seconds of each level, and of each device in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cleave_plan.execution.pacing import Phase
from cleave_plan.execution.prices import FleetPrices
from cleave_plan.execution.tally import LevelTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDevice:
    """A device in a level: seconds as predicted and until its last result was there, and the phases that the plan gives it."""

    predicted_s: float
    measured_s: float
    work: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLevel:
    """A level in which devices had tiles: its number, its GEMMs, and seconds of the fleet as predicted and as measured.

    ``crowded``: its devices can together fill a server's link, so that each may wait for others. ``dtypes``: element types of its
    GEMMs.
    """

    index: int
    gemms: tuple[str, ...]
    predicted_s: float
    measured_s: float
    crowded: bool
    dtypes: tuple[str, ...]
    devices: Mapping[str, ComparedDevice]

    @property
    def error(self) -> float:
        """How much longer than predicted it took, as a share of the prediction (negative: it was faster)."""
        return self.measured_s / self.predicted_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run beside its plan; ``scale``: seconds here for one of the fleet's, where devices were emulated.

    ``figures``: those of each device that the prediction is made of, by name and in SI.
    """

    levels: tuple[ComparedLevel, ...]
    emulated: bool
    figures: Mapping[str, Mapping[str, float]]
    scale: float = 1.0

    @property
    def median_error(self) -> float:
        """The median of the levels' errors without their signs; 0 where there is no level to compare."""
        return median(abs(level.error) for level in self.levels) if self.levels else 0.0

    @property
    def predicted_s(self) -> float:
        """Sum over the levels."""
        return sum(level.predicted_s for level in self.levels)

    @property
    def measured_s(self) -> float:
        """Sum over the levels."""
        return sum(level.measured_s for level in self.levels)


def compare(prices: FleetPrices, timings: Sequence[LevelTiming], scale: float | None = None) -> Comparison:
    """Put the timings of a batch beside what was predicted; levels that the servers do alone are left out.

    ``scale`` is that of an emulation, None where the devices were real.
    """
    slowed = scale or 1.0
    levels = []
    for index, (promise, timing) in enumerate(zip(prices.predicted(), timings, strict=True)):
        if not promise.device_s:
            continue
        devices = {
            name: ComparedDevice(
                predicted_s=promise.device_s.get(name, 0.0), measured_s=timing.device_s.get(name, 0.0) / slowed,
                work=promise.work.get(name, ()),
            )
            for name in {**promise.device_s, **timing.device_s}
        }  # fmt: skip
        levels.append(
            ComparedLevel(
                index=index, gemms=promise.gemms, predicted_s=promise.seconds, measured_s=timing.seconds / slowed,
                crowded=promise.crowded, dtypes=promise.dtypes, devices=devices,
            )
        )  # fmt: skip
    return Comparison(levels=tuple(levels), emulated=scale is not None, figures=prices.figures(), scale=slowed)
