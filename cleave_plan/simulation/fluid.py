"""A level whose transfers share the servers' links max-min fairly at every moment.

It can take longer than paced: devices that all fill up at its start wait for one another, and a link that is full early may
be idle late. Activations that servers pass to one another are transfers of their own, from the level's start.

Rates are worked out anew when a transfer starts or ends, but not before ``resolution`` of the paced time has passed; a phase
whose turn comes in between is given the rates of the next moment from the time that it should have started at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.sharing import fair_rates
from cleave_plan.fleet.device import Server
from cleave_plan.simulation.level import LevelRun, paced
from cleave_plan.simulation.variation import Factors
from cleave_plan.simulation.work import LevelWork, Links

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESOLUTION = 1e-3
"""Share of a level's paced time for which rates are kept at the least."""

_NOTHING = 1e-12
"""Seconds, as a share of the paced time, that count as none (rounding)."""


def shared(
    work: LevelWork,
    links: Links,
    servers: tuple[Server, ...],
    factors: Factors | None = None,
    resolution: float = RESOLUTION,
) -> LevelRun:
    """The level with its transfers sharing the servers' links; ``resolution`` 0 takes every event by itself."""
    alone = paced(work, links, servers, factors)
    if not crowded(work, links, servers):
        return alone
    flow = _Flow(work, links, servers, factors, alone.seconds)
    while flow.busy():
        flow.advance(resolution * alone.seconds)
    rows, count = len(work.starts), len(work.device)
    ends = {"server": float(work.load.server_s.max())}
    for place, name in enumerate(flow.move_names):
        ends[name] = max(ends.get(name, 0.0), float(flow.done[rows + place]))
    return LevelRun.of(flow.start[:count], flow.stop[:count], flow.done[:rows], ends)


def crowded(work: LevelWork, links: Links, servers: tuple[Server, ...]) -> bool:
    """Whether the devices of a level, or servers that pass activations on, could fill a server's link at some moment."""
    if len(servers) > 1:
        return True
    devices = work.active
    return bool(
        links.downlink[devices].sum() > servers[0].egress_bytes_per_s
        or links.uplink[devices].sum() > servers[0].ingress_bytes_per_s
    )


class _Flow:
    """What is left of each row's present phase. Rows are the devices that take part, and then the servers' own transfers."""

    def __init__(
        self, work: LevelWork, links: Links, servers: tuple[Server, ...], factors: Factors | None, scale_s: float
    ) -> None:
        self._egress = np.array([server.egress_bytes_per_s for server in servers])
        self._ingress = np.array([server.ingress_bytes_per_s for server in servers])
        count, rows = len(work.device), len(work.starts)
        self.move_names, moved_down, moved_up, routes = _moves(work, self._egress, self._ingress)
        more = len(self.move_names)
        ones = np.ones(count)
        given = factors or Factors(flop=ones, down=ones, up=ones)
        self._wait = np.concatenate([work.wait_s, np.zeros(more)])
        self._down = np.concatenate([work.down_bytes * given.down, moved_down])
        self._flop = np.concatenate([work.flop_s * given.flop, np.zeros(more)])
        self._up = np.concatenate([work.up_bytes * given.up, moved_up])
        self._share = np.concatenate([work.routes[work.route], routes])
        self._phase = np.concatenate([work.starts, count + np.arange(more)])
        self._last = np.concatenate([work.starts[1:], [count] if rows else [], count + 1 + np.arange(more)]).astype(np.int64)
        self._down_cap = np.concatenate([links.downlink[work.active], np.full(more, np.inf)])
        self._up_cap = np.concatenate([links.uplink[work.active], np.full(more, np.inf)])
        self._nothing = _NOTHING * scale_s
        self._now, self._late = 0.0, np.zeros(rows + more)
        self.start, self.stop = np.zeros(count + more), np.zeros(count + more)
        self.done = np.zeros(rows + more)
        self._left = np.stack([column[self._phase] for column in (self._wait, self._down, self._flop, self._up)])

    def busy(self) -> bool:
        """Whether any row has something left to do."""
        return bool((self._phase < self._last).any())

    def advance(self, least_s: float) -> None:
        """Let time pass until something starts or ends, and for ``least_s`` at the least."""
        rows = np.flatnonzero(self._phase < self._last)
        left, late, share = self._left[:, rows], self._late[rows], self._share[self._phase[rows]]
        working = left[0] <= 0
        speed = np.ones_like(left)
        speed[1] = _rates(working & (left[1] > 0), self._down_cap[rows], share, self._egress)
        speed[3] = _rates(working & (left[3] > 0), self._up_cap[rows], share, self._ingress)
        speed[1:, ~working] = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = np.where(left > 0, left / speed, 0)
        needs[1:, ~working] = 0
        needs_s = np.where(working, needs.max(axis=0), needs[0])
        events = np.where(needs > 0, needs - late, np.inf)
        step_s = max(float(events.min(initial=np.inf)), least_s, 0.0)
        spent = step_s + late
        ended = needs_s <= spent + self._nothing
        self._left[:, rows] = np.where(needs <= spent + self._nothing, 0, left - speed * np.where(speed > 0, spent, 0))
        self._left[1:, rows[~working]] = left[1:, ~working]
        self._late[rows] = np.where(ended, np.maximum(spent - needs_s, 0), 0)
        self._now += step_s
        self._end_phases(rows[ended & working])
        self._left[0, rows[ended & ~working]] = 0

    def _end_phases(self, rows: Ints) -> None:
        """The present phase of ``rows`` has ended; the next one starts when it did."""
        at = self._now - self._late[rows]
        self.stop[self._phase[rows]] = self.done[rows] = at
        self._phase[rows] += 1
        on = self._phase[rows] < self._last[rows]
        rows, at = rows[on], at[on]
        place = self._phase[rows]
        self.start[place] = at
        self._left[:, rows] = [column[place] for column in (self._wait, self._down, self._flop, self._up)]


def _rates(moving: NDArray[np.bool_], caps: Floats, share: Floats, capacity: Floats) -> Floats:
    rates = np.zeros(len(caps))
    rates[moving] = fair_rates(caps[moving], share[moving], capacity)
    return rates


def _moves(work: LevelWork, egress: Floats, ingress: Floats) -> tuple[list[str], Floats, Floats, Floats]:
    """Transfers between servers: their names, bytes out, bytes in, and routes. Those over unlimited links take no time."""
    names, down, up, routes = [], [], [], []
    share = work.routes[work.route]
    for name, total, own, capacity in (
        ("egress", work.load.egress, work.down_bytes @ share, egress),
        ("ingress", work.load.ingress, work.up_bytes @ share, ingress),
    ):
        for server in np.flatnonzero((total - own > 1e-9 * total) & np.isfinite(capacity)).tolist():
            names.append(name)
            down.append(total[server] - own[server] if name == "egress" else 0.0)
            up.append(total[server] - own[server] if name == "ingress" else 0.0)
            routes.append(np.eye(len(egress))[server])
    return names, np.array(down), np.array(up), np.array(routes).reshape(len(names), len(egress))
