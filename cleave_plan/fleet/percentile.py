"""A fleet at a percentile of its measurements, for plans that still hold when devices and links have a bad day.

A figure that was measured several times stands in the fleet as the median of its samples, with their quartiles beside it. At
percentile P (50 <= P < 100) it is taken as good as it is in P of 100 samples, or better. Between and beyond quartiles the
samples are taken to follow a normal distribution on the adverse side: of the logarithm for rates (which vary by factors), of
the seconds for latencies (which may be 0). With z the standard normal quantile of P and z_75 that of 75,

    rate(P) = median * (lower / median)^(z / z_75)          latency(P) = median + (upper - median) * z / z_75

so P = 50 is the median, and P = 75 the adverse quartile, whatever the distribution. Each figure is at its own percentile:
that all of them are bad at the same time is rarer than that, so the plan's time is met more often than P of 100 times
where they vary independently. Figures without quartiles stay as they are, and :func:`told` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from cleave_plan.errors import UsageError
from cleave_plan.fleet.device import Device, Fleet
from cleave_plan.fleet.figures import FLOPS
from cleave_plan.fleet.provenance import provenance_of
from cleave_plan.ordering import natural

_NAMED = 8
"""Devices or sources that a sentence names; the others are counted."""

_VARYING = (FLOPS, "downlink", "uplink", "latency")


def at_percentile(fleet: Fleet, percentile: float | None) -> Fleet:
    """``fleet`` with every figure that has quartiles at ``percentile`` (None: as it is); name and hash stay the fleet's.

    Raises UsageError for a percentile below 50 or not below 100.
    """
    if percentile is None:
        return fleet
    if not 50 <= percentile < 100:
        raise UsageError(f"percentile {percentile:g}", expected="at least 50 (the median) and below 100")
    steps = NormalDist().inv_cdf(percentile / 100) / NormalDist().inv_cdf(0.75)
    return replace(fleet, devices=tuple(_device_at(device, steps) if device.spread else device for device in fleet.devices))


def _device_at(device: Device, steps: float) -> Device:
    """``device`` whose figures are ``steps`` times as far from the median as the adverse quartile."""

    def rate(name: str, median: float) -> float:
        return median * (device.spread[name].lower / median) ** steps if name in device.spread else median

    latency = device.latency_s
    if "latency" in device.spread:
        latency += (device.spread["latency"].upper - latency) * steps
    return replace(
        device, flop_per_s={dtype: rate(f"{FLOPS}.{dtype}", value) for dtype, value in device.flop_per_s.items()},
        downlink_bytes_per_s=rate("downlink", device.downlink_bytes_per_s),
        uplink_bytes_per_s=rate("uplink", device.uplink_bytes_per_s), latency_s=latency, spread={},
    )  # fmt: skip


def told(fleet: Fleet, percentile: float) -> list[str]:
    """Sentences for a plan at ``percentile``: which figures vary, by what measurements, and which devices have none."""
    notes = [
        f"planned at percentile {percentile:g}: each figure with quartiles is as good as taken here, or better, in "
        f"{percentile:g} of 100 of its samples (beyond the quartiles by a normal distribution on the adverse side)"
    ]
    for figure in _VARYING:
        known = [(device, name) for device in fleet.devices for name in device.spread if name.partition(".")[0] == figure]
        if known:
            samples = sorted({device.spread[name].samples for device, name in known})
            several = str(samples[0]) if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
            sources = sorted({provenance_of(device, name).source for device, name in known})
            of = _listed(sorted({device.name for device, _ in known}, key=natural), "device")
            notes.append(
                f"{figure} at percentile {percentile:g} for {of}, from {several} samples each: {'; '.join(_few(sources))}"
            )
    for figure in _VARYING:
        fixed = [d.name for d in fleet.devices if not any(name.partition(".")[0] == figure for name in d.spread)]
        if fixed and len(fixed) < len(fleet.devices):
            notes.append(f"no spread of {figure} is known for {_listed(fixed, 'device')}: the figure stands as it is")
    never = [figure for figure in _VARYING if not any(n.partition(".")[0] == figure for d in fleet.devices for n in d.spread)]
    if never:
        notes.append(f"no device has a spread of {', '.join(never)}: these figures stand as they are")
    return notes


def _listed(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({', '.join(_few(names))})"


def _few(names: Sequence[str]) -> list[str]:
    return [*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])]
