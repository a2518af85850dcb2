r"""Figures of machines and links from what runs took: where a prediction was wrong, the figure that made it is corrected.

A run's record has, for every level and device, the phases that the plan gave it and the seconds that it took. With factors x
on what the run's figures say (1: as they say), a device's time in a level is

    t(x) = sum over its phases of  x_latency * wait + max(x_downlink * down/d, x_flops * flop/F, x_uplink * up/u)

A level speaks of a figure when more than half of t comes from it (waiting, or phases in which it is the largest); the factor
that it implies makes t what was measured, all else as it is. Each factor becomes the median of those implied, in turn, until
they stand; quartiles are the spread. A figure that fewer than three levels speak of stays. Devices of one machine or on one
link are taken together. Levels in which devices may have waited for one another at a server's link are left out.
Units: seconds; figures in SI as everywhere.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from cleave_plan.errors import InputFileError, UsageError
from cleave_plan.fleet.catalogue import CatalogueEntry
from cleave_plan.fleet.device import Provenance, Quality, Spread
from cleave_plan.fleet.figures import FLOPS, OVERHEAD, Figure
from cleave_plan.ordering import natural
from cleave_plan.profiles.records import Profile
from cleave_plan.profiles.runrecord import RunRecord

FEWEST = 3
"""Levels that must speak of a figure before it is changed."""

_PASSES = 20

Floats = NDArray[np.float64]
Key = tuple[str, str]
"""A profile's name and a figure's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A figure of a profile: what the runs were predicted with, and what they show; ``levels`` spoke of it (each device's)."""

    profile: str
    figure: str
    before: float
    after: float
    lower: float
    upper: float
    levels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What runs say: ``changes``, and the figures that too few levels spoke of.

    ``error_before`` and ``error_after``: the median over levels and devices of the share by which the time was mispredicted.
    """

    changes: tuple[Change, ...]
    silent: tuple[Key, ...]
    error_before: float
    error_after: float
    observations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observation:
    """A device in a level: seconds, and in rows over its phases the seconds of latency, download, arithmetic and upload that
    the figures ``keys`` (in this order) give them."""

    measured_s: float
    keys: tuple[Key, Key, Key, Key]
    phases: Floats

    def time(self, factors: Mapping[Key, float]) -> float:
        """Seconds under ``factors``."""
        scaled = self._scaled(factors)
        return float(scaled[:, 0].sum() + scaled[:, 1:].max(axis=1).sum())

    def implied(self, key: Key, factors: Mapping[Key, float]) -> float | None:
        """The factor of ``key`` that explains the measured time; None when the level does not speak of it."""
        place, scaled = self.keys.index(key), self._scaled(factors)
        largest = scaled[:, 1:].max(axis=1)
        own = scaled[:, 0] if place == 0 else np.where(scaled[:, place] >= largest, scaled[:, place], 0.0)
        own_s, total_s = float(own.sum()), float(scaled[:, 0].sum() + largest.sum())
        if own_s <= total_s / 2:
            return None
        return factors[key] * max(0.0, self.measured_s - (total_s - own_s)) / own_s

    def _scaled(self, factors: Mapping[Key, float]) -> Floats:
        return np.asarray(self.phases * np.array([factors[key] for key in self.keys]))


def calibrate(runs: Sequence[RunRecord], owners: Mapping[str, tuple[str, str]]) -> Calibration:
    """What ``runs`` say about the profiles of their devices; ``owners``: the machine's and the link's profile by device.

    Raises InputFileError for a run whose devices were emulated or that has no comparison, UsageError when no device of the runs
    has an owner.
    """
    used: dict[Key, float] = {}
    observations = [each for run in runs for each in _observations(run, owners, used)]
    if not observations:
        names = sorted({name for run in runs for name in run.figures}, key=natural)
        raise UsageError(
            "the runs have no level that could be compared for these devices", where="--device",
            expected=f"devices of the runs: {', '.join(names) or 'none'}",
        )  # fmt: skip
    factors = {key: 1.0 for each in observations for key in each.keys}
    implied: dict[Key, list[float]] = {}
    for _ in range(_PASSES):
        for key in sorted(factors):
            found = [each.implied(key, factors) for each in observations if key in each.keys]
            implied[key] = [value for value in found if value is not None and (value > 0 or key[1] == "latency")]
            if len(implied[key]) >= FEWEST:
                factors[key] = median(implied[key])
    spoken = {key: values for key, values in implied.items() if len(values) >= FEWEST}
    return Calibration(
        changes=tuple(_change(key, spoken[key], used[key]) for key in sorted(spoken, key=_place)),
        silent=tuple(sorted((key for key in factors if key not in spoken), key=_place)),
        error_before=_median_error(observations, dict.fromkeys(factors, 1.0)),
        error_after=_median_error(observations, factors), observations=len(observations),
    )  # fmt: skip


def _place(key: Key) -> tuple[object, str]:
    """Where a profile's figure stands in a list."""
    return natural(key[0]), key[1]


def _observations(run: RunRecord, owners: Mapping[str, tuple[str, str]], used: dict[Key, float]) -> Iterable[_Observation]:
    """The levels of a run that can be compared; the figures that they were predicted with go to ``used``."""
    if run.emulated:
        raise InputFileError(
            "its devices were emulated at the pace of their figures, so that it says nothing about them", where=run.where,
            expected="a run on the devices themselves", remedy="record one with `cleave-plan run --engine ray --fleet FLEET`",
        )  # fmt: skip
    for level in run.levels:
        if level.crowded or len(level.dtypes) != 1:
            continue
        for name, own in level.devices.items():
            if name not in owners or not own.work or own.measured_s <= 0:
                continue
            machine, link = owners[name]
            figures, flops = run.figures[name], _flops_figure(run.figures[name], level.dtypes[0])
            keys = ((link, "latency"), (link, "downlink"), (machine, flops), (link, "uplink"))
            for key in keys:
                if used.setdefault(key, figures[key[1]]) != figures[key[1]]:
                    raise InputFileError(
                        f"{key[1]} {figures[key[1]]!r} was predicted with, where others have {used[key]!r}",
                        where=f"{run.where}: {name}", expected="one figure for each profile",
                        remedy="calibrate with runs of one fleet at a time",
                    )  # fmt: skip
            rates = np.array([1.0, 1 / figures["downlink"], 1.0, 1 / figures["uplink"]])
            yield _Observation(measured_s=own.measured_s, keys=keys, phases=np.array(own.work) * rates)


def _flops_figure(figures: Mapping[str, float], dtype: str) -> str:
    return f"{FLOPS}.{dtype}" if f"{FLOPS}.{dtype}" in figures else f"{FLOPS}.any"


def _median_error(observations: Iterable[_Observation], factors: Mapping[Key, float]) -> float:
    return median(abs(each.measured_s / each.time(factors) - 1) for each in observations if each.time(factors) > 0)


def _change(key: Key, factors: Sequence[float], used: float) -> Change:
    lower, middle, upper = (float(value) for value in np.percentile(factors, [25, 50, 75]))
    if key[1] == "latency":
        values = used * lower, used * middle, used * upper
    else:  # a rate: twice the time is half of it
        values = used / upper, used / middle, used / max(lower, math.ulp(1.0))
    return Change(
        profile=key[0], figure=key[1], before=used, after=values[1], lower=values[0], upper=values[2], levels=len(factors)
    )  # fmt: skip


def calibrated_profiles(found: Calibration, profiles: Mapping[str, Profile | CatalogueEntry], source: str) -> tuple[Profile, ...]:
    """``profiles`` (by name) with their changed figures; ``source`` says in words which runs showed them.

    Raises UsageError for an entry of the catalogue, whose figures are not ours to change.
    """
    changed: dict[str, Profile] = {}
    for change in found.changes:
        profile = changed.get(change.profile) or profiles[change.profile]
        if not isinstance(profile, Profile):
            raise UsageError(
                f"{change.profile!r} is of the catalogue, which does not change", where="--device",
                expected="profiles of the database", remedy="measure one, or write one and use `cleave-plan profile import`",
            )  # fmt: skip
        figures = dict(profile.figures) | {change.figure: _figure(change, profile, source)}
        changed[change.profile] = replace(profile, figures=figures)
    return tuple(changed.values())


def _figure(change: Change, profile: Profile, source: str) -> Figure:
    """The profile's new figure; a link's latency is kept without the overhead that stands beside it."""
    overhead = profile.figures.get(OVERHEAD) if change.figure == "latency" else None
    apart = 0.0 if overhead is None else overhead.value
    lower, after, upper = (max(0.0, value - apart) for value in (change.lower, change.after, change.upper))
    text = f"calibrated from {change.levels} levels of {source}, which were predicted with {change.before:.6g}"
    mark = Provenance(quality=Quality.MEASURED, source=text, date=datetime.date.today().isoformat())
    return Figure(value=after, provenance=mark, spread=Spread(lower=lower, upper=upper, samples=change.levels))
