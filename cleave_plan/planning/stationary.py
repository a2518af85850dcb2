r"""Tilings of C[M,N] = A[M,K] B[K,N] whose devices hold their pieces of B already: B stays, A and C travel.

A device with depth k and columns c of B in memory, that does m rows, takes (ideal cost, a, out, acc bytes per element)

    l + max( m*k*a/d,  2*m*k*c/F,  m*c*out/u )          out is acc where k < K

so, unlike in a tiling that sends B, depth and columns are bounded one by one: by a time T,

    k <= t*d/(m*a) ,   c <= t*u/(m*acc) ,   k*c <= min( t*F/(2m), h/b )          t = T - l,  h bytes of B may stay

The K x N plane is therefore covered by *columns* of whole depth (devices that can take in all of m*K in time) and by
*strips*: devices one below the other along K, all with the strip's columns, which are as many as its slowest uplink allows.
Devices are sorted by that number, so a strip is as wide as its last member allows, and is closed as soon as its depths add
up to K. Columns and strips side by side cover N. All sizes are floors of what the formulas allow, so a T that covers is one
that integers reach; T is bisected.

The rows can be shared by g groups of devices, each with all of B and M/g rows (m above): that multiplies the memory for B by
g and divides what a device takes in and sends back. The server may take columns at the end, in all its rows, of which it
computes as many as it can by T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.fleet.device import Server
from cleave_plan.planning.boxes import Boxes, table
from cleave_plan.workload.gemm import Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_HALVINGS = 28
"""Steps of the bisection over T: to 4e-9 of the first guess's range."""

