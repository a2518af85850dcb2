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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import server_rate
from cleave_plan.fleet.device import Server
from cleave_plan.planning.ability import Ability, ability_of
from cleave_plan.planning.bands import HUGE
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.level import shares_at
from cleave_plan.planning.levelprogram import Shared
from cleave_plan.planning.option import Option, Part
from cleave_plan.planning.search import Search, by_ability
from cleave_plan.planning.slab import slab_of
from cleave_plan.planning.terms import Terms, eligible, only, terms_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ROUNDS, _FEWER = 4, 2
"""Times that the groups are formed; in huge fleets the second."""

_EVEN = 5e-3
"""Groups end together when their times differ by less than this share."""


def joint_options(
    parts: Sequence[Part], columns: Sequence[DeviceColumns], links: Links, server: Server | None, bound_s: float, *, inner: bool
) -> list[Option]:
    """One option for each part, over disjoint groups of devices; empty when no such grouping was found.

    ``columns[g]`` are the devices' figures for part g's element type, ``bound_s`` is the level's lower bound.
    """
    terms = [terms_of(part.gemm, part.copies) for part in parts]
    rates = [0.0 if server is None else server_rate(part.gemm, server) for part in parts]
    shown = [only(one, eligible(own, one)) for own, one in zip(terms, columns, strict=True)]
    abilities = [ability_of(own, one, inner=inner) for own, one in zip(terms, shown, strict=True)]
    level = _Level(parts=parts, terms=terms, columns=shown, links=links, server=server, inner=inner)
    stretch = np.ones(len(parts))
    usual = [0.0] * len(parts)
    sums_s = 0.0  # of the server's time, what adding partial sums takes
    best: list[Option] = []
    for _ in range(_ROUNDS if len(columns[0]) < HUGE else _FEWER):
        left = max(0.0, 1 - sums_s / bound_s)
        shares = shares_at(abilities, links, [rate * left for rate in rates], bound_s, stretch)
        made = level.tiled(shares, abilities, bound_s, left, usual)
        if made is None:
            break
        if not best or together(made, links) < together(best, links):
            best = made
        times = np.array([max(float(option.device_s.max()), option.server_s - option.sums_s) for option in made])
        sums_s = sum(option.sums_s for option in made)
        server_s = sum(option.server_s for option in made)
        if max(float(times.max() - times.min()), server_s - float(times.max())) < _EVEN * times.max():
            break  # what the links take then, other groups would not spare
        stretch *= times / times.mean()
    return best


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Level:
    """The parts of one level and what they share."""

    parts: Sequence[Part]
    terms: Sequence[Terms]
    columns: Sequence[DeviceColumns]
    links: Links
    server: Server | None
    inner: bool

    def tiled(
        self, shares: Shared, abilities: Sequence[Ability], bound_s: float, left: float, usual: list[float]
    ) -> list[Option] | None:
        """Each part over the devices that it has most of; None when a part has none or no tiling. ``left``: the share of the
        server's time that is not taken by partial sums.

        ``usual[g]``: the share of its group that the servers' links could feed in the round before (0: not known), updated
        here.
        """
        weight = _link_weights(abilities, shares, bound_s)
        made = []
        for g, own in enumerate(self.terms):
            mine = np.flatnonzero((shares.owner == g) & eligible(own, self.columns[g]))
            server_s = float(shares.server[g]) * bound_s * left
            search = None if len(mine) == 0 else self._search(g, mine, float(weight[g]), server_s, usual[g])
            if search is None or not search.options:
                return None
            usual[g] = search.usual / len(mine)
            made.append(min(search.options, key=lambda option, links=search.links: option.seconds(links)))  # type: ignore[misc]
        return made

    def _search(self, g: int, mine: Ints, weight: float, server_s: float, usual: float) -> Search:
        """A finished search over the group ``mine``, with ``weight`` of the links and ``server_s`` of the server's time."""
        part, own, devices = self.parts[g], self.terms[g], self.columns[g]
        links = Links(
            egress=self.links.egress * weight,
            ingress=self.links.ingress * weight,
            flop_per_s=0.0,
            sums_per_s=self.links.sums_per_s * weight,
        )
        slab = None if self.server is None else slab_of(own, server_s * self.server.rate(part.gemm.dtype) / own.flop)
        left = own if slab is None else slab.rest
        search = Search(
            part=part, terms=left, devices=devices, links=links, order=by_ability(left, devices, mine, links), slab=slab,
            server=self.server, usual=round(usual * len(mine)), inner=self.inner,
        )  # fmt: skip
        search.run()
        return search


def _link_weights(abilities: Sequence[Ability], shares: Shared, bound_s: float) -> Floats:
    """The share of the servers' links that each part may plan with: its share of the operand bytes at the bound."""
    needed = np.array([
        float((ability.amount(bound_s) / np.maximum(ability.efficiency(bound_s), 1e-300))[shares.owner == g].sum())
        for g, ability in enumerate(abilities)
    ])  # fmt: skip
    return np.maximum(needed / max(float(needed.sum()), 1e-300), 1e-6)


def together(options: Sequence[Option], links: Links) -> float:
    """Ideal seconds of a level in which all these options run."""
    device_s = np.sum([option.device_s for option in options], axis=0)
    down, up = sum(option.down_bytes for option in options), sum(option.up_bytes for option in options)
    return max(float(device_s.max()), down / links.egress, up / links.ingress, sum(option.server_s for option in options))
