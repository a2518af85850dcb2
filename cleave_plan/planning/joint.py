r"""Level-joint options: independent GEMMs of one level share the fleet by groups of devices.

With downlink-bound tiles a device does one large piece of one GEMM in less time than a small piece of each: G equal GEMMs
take sqrt(G) times one of them, not G times. The bound's own program (:mod:`cleave_plan.planning.level`) says how: at its
least T a basic solution gives almost every device wholly to one GEMM. Each device goes to the GEMM that has most of it,
each GEMM is tiled over its group (with the server's share v_g of its arithmetic as a slab), and the sizes in the program
are stretched by what each GEMM's tiling needed over the common time until the groups end together.

The result is one further option for each part; the integer program takes them together where that is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import server_rate
from cleave_plan.fleet.device import Server
from cleave_plan.planning.bounds import Links, capacity
from cleave_plan.planning.level import Shares, level_bound, shares_at
from cleave_plan.planning.option import Option, Part
from cleave_plan.planning.search import Search, by_ability
from cleave_plan.planning.slab import slab_of
from cleave_plan.planning.terms import Terms, eligible, terms_of

Floats = NDArray[np.float64]

_ROUNDS = 4
"""Times that the groups are formed again."""

_EVEN = 5e-3
"""Groups end together when their times differ by less than this share."""


def joint_options(parts: Sequence[Part], columns: Sequence[DeviceColumns], links: Links, server: Server | None) -> list[Option]:
    """One option for each part, over disjoint groups of devices; empty when no such grouping was found.

    ``columns[g]`` are the devices' figures for part g's element type.
    """
    terms = [terms_of(part.gemm, part.copies) for part in parts]
    rates = [0.0 if server is None else server_rate(part.gemm, server) for part in parts]
    shown = [_only_eligible(own, one) for own, one in zip(terms, columns, strict=True)]
    abilities = [capacity(own, one) for own, one in zip(terms, shown, strict=True)]
    bound_s = level_bound(terms, shown, links, rates)
    stretch = np.ones(len(parts))
    usual = [0.0] * len(parts)
    best: list[Option] = []
    for _ in range(_ROUNDS):
        shares = shares_at(terms, abilities, links, rates, bound_s, stretch)
        made = _tiled(parts, terms, shown, links, server, shares, bound_s, usual)
        if made is None:
            break
        if not best or _together(made, links) < _together(best, links):
            best = made
        times = np.array([max(float(option.device_s.max()), option.server_s) for option in made])
        if times.max() - times.min() < _EVEN * times.max():
            break
        stretch *= times / times.mean()
    return best


def _tiled(
    parts: Sequence[Part], terms: Sequence[Terms], columns: Sequence[DeviceColumns], links: Links, server: Server | None,
    shares: Shares, bound_s: float, usual: list[float],
) -> list[Option] | None:  # fmt: skip
    """Each part over the devices that it has most of; None when a part has none or no tiling.

    ``usual[g]``: the share of its group that the servers' links could feed in the round before (0: not known), updated here.
    """
    owner = shares.devices.argmax(axis=0)
    idle = shares.devices.max(axis=0) <= 1e-9
    weight = _link_weights(terms, columns, shares, bound_s)
    made = []
    for g, (part, own, devices) in enumerate(zip(parts, terms, columns, strict=True)):
        mine = np.flatnonzero((owner == g) & ~idle & eligible(own, devices))
        part_links = Links(egress=links.egress * float(weight[g]), ingress=links.ingress * float(weight[g]), flop_per_s=0.0)
        slab = None
        if server is not None:
            slab = slab_of(own, float(shares.server[g]) * server_rate(part.gemm, server) * bound_s / own.flop)
        left = own if slab is None else slab.rest
        if len(mine) == 0:
            return None
        order = by_ability(left, devices, mine, part_links)
        search = Search(
            part=part, terms=left, devices=devices, links=part_links, order=order, slab=slab, server=server,
            usual=round(usual[g] * len(mine)),
        )  # fmt: skip
        search.run()
        usual[g] = search.usual / len(mine)
        if not search.options:
            return None
        made.append(min(search.options, key=lambda option: option.seconds(part_links)))
    return made


def _link_weights(terms: Sequence[Terms], columns: Sequence[DeviceColumns], shares: Shares, bound_s: float) -> Floats:
    """The share of the servers' links that each part may plan with: its share of the operand bytes at the bound."""
    needed = np.array([
        float((shares.devices[g] * capacity(own, devices).operand(bound_s)).sum())
        for g, (own, devices) in enumerate(zip(terms, columns, strict=True))
    ])  # fmt: skip
    return np.maximum(needed / max(float(needed.sum()), 1e-300), 1e-6)


def _together(options: Sequence[Option], links: Links) -> float:
    """Ideal seconds of a level in which all these options run."""
    device_s = np.sum([option.device_s for option in options], axis=0)
    down, up = sum(option.down_bytes for option in options), sum(option.up_bytes for option in options)
    return max(float(device_s.max()), down / links.egress, up / links.ingress, sum(option.server_s for option in options))


def _only_eligible(terms: Terms, devices: DeviceColumns) -> DeviceColumns:
    """Devices that cannot take part get a latency that keeps them out of every bound and tiling."""
    return replace(devices, latency=np.where(eligible(terms, devices), devices.latency, np.inf))
