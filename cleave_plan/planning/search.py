"""The search for a part's tilings: which devices, and tilings of those that spare what binds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.fleet.device import Server
from cleave_plan.planning.ability import cuts_depth
from cleave_plan.planning.bars import bar_tilings
from cleave_plan.planning.bounds import FREE, Links, capacity, gemm_bound
from cleave_plan.planning.boxes import Boxes, boxes_of_items, table
from cleave_plan.planning.exact import front, tiny
from cleave_plan.planning.groups import abilities
from cleave_plan.planning.option import Option, Part, option_of
from cleave_plan.planning.roots import latest_short
from cleave_plan.planning.slab import Slab
from cleave_plan.planning.sums import TOLERANCE, footprints
from cleave_plan.planning.terms import Terms
from cleave_plan.planning.tiling import tilings
from cleave_plan.planning.volume import volume_bound
from cleave_plan.workload.gemm import Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LADDER = 1.5
"""Ratio between the sizes of the device subsets that are tried."""

CLOSE = 150
"""The crossing of device time and link time is searched to one part in this, of the times or of the subset's size."""

CROSSING, STEEPEST = 0.8, 4.0
"""The power with which the size follows the ratio of the two times (tiles' sides fall with the root of the number of devices,
areas with it), before trials tell, and the largest that is believed; its inverse is the least."""

FRUGAL = 1.015
"""Operand bytes allowed, over the least, where the servers' egress binds."""

FAR, NEAR = 1.25, 1.08
"""Ratios around the expected crossing that are searched: of the bound's estimate, and of one found for nearly the same GEMM."""

_FED = 1.02
"""Inner splits are tried over fewer devices where links take more than this ratio of the devices' time."""

_WORTH_BARS = 1e-2
"""Inner splits are tried when their bound is at least this share below the best option (their search costs more)."""

_PROMISE = 0.97
"""Inner splits are tried first when their bound is under this share of that of whole depth."""

_WORTH = 1e-3
"""A subset is tried when its bound is at least this share below the best option."""


