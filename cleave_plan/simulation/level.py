"""A level with every transfer at its planned rate: when each phase of each device starts and ends.

Each transfer goes at the rate that the plan gives it, whatever the others do; servers' links bind by their total. A
phase takes ``wait + max(down/d, flop, up/u)``, a device's phases follow one another, and the level ends with its last device,
its servers' own work, or the last byte over a server's link. Without jitter that is the cost model's executed time.
(:mod:`cleave_plan.simulation.fluid` has the links shared instead.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.fleet.device import Server
from cleave_plan.simulation.variation import Factors
from cleave_plan.simulation.work import LevelWork, Links

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelRun:
    """When phases started and stopped (columns over phases, seconds from the level's start), when each device that takes part
    was done, when the servers' links and own work were (``servers_s``), and how long the level took, with what it waited for
    last: "device", "egress", "ingress" or "server"."""

    start_s: Floats
    stop_s: Floats
    done_s: Floats
    servers_s: float
    seconds: float
    binds: str

    @classmethod
    def of(cls, start: Floats, stop: Floats, done: Floats, server_ends: Mapping[str, float]) -> LevelRun:
        """A run whose servers' resources were done at ``server_ends``, by name."""
        ends = {"device": float(done.max(initial=0)), **server_ends}
        binds = max(ends, key=ends.__getitem__)
        return cls(start_s=start, stop_s=stop, done_s=done, servers_s=max(server_ends.values()), seconds=ends[binds], binds=binds)


def paced(work: LevelWork, links: Links, servers: tuple[Server, ...], factors: Factors | None = None) -> LevelRun:
    """The level with every transfer at its planned rate."""
    flop, down, up = work.flop_s, work.down_bytes / links.downlink[work.device], work.up_bytes / links.uplink[work.device]
    if factors is not None:
        flop, down, up = flop * factors.flop, down * factors.down, up * factors.up
    length = work.wait_s + np.maximum(np.maximum(down, flop), up)
    stop, done = _in_a_row(length, work.starts)
    egress = work.load.egress / np.array([server.egress_bytes_per_s for server in servers])
    ingress = work.load.ingress / np.array([server.ingress_bytes_per_s for server in servers])
    ends = {"egress": float(egress.max()), "ingress": float(ingress.max()), "server": float(work.load.server_s.max())}
    return LevelRun.of(stop - length, stop, done, ends)


def _in_a_row(length: Floats, starts: Ints) -> tuple[Floats, Floats]:
    """When each phase stops, and when each device is done, where each device's phases follow one another."""
    if not len(starts):
        return length.copy(), np.empty(0)
    bounds = [*starts.tolist(), len(length)]
    counts = np.diff(bounds)
    widest = int(counts.max())
    table = np.zeros((len(starts), widest))
    row, place = np.repeat(np.arange(len(starts)), counts), np.arange(len(length)) - np.repeat(starts, counts)
    table[row, place] = length
    table = np.cumsum(table, axis=1)
    return table[row, place], table[:, -1].copy()
