"""Stage 1: options for each part of a level, priced by the devices' ideal seconds and the servers' bytes.

A part is a class of identical GEMMs inside one level (``copies`` of them). Its options are tilings over a ladder of
device subsets (the ablest k of n, k falling geometrically), and the server itself. A subset is tried only while its lower
bound, links included, lies under the best option found, so most parts cost one or two tilings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import server_seconds, server_tile_seconds
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.fleet.device import Server
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.batched import ItemBox
from cleave_plan.planning.bounds import Links, capacity, gemm_bound
from cleave_plan.planning.exact import MAX_DEVICES, MAX_SIDE, front
from cleave_plan.planning.slab import Slab, slab_of
from cleave_plan.planning.terms import Terms, eligible, terms_of
from cleave_plan.planning.tiling import FREE, tiles_of_copies, tilings
from cleave_plan.workload.gemm import Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LADDER = 1.5
"""Ratio between the sizes of the device subsets that are tried."""

CLOSE = 150
"""The crossing of device time and link time is searched to one part in this of the subset's size."""

FRUGAL = 1.015
"""Operand bytes allowed, over the least, where the servers' egress binds."""

FAR, NEAR = 1.25, 1.08
"""Ratios around the expected crossing that are searched: of the bound's estimate, and of one found for nearly the same GEMM."""

KEPT = 12
"""Options that a part keeps at the most."""

_CORRECTIONS = 4
"""Sizes of the server's slab that are tried at the most."""

_EVEN = 3e-3
"""Devices and server end together when their times differ by less than this share."""

