"""Stage 1: options for each part of a level, priced by the devices' ideal seconds and the servers' bytes.

A part is a class of identical GEMMs inside one level (``copies`` of them). Its options are tilings over a ladder of
device subsets (the ablest k of n, k falling geometrically), the server itself, and both together. A subset is tried only
while its lower bound, links included, lies under the best option found, so most parts cost one or two tilings.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import server_rate
from cleave_plan.cost.tile import price
from cleave_plan.fleet.device import Server
from cleave_plan.planning.ability import bound_of
from cleave_plan.planning.bands import HUGE
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.boxes import tiles_of_copies
from cleave_plan.planning.exact import tiny
from cleave_plan.planning.option import Option, Part, non_dominated, on_server
from cleave_plan.planning.search import Search, by_ability
from cleave_plan.planning.slab import slab_of
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.planning.tiling import tilings

_CORRECTIONS = 4
"""Sizes of the server's slab that are tried at the most."""

FEW = 64
"""Up to this many devices a part is tiled without the server too; with more only where the server's share is nothing."""

_STRETCH = 1.01
"""What a tiling takes over its bound, until one is known."""

_EVEN = 1e-3
"""Devices and server end together when evening them out would gain less than this share."""


def options_for(
    part: Part, devices: DeviceColumns, links: Links, server: Server | None, *, alone: bool = True, inner: bool = False
) -> list[Option]:
    """Non-dominated options of ``part``; ``server`` may compute too (None: it may not).

    ``alone=False``: the level's parts already share the fleet by groups, servers included; the options found here are what
    is left, each part over the whole fleet in turn, and are searched for briefly.

    Empty when no device can take part and the server may not. Work that is pinned to the server has that one option,
    whether the server may take other work or not.
    """
    if part.gemm.macs == 0 or part.gemm.pinned:
        return [on_server(part, len(devices), server)]
    found = [] if server is None else [on_server(part, len(devices), server)]
    terms = terms_of(part.gemm, part.copies)
    able = np.flatnonzero(eligible(terms, devices))
    if len(able) == 0:
        return found
    search = Search(
        part=part, terms=terms, devices=devices, links=links, order=by_ability(terms, devices, able, links), inner=inner
    )
    shared = alone and server is not None and not tiny(terms, len(able))
    if not shared or len(able) <= FEW:
        search.run(thorough=alone)
    made = _shared_with_server(search, server) if shared and server is not None else []
    if not made and not search.options:
        search.run(thorough=alone)
    return found + made + non_dominated(search.options, links)


def _shared_with_server(alone: Search, server: Server) -> list[Option]:
    """Options in which the server computes a slab and devices the rest, both ending at about the same time.

    The slab is first sized by the lower bound with the server, stretched by what the devices' own tiling needed over
    theirs; then it is corrected by the two times found until they are even. Where adding partial sums leaves the server no time
    the last trial is one without a slab. None where the slab would be too small to matter.
    """
    terms, part = alone.terms, alone.part
    without = replace(alone.links, flop_per_s=0.0)
    alone_s = max(bound_of(terms, alone.devices.take(alone.order), without, inner=alone.inner), 1e-300)
    stretch = alone.best_s / alone_s if alone.options else _STRETCH
    together = Links(egress=alone.links.egress, ingress=alone.links.ingress, flop_per_s=server_rate(part.gemm, server))
    target_s = bound_of(terms, alone.devices.take(alone.order), together, inner=alone.inner) * stretch
    per_second = server_rate(part.gemm, server) / terms.flop
    found: list[Option] = []
    area, before = target_s * per_second, np.inf
    if len(alone.order) >= HUGE and area < _EVEN * terms.items * terms.area:
        return []
    for _ in range(_CORRECTIONS):
        slab = slab_of(terms, area)
        kept = 0.0 if slab is None else slab.area
        if kept == before or (slab is None and not found):
            break
        rest, before = terms if slab is None else slab.rest, kept
        search = replace(alone, terms=rest, slab=slab, server=server, options=[], barred=set(), floors={})
        search.run()
        alone.usual = search.usual
        if not search.options:
            break
        found += non_dominated(search.options, alone.links)
        ends = [_together(option, alone.links, rest.items * rest.area, kept, per_second) for option in search.options]
        together_s, place = min((end, place) for place, end in enumerate(ends))
        best = search.options[place]
        devices_s = max(float(best.device_s.max()), best.links_s(alone.links))
        if max(best.server_s - devices_s, devices_s - together_s) < _EVEN * devices_s:
            break  # time that the server has left would be shared by all
        area = max(together_s - best.sums_s, 0.0) * per_second
    return found


def _together(option: Option, links: Links, rest: float, kept: float, per_second: float) -> float:
    """Seconds in which devices and server would end together, were ``option``'s ``rest`` and the ``kept`` elements of C shared
    out anew; adding partial sums takes the server's time first."""
    pace = rest / max(float(option.device_s.max()), option.links_s(links), 1e-300)
    return max(option.sums_s, (rest + kept + option.sums_s * per_second) / (pace + per_second))


def options_on_one(part: Part, devices: DeviceColumns, device: int) -> float | None:
    """Executed seconds of the part on one device alone; None when its memory holds no tiling of it."""
    best: float | None = None
    for boxes in tilings(terms_of(part.gemm, part.copies), devices, np.array([device], dtype=np.int64)):
        copies = tiles_of_copies(boxes, part.gemm.shape.batch, part.copies)
        seconds = sum(float(price(part.gemm, tiles, devices).executed_s.sum()) for tiles in copies)
        if np.isfinite(seconds) and (best is None or seconds < best):
            best = seconds
    return best