_WORTH = 1e-3
"""More groups of rows are kept only when they are faster by this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stationary:
    """One GEMM (one batch item) whose B stays: the figures of ``devices``, and ``room``: bytes of B that may stay on each.

    ``server`` may take columns too (None: it may not); ``inner``: K may be cut.
    """

    gemm: Gemm
    devices: DeviceColumns
    room: Floats
    server: Server | None = None
    inner: bool = True

    def boxes(self) -> Boxes | None:
        """Boxes (device, rows, columns, depth, item) of the fastest tiling found; None when the memory holds no whole B.

        Boxes of device number ``len(devices)`` are the server's own.
        """
        best: Boxes | None = None
        best_s = np.inf
        for groups in self._group_counts():
            found_s = self._least_time(groups, best_s * (1 - _WORTH))
            if found_s is None:
                break  # more groups need more memory, and were no faster
            best_s, best = found_s, self._boxes_at(groups, found_s)
        return best

    def _group_counts(self) -> Iterator[int]:
        groups = 1
        while groups <= self.gemm.shape.m:
            yield groups
            groups *= 2

    def _least_time(self, groups: int, below_s: float) -> float | None:
        """The least T at which ``groups`` groups cover, None when it is not under ``below_s``."""
        high = below_s
        if np.isinf(high):
            high = 1e-6
            while self._units(groups, high) is None:
                high *= 4
                if high > 1e12:
                    return None
        elif self._units(groups, high) is None:
            return None
        low = 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._units(groups, middle) is not None else (middle, high)
            if high - low < 1e-7 * high:
                break
        return high

    def _server_columns(self, T: float) -> int:
        """Columns, in all rows, that the server computes by T."""
        if self.server is None:
            return 0
        _, m, k, n = self.gemm.shape
        bandwidth = self.server.memory_bandwidth_bytes_per_s
        column = (k * self.gemm.b.bits + m * self.gemm.out_dtype.bits) / 8
        by_memory = (T * bandwidth - m * k * self.gemm.a.bits / 8) / column
        by_rate = T * self.server.rate(self.gemm.dtype) / (2.0 * m * k)
        return int(np.clip(min(by_memory, by_rate), 0, n))

    def _units(self, groups: int, T: float) -> list[list[_Unit]] | None:
        """For each group of rows, columns and strips that cover N; None when that is not possible by T."""
        columns = self.gemm.shape.n - self._server_columns(T)
        if columns <= 0:
            return [[] for _ in range(groups)]
        units = self._offered(-(-self.gemm.shape.m // groups), T, columns)
        width = np.array([unit.width for unit in units], dtype=np.int64)
        if int(width.sum()) < groups * columns:
            return None
        answer, start = [], 0
        for _ in range(groups):
            covered = np.cumsum(width[start:])
            stop = start + int(np.searchsorted(covered, columns)) + 1
            if stop > start + len(covered):
                return None
            mine = list(units[start:stop])
            mine[-1] = mine[-1].narrowed(columns - (int(covered[stop - start - 2]) if stop - start > 1 else 0))
            answer.append(mine)
            start = stop
        return answer

    def _offered(self, m: int, T: float, columns: int) -> list[_Unit]:
        """Columns and strips that devices can do for m rows by T, wide ones first."""
        _, _, k, _ = self.gemm.shape
        gemm, own = self.gemm, self.devices
        t = np.maximum(T - own.latency, 0.0)
        tile_flop = np.full(len(own), 2.0 * m * k * max(columns // max(len(own), 1), 1))
        depth = _floor(t * own.downlink / (m * gemm.a.bits / 8), k)
        area = _floor(np.minimum(t * own.rate(tile_flop) / (2.0 * m), self.room / (gemm.b.bits / 8)), k * columns)
        whole_width = np.minimum(_floor(t * own.uplink / (m * gemm.out_dtype.bits / 8), columns), area // k)
        whole = (depth >= k) & (whole_width > 0)
        alone = np.flatnonzero(whole)
        alone = alone[np.argsort(-whole_width[alone], kind="stable")]
        units = [_Unit(width=int(whole_width[d]), devices=(d,), depths=(k,)) for d in alone.tolist()]
        if not self.inner:
            return units
        width = _floor(t * own.uplink / (m * gemm.a.dtype.accumulator_bits / 8), columns)
        rest = np.flatnonzero(~whole & (width > 0) & (depth > 0) & (area > 0))
        order = rest[np.argsort(-width[rest], kind="stable")]
        strips = _strips(order, depth[order], width[order], area[order], k)
        return sorted([*strips, *units], key=lambda unit: -unit.width)

    def _boxes_at(self, groups: int, T: float) -> Boxes:
        """The boxes of all groups at a T that covers."""
        _, m, k, n = self.gemm.shape
        columns = n - self._server_columns(T)
        edges = [m * group // groups for group in range(groups + 1)]
        found: list[tuple[int, ...]] = []
        for group, units in enumerate(self._units(groups, T) or []):
            column = 0
            for unit in units:
                level = 0
                for device, depth in zip(unit.devices, unit.depths, strict=True):
                    stop = column + unit.width
                    found.append((device, edges[group], edges[group + 1], column, stop, level, level + depth, 0, 1))
                    level += depth
                column += unit.width
        if columns < n:
            found.append((len(self.devices), 0, m, max(columns, 0), n, 0, k, 0, 1))
        return table(found, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """``width`` columns of whole depth, which ``devices`` share by ``depths``."""

    width: int
    devices: tuple[int, ...]
    depths: tuple[int, ...]

    def narrowed(self, width: int) -> _Unit:
        return _Unit(width=width, devices=self.devices, depths=self.depths)


def _strips(order: Ints, depth: Ints, width: Ints, area: Ints, k: int) -> list[_Unit]:
    """Strips over devices ``order``, whose columns are sorted by falling ``width``."""
    found: list[_Unit] = []
    start, guess = 0, 1
    while start < len(order):
        count = _enough(depth[start:], width[start:], area[start:], k, guess)
        if count is None:
            break
        mine = slice(start, start + count)
        wide = int(width[start + count - 1])
        depths = np.minimum(depth[mine], area[mine] // wide)
        used = np.minimum(np.cumsum(depths), k)
        depths = np.diff(used, prepend=0)
        some = depths > 0
        found.append(_Unit(width=wide, devices=tuple(order[mine][some].tolist()), depths=tuple(depths[some].tolist())))
        start, guess = start + count, count
    return found


def _enough(depth: Ints, width: Ints, area: Ints, k: int, guess: int) -> int | None:
    """The least number of leading devices whose depths, at the width that the last of them allows, add up to k."""

    def covers(count: int) -> bool:
        return int(np.minimum(depth[:count], area[:count] // width[count - 1]).sum()) >= k

    low, high = 0, min(max(guess, 1), len(depth))
    while not covers(high):
        if high == len(depth):
            return None
        low, high = high, min(2 * high, len(depth))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


def _floor(amount: Floats, most: int) -> Ints:
    """Whole parts, capped, of amounts that may be infinite; a hair is forgiven so that an exact fit is one."""
    return np.floor(np.minimum(amount * (1 + 1e-12), float(most))).astype(np.int64)


def fair_rooms(room: Floats, sizes: Sequence[float]) -> list[Floats]:
    """The memory of each device shared by operands of ``sizes`` bytes in proportion to these."""
    total = sum(sizes)
    return [room * (size / total) if total > 0 else 0.0 * room for size in sizes]