_WORTH = 1e-3
"""A subset is tried when its bound is at least this share below the best option."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One way to do a part: tiles for each copy, ideal seconds on each device, bytes out of and into the servers.

    ``server_s``: seconds of what the (first) server computes itself. ``tiles`` are empty when that is everything.
    """

    mode: Mode
    tiles: tuple[Tiles, ...]
    device_s: Floats
    down_bytes: float
    up_bytes: float
    server_s: float = 0.0

    def seconds(self, links: Links) -> float:
        """Ideal seconds of the part alone, when the servers' links are shared by all."""
        return max(float(self.device_s.max()), self.links_s(links), self.server_s)

    def links_s(self, links: Links) -> float:
        """Seconds that the servers' links need for the part's bytes."""
        return max(self.down_bytes / links.egress, self.up_bytes / links.ingress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Identical GEMMs of one level: a sample and how many."""

    gemm: Gemm
    copies: int


def options_for(part: Part, devices: DeviceColumns, links: Links, server: Server | None) -> list[Option]:
    """Non-dominated options of ``part``; ``server`` may compute too (None: it may not).

    Empty when no device can take part and the server may not. Work that is pinned to the server has that one option,
    whether the server may take other work or not.
    """
    if part.gemm.macs == 0 or part.gemm.pinned:
        return [_on_server(part, len(devices), server)]
    found = [] if server is None else [_on_server(part, len(devices), server)]
    terms = terms_of(part.gemm, part.copies)
    able = np.flatnonzero(eligible(terms, devices))
    if len(able) == 0:
        return found
    search = _Search(part=part, terms=terms, devices=devices, links=links, order=_by_ability(terms, devices, able, links))
    search.run()
    tiny = len(able) <= MAX_DEVICES and terms.items == 1 and max(terms.rows, terms.columns) <= MAX_SIDE
    if server is not None and search.options and not tiny:
        found += _shared_with_server(search, server)
    return found + _non_dominated(search.options, links)


def _shared_with_server(alone: _Search, server: Server) -> list[Option]:
    """Options in which the server computes a slab and devices the rest, both ending at about the same time.

    The slab is first sized by the lower bound with the server, stretched by what the devices' own tiling needed over
    theirs; then it is corrected by the difference of the two times found until they are even.
    """
    terms, part = alone.terms, alone.part
    stretch = alone.best_s / max(alone.floor(alone.order, alone.links), 1e-300)
    together = Links(egress=alone.links.egress, ingress=alone.links.ingress, flop_per_s=server.rate(part.gemm.dtype))
    target_s = gemm_bound(terms, alone.devices.take(alone.order), together) * stretch
    per_second = server.rate(part.gemm.dtype) / terms.flop
    found: list[Option] = []
    area = target_s * per_second
    for _ in range(_CORRECTIONS):
        slab = slab_of(terms, area)
        if slab is None:
            break
        search = replace(alone, terms=slab.rest, slab=slab, server=server, options=[])
        search.run()
        if not search.options:
            break
        found += _non_dominated(search.options, alone.links)
        best = min(search.options, key=lambda option: option.seconds(alone.links))
        devices_s = max(float(best.device_s.max()), best.links_s(alone.links))
        if abs(devices_s - best.server_s) < _EVEN * devices_s:
            break
        pace = slab.rest.items * slab.rest.area / devices_s
        area = slab.area + (devices_s - best.server_s) / (1 / per_second + 1 / pace)
    return found


@dataclass(kw_only=True)
class _Search:
    """The ladder over subset sizes: more devices are faster, but take more bytes out of the servers."""

    part: Part
    terms: Terms
    devices: DeviceColumns
    links: Links
    order: Ints
    usual: int = 0
    slab: Slab | None = None
    server: Server | None = None
    options: list[Option] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        """Seconds of the best option so far."""
        return min((option.seconds(self.links) for option in self.options), default=np.inf)

    def run(self) -> None:
        """Where the devices bind, sizes from all of them down; where the links do, close in on the crossing first."""
        most, frugal = len(self.order), self.frugal()
        if frugal is not None:
            most = self.usual or self.affordable()
            margin = NEAR if self.usual else FAR
            low, high = max(1, int(most / margin)), min(len(self.order), int(most * margin) + 1)
            while high - low > max(1, low // CLOSE):
                middle = (low + high) // 2
                low, high = (low, middle) if self.attempt(middle, frugal) else (middle, high)
            self.usual = high
        for count in _ladder(most):
            if self.floor(self.order[:count], self.links) >= self.best_s * (1 - _WORTH):
                break  # smaller subsets have larger bounds
            self.attempt(count, self.devices)

    def affordable(self) -> int:
        """How many of the ablest devices the servers' egress can feed at the lower bound."""
        bound_s = self.floor(self.order, self.links)
        operand = capacity(self.terms, self.devices).operand(bound_s)[self.order]
        return max(1, int(np.searchsorted(np.cumsum(operand), self.links.egress * bound_s)))

    def own_boxes(self) -> list[ItemBox]:
        """The server's own boxes."""
        return [] if self.slab is None else [(len(self.devices), *self.slab.box)]

    def floor(self, subset: Ints, links: Links) -> float:
        """Lower bound of the part over ``subset`` without the servers' arithmetic."""
        alone = Links(egress=links.egress, ingress=links.ingress, flop_per_s=0.0)
        return gemm_bound(self.terms, self.devices.take(subset), alone)

    def frugal(self) -> DeviceColumns | None:
        """Where the servers' egress binds, the devices with downlinks cut to what a frugal tile needs.

        A device that its uplink limits has downlink to spare, and a tiling made for the devices alone spends it on thin
        tiles; cut to a little over the least operand bytes of its area at the bound, it is given nearly square ones.
        """
        free_s, bound_s = self.floor(self.order, FREE), self.floor(self.order, self.links)
        if bound_s <= free_s * (1 + _WORTH):
            return None
        least = capacity(self.terms, self.devices).operand(bound_s)
        needed = FRUGAL * least / np.maximum(bound_s - self.devices.latency, 1e-12)
        return replace(self.devices, downlink=np.clip(needed, 1e-9, self.devices.downlink))

    def attempt(self, count: int, shown: DeviceColumns) -> bool:
        """Tile over the ablest ``count`` as if they had the figures ``shown``; do the links bind?"""
        made = [
            _option(self.part, [*boxes, *self.own_boxes()], self.devices, self.server)
            for boxes in _candidates(self.terms, shown, self.order[:count], self.part.gemm)
        ]
        made = [option for option in made if np.isfinite(option.device_s.max())]
        self.options += made
        if not made:
            return False
        best = min(made, key=lambda option: option.seconds(self.links))
        return best.links_s(self.links) > float(best.device_s.max())


def _by_ability(terms: Terms, devices: DeviceColumns, able: Ints, links: Links) -> Ints:
    """Devices in falling order of what they cover at the lower bound, positions breaking ties."""
    own = devices.take(able)
    alone = Links(egress=links.egress, ingress=links.ingress, flop_per_s=0.0)
    ability = capacity(terms, own).area(gemm_bound(terms, own, alone))
    order = able[np.argsort(-ability, kind="stable")]
    return np.asarray(order)


def _ladder(count: int) -> list[int]:
    sizes, size = [], float(count)
    while size >= 1:
        sizes.append(round(size))
        size /= LADDER
    return sorted({*sizes, 1}, reverse=True)


def _candidates(terms: Terms, devices: DeviceColumns, subset: Ints, gemm: Gemm) -> Iterator[list[ItemBox]]:
    yield from tilings(terms, devices, subset)
    if len(subset) <= MAX_DEVICES and terms.items == 1 and max(terms.rows, terms.columns) <= MAX_SIDE:
        yield from _exact(terms, devices, subset, gemm)


def _exact(terms: Terms, devices: DeviceColumns, subset: Ints, gemm: Gemm) -> Iterator[list[ItemBox]]:
    """The Pareto front of exact tilings (a convolution's rows cost by where they lie: it has none here)."""
    if gemm.window is not None:
        return
    own = devices.take(subset)
    sides = np.arange(1, max(terms.rows, terms.columns) + 1)
    device, r, c = (axis.ravel() for axis in np.meshgrid(np.arange(len(subset)), sides, sides, indexing="ij"))
    zero = np.zeros_like(device)
    tiles = Tiles(
        device=device, m_start=zero, m_stop=r, n_start=zero, n_stop=c, k_start=zero, k_stop=zero + terms.depth,
        batch_start=zero, batch_stop=zero + 1,
    )  # fmt: skip
    costs = price(gemm, tiles, own)
    seconds = np.where(costs.kept == 3, np.inf, costs.ideal_s)
    table = dict(
        zip(
            zip(device.tolist(), r.tolist(), c.tolist(), strict=True),
            zip(seconds.tolist(), costs.down_bytes.tolist(), strict=True),
            strict=True,
        )
    )
    for layout in front(terms.rows, terms.columns, list(range(len(subset))), lambda *key: table[key]):
        if np.isfinite(layout.seconds):
            yield [(int(subset[d]), a, b, e, f, 0, 1) for d, a, b, e, f in layout.rectangles(terms.rows, terms.columns)]


def _option(part: Part, boxes: list[ItemBox], devices: DeviceColumns, server: Server | None = None) -> Option:
    copies = tiles_of_copies(boxes, part.gemm.shape.k, part.gemm.shape.batch, part.copies)
    device_s = np.zeros(len(devices))
    down = up = server_s = 0.0
    for tiles in copies:
        on_device = tiles.device < len(devices)
        sent = tiles.select(on_device)
        costs = price(part.gemm, sent, devices)
        seconds = np.where(costs.kept == 3, np.inf, costs.ideal_s)
        device_s += np.bincount(sent.device, seconds, minlength=len(devices))
        down, up = down + float(costs.down_bytes.sum()), up + float(costs.up_bytes.sum())
        if server is not None:
            server_s += server_tile_seconds(part.gemm, tiles.select(~on_device), server)
    return Option(mode=_mode(part.gemm, copies), tiles=copies, device_s=device_s, down_bytes=down, up_bytes=up, server_s=server_s)


def _mode(gemm: Gemm, copies: tuple[Tiles, ...]) -> Mode:
    """The name of what is cut; whole batch items count as whole rows."""
    cuts_m = any(bool(np.any(t.m_stop - t.m_start < gemm.shape.m)) for t in copies)
    cuts_n = any(bool(np.any(t.n_stop - t.n_start < gemm.shape.n)) for t in copies)
    if cuts_n:
        return Mode.TWO_DIMENSIONAL if cuts_m else Mode.COLUMN
    return Mode.ROW


def _on_server(part: Part, devices: int, server: Server | None) -> Option:
    seconds = 0.0 if server is None else part.copies * server_seconds(part.gemm, server)
    return Option(
        mode=Mode.SERVER, tiles=(Tiles.of([]),) * part.copies, device_s=np.zeros(devices), down_bytes=0.0, up_bytes=0.0,
        server_s=seconds,
    )  # fmt: skip


def _non_dominated(options: list[Option], links: Links) -> list[Option]:
    """Options sorted by their own seconds, without those that a faster one beats in device seconds and bytes out."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.seconds(links), option.down_bytes)):
        beaten = any(other.device_s.max() <= option.device_s.max() and other.down_bytes <= option.down_bytes for other in kept)
        if not beaten:
            kept.append(option)
    return kept[:KEPT]


def options_on_one(part: Part, devices: DeviceColumns, device: int) -> float | None:
    """Executed seconds of the part on one device alone; None when its memory holds no tiling of it."""
    best: float | None = None
    for boxes in tilings(terms_of(part.gemm, part.copies), devices, np.array([device], dtype=np.int64)):
        copies = tiles_of_copies(boxes, part.gemm.shape.k, part.gemm.shape.batch, part.copies)
        seconds = sum(float(price(part.gemm, tiles, devices).executed_s.sum()) for tiles in copies)
        if np.isfinite(seconds) and (best is None or seconds < best):
            best = seconds
    return best