@dataclass(kw_only=True)
class Search:
    """The ladder over subset sizes: more devices are faster, but take more bytes out of the servers."""

    part: Part
    terms: Terms
    devices: DeviceColumns
    links: Links
    order: Ints
    usual: int = 0
    slab: Slab | None = None
    server: Server | None = None
    inner: bool = False
    options: list[Option] = field(default_factory=list)
    barred: set[int] = field(default_factory=set)
    floors: dict[tuple[int, float, float, bool], float] = field(default_factory=dict)

    @property
    def best_s(self) -> float:
        """Seconds of the best option so far."""
        return min((option.seconds(self.links) for option in self.options), default=np.inf)

    def run(self, *, thorough: bool = True) -> None:
        """Where the devices bind, sizes from all of them down; where the links do, close in on the crossing first.

        Not ``thorough``: only the size that the bound suggests. Tiny cases need no crossing: the exact tilings over all
        devices leave devices out where that is best.
        """
        most, frugal = len(self.order), None if tiny(self.terms, len(self.order)) else self.frugal()
        if self.bars_first():
            self.close_in_bars(most)
        if frugal is not None and self.floor(len(self.order), self.links) < self.best_s * (1 - _WORTH):
            most = self.usual or self.affordable()
            if thorough:
                self.close_in(most, NEAR if self.usual else FAR, frugal)
            else:
                self.attempt(most, frugal, np.inf)
        for count in _ladder(most)[: None if thorough else 1]:
            if self.floor(count, self.links) >= self.best_s * (1 - _WORTH):
                break  # smaller subsets have larger bounds
            self.attempt(count, self.devices, self.floor(count, self.links))
        for count in sorted({most, len(self.order)}) if cuts_depth(self.terms, self.inner) else ():
            if count not in self.barred:
                self.close_in_bars(count)

    def bars_first(self) -> bool:
        """Whether inner splits promise so much that tilings without are tried only where their bound is below what bars reach."""
        if not cuts_depth(self.terms, self.inner) or tiny(self.terms, len(self.order)):
            return False
        most = len(self.order)
        return self.floor(most, self.links, cut=True) < _PROMISE * self.floor(most, self.links)

    def close_in(self, near: int, margin: float, frugal: DeviceColumns) -> None:
        """Search for the size at which device time and link time cross, within a ratio of ``margin`` of ``near``."""
        low, high = max(1, int(near / margin)), min(len(self.order), int(near * margin) + 1)
        self.usual = _crossing(lambda count: self.attempt(count, frugal, np.inf), min(near, high), low, high)

    def close_in_bars(self, most: int) -> None:
        """Inner splits over the ablest ``most``, and where the links bind then, over fewer."""
        ratio = self.attempt_bars(most)
        if ratio is not None and ratio > _FED:
            _crossing(self.attempt_bars, max(1, min(most - 1, round(most * ratio**-CROSSING))), 1, most)

    def affordable(self) -> int:
        """How many of the ablest devices the servers' egress can feed at the lower bound."""
        bound_s = self.floor(len(self.order), self.links)
        operand = capacity(self.terms, self.devices).operand(bound_s)[self.order]
        return max(1, int(np.searchsorted(np.cumsum(operand), self.links.egress * bound_s)))

    def own_boxes(self) -> Boxes:
        """The server's own boxes."""
        return table([] if self.slab is None else [(len(self.devices), *self.slab.box)], 9)

    def floor(self, count: int, links: Links, *, cut: bool = False) -> float:
        """Lower bound of the part over the ablest ``count`` without the servers' arithmetic; ``cut``: where K may be cut."""
        key = (count, links.egress, links.ingress, cut)
        if key not in self.floors:
            alone = Links(egress=links.egress, ingress=links.ingress, flop_per_s=0.0)
            bound = volume_bound if cut else gemm_bound
            self.floors[key] = bound(self.terms, self.devices.take(self.order[:count]), alone)
        return self.floors[key]

    def frugal(self) -> DeviceColumns | None:
        """Where the servers' egress binds, the devices with downlinks cut to what a frugal tile needs.

        A device that its uplink limits has downlink to spare, and a tiling made for the devices alone spends it on thin
        tiles; cut to a little over the least operand bytes of its area at the bound, it is given nearly square ones.
        """
        free_s, bound_s = self.floor(len(self.order), FREE), self.floor(len(self.order), self.links)
        if bound_s <= free_s * (1 + _WORTH):
            return None
        least = capacity(self.terms, self.devices).operand(bound_s)
        needed = FRUGAL * least / np.maximum(bound_s - self.devices.latency, 1e-12)
        return replace(self.devices, downlink=np.clip(needed, 1e-9, self.devices.downlink))

    def attempt_bars(self, count: int) -> float | None:
        """Tile over the ablest ``count`` with inner splits, where their bound promises enough; as :meth:`attempt`."""
        subset = self.order[:count]
        self.barred.add(count)
        floor_s = self.floor(count, self.links, cut=True)
        if tiny(self.terms, count) or floor_s >= self.best_s * (1 - _WORTH_BARS):
            return None
        if self.options and floor_s >= self.floor(count, self.links) * (1 - _WORTH):
            return None  # the bound would leave K whole
        return self._ratio(self.offer(bar_tilings(self.terms, self.sparing(subset), subset)))

    def sparing(self, subset: Ints) -> DeviceColumns:
        """Where the servers could not add the partial sums of ``subset``'s bars, the devices with uplinks cut to the footprints
        that they should have (:mod:`cleave_plan.planning.sums`)."""
        most = self.links.sums_per_s
        own, size = self.devices.take(subset), float(self.terms.items) * self.terms.area * self.terms.depth
        if not np.isfinite(most):
            return self.devices

        def sums(T: float) -> tuple[Floats, Floats]:
            able = abilities(self.terms, own, T)
            root = able.operand / (2 * able.side)
            return root, footprints(root, able.cut, most * T)

        def done(T: float) -> float:
            root, own_sums = sums(T)
            return float((root * np.sqrt(own_sums)).sum()) / size

        bound_s = self.floor(len(subset), self.links, cut=True)
        if float(abilities(self.terms, own, bound_s).cut.sum()) <= most * bound_s:
            return self.devices
        T = latest_short(done, bound_s, TOLERANCE)
        uplink = self.devices.uplink.copy()
        uplink[subset] = np.minimum(
            uplink[subset], sums(T)[1] * self.terms.accumulator_bytes / np.maximum(T - own.latency, 1e-12)
        )
        return replace(self.devices, uplink=np.maximum(uplink, 1e-9))

    def attempt(self, count: int, shown: DeviceColumns, enough_s: float) -> float | None:
        """Tile over the ablest ``count`` as if they had the figures ``shown``; the best tiling's link time over its device time
        (None without one). ``enough_s``: as for :func:`~cleave_plan.planning.tiling.tilings`."""
        return self._ratio(self.offer(_candidates(self.terms, shown, self.order[:count], self.part.gemm, enough_s)))

    def _ratio(self, made: list[Option]) -> float | None:
        if not made:
            return None
        best = min(made, key=lambda option: option.seconds(self.links))
        return best.links_s(self.links) / max(float(best.device_s.max()), 1e-300)

    def offer(self, tilings: Iterable[Boxes]) -> list[Option]:
        """Price tilings of what is not the server's, and keep those that fit."""
        own = self.own_boxes()
        made = [option_of(self.part, np.concatenate([boxes, own]), self.devices, self.server) for boxes in tilings]
        made = [option for option in made if np.isfinite(option.device_s.max())]
        self.options += made
        return made


def by_ability(terms: Terms, devices: DeviceColumns, able: Ints, links: Links) -> Ints:
    """Devices in falling order of what they cover at the lower bound, positions breaking ties."""
    own = devices.take(able)
    alone = Links(egress=links.egress, ingress=links.ingress, flop_per_s=0.0)
    ability = capacity(terms, own).area(gemm_bound(terms, own, alone))
    order = able[np.argsort(-ability, kind="stable")]
    return np.asarray(order)


def _crossing(attempt: Callable[[int], float | None], count: int, low: int, high: int) -> int:
    """The size between ``low`` and ``high`` at which link time and device time are the same, first guess ``count``.

    ``attempt(n)`` is the ratio of the two for n devices, which grows about as a power of n (``1 / CROSSING``, until two trials
    tell it): each trial says where the next one should be; where that is outside the bracket that the trials before it leave,
    the next halves it. Sizes without an answer are too few.
    """
    tried: dict[int, float] = {}
    power, before = CROSSING, 0
    while high - low > max(1, low // CLOSE) and count not in tried:
        ratio = attempt(count)
        if ratio is not None and abs(ratio - 1) < 1 / CLOSE:
            return count
        tried[count] = ratio = max(ratio or 0.0, 1e-9)
        low, high = (low, count) if ratio > 1 else (count, high)
        if before and (growth := math.log(ratio / tried[before]) / math.log(count / before)) > 0:
            power = min(max(1 / growth, 1 / STEEPEST), STEEPEST)
        guess = round(min(count * ratio**-power, high))
        before, count = count, guess if low < guess < high else (low + high) // 2
    return high


def _ladder(count: int) -> list[int]:
    sizes, size = [], float(count)
    while size >= 1:
        sizes.append(round(size))
        size /= LADDER
    return sorted({*sizes, 1}, reverse=True)


def _candidates(terms: Terms, devices: DeviceColumns, subset: Ints, gemm: Gemm, enough_s: float) -> Iterator[Boxes]:
    yield from tilings(terms, devices, subset, enough_s=enough_s)
    if tiny(terms, len(subset)):
        yield from _exact(terms, devices, subset, gemm)


def _exact(terms: Terms, devices: DeviceColumns, subset: Ints, gemm: Gemm) -> Iterator[Boxes]:
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
    costs_of = dict(
        zip(
            zip(device.tolist(), r.tolist(), c.tolist(), strict=True),
            zip(seconds.tolist(), costs.down_bytes.tolist(), strict=True),
            strict=True,
        )
    )
    for layout in front(terms.rows, terms.columns, list(range(len(subset))), lambda *key: costs_of[key]):
        if np.isfinite(layout.seconds):
            found = table(layout.rectangles(terms.rows, terms.columns), 5)
            found[:, 0] = subset[found[:, 0]]
            yield boxes_of_items(found, terms.depth, 0, 1)
