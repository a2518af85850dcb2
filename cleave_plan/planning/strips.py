r"""Tilings by strips: the plane M x N in strips of whole width, each strip cut into rows for a group of devices.

Partitioning a rectangle into rectangles of given areas with least perimeter is solved well by strips (column-based
partitions: Beaumont et al. 2001; Nagamochi & Abe 2007). Here areas are not given: at a trial time T device i covers
h_i(w, T) rows of a strip of width w (:mod:`cleave_plan.planning.heights`). Devices are sorted by what they can cover; a
strip takes consecutive ones. The widest strip that devices j..k-1 fill is

    W(j, k) = max{ w : sum_{j<=i<k} h_i(w, T) >= M }

and the widest cover by the first k devices is V(k) = max_j V(j) + W(j, k), a dynamic programme; T is feasible when
V(k) >= N for some k. W is read off prefix sums of h over a grid of widths, so one trial costs a few whole-array
operations; the groups of the least feasible T are then made exact in integers (:mod:`cleave_plan.planning.rounding`).

All functions plan one batch item; orientation is the caller's (transpose the terms for strips along the other side).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.heights import heights
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_GRAIN = 10
"""Places in a usual strip where another may begin."""

GRID = 64
"""Widths at which the prefix sums are kept; between them a width is interpolated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Strips as groups of devices: ``devices`` (indices) in strip order, ``starts`` where each strip begins.

    ``seconds`` is the trial time at which they cover the item (before rounding)."""

    devices: Ints
    starts: Ints
    widths: Floats
    seconds: float


def group_into_strips(
    terms: Terms, devices: DeviceColumns, order: Ints, floor_s: float, *, precision: float = 2e-3
) -> Groups | None:
    """Groups of the least T (within ``precision``) at which strips of ``order``'s devices cover the item.

    ``floor_s``: a time known to be infeasible or just feasible (the lower bound). None when no T below 1e6 times the
    floor works.
    """
    own = devices.take(order)
    low, high, best = floor_s, floor_s * 1.02, None
    while best is None:
        if high > 1e6 * floor_s:
            return None
        best = _cover(terms, own, high)
        if best is None:
            low, high = high, high + 2 * (high - floor_s)
    while high - low > precision * high:
        middle = (low + high) / 2
        found = _cover(terms, own, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    starts, widths = best
    first, last = int(starts[0]), int(starts[-1])  # leading devices that fill no strip are left out
    return Groups(devices=order[first:last], starts=starts[:-1] - first, widths=widths, seconds=high)


def _cover(terms: Terms, devices: DeviceColumns, T: float) -> tuple[Ints, Floats] | None:
    """Strip boundaries (with the end) and widths that cover N at time T, or None."""
    count = len(devices)
    grid = _width_grid(terms, count)
    height = heights(terms, devices, T, grid[:, None])
    prefix = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(height, axis=1)], axis=1)
    longest = _longest_group(prefix, terms.rows, count)
    usual = usual_group((terms.rows * terms.row_bytes, terms.columns * terms.col_bytes), count)
    edges, reach, came = widest_cover(prefix, grid, terms.rows, longest, usual)
    enough = np.flatnonzero(reach >= terms.columns)
    if len(enough) == 0:
        return None
    bounds, widths = _trace(reach, came, int(enough[0]))
    return edges[bounds], widths


def usual_group(shape: tuple[float, float], count: int) -> float:
    """Devices in a strip when ``count`` of them share a plane in squares; ``shape``: its length along strips and across."""
    along, across = shape
    return float(np.clip(np.sqrt(count * along / max(across, 1e-300)), 1, count))


def widest_cover(prefix: Floats, grid: Floats, rows: int, longest: int, usual: float) -> tuple[Ints, Floats, Ints]:
    """The dynamic programme over strips of at most ``longest`` devices: places where strips may begin or end, the widest cover
    by the devices before each, and the (index of the) place where its last strip begins.

    ``prefix[w, k]``: rows that the first k devices fill at the width ``grid[w]``. Devices next to each other are alike and a
    strip's width makes up for one more or less of them, so in large fleets strips end at every few devices only
    (``_GRAIN`` times in a ``usual`` strip).
    """
    count = prefix.shape[1] - 1
    parts = max(1, round(count / max(1, int(usual / _GRAIN))))
    edges = np.linspace(0, count, parts + 1).round().astype(np.int64)
    longest = min(parts, -(-longest * parts // count))
    width = group_widths(prefix[:, edges], grid, rows, longest)
    reach, came = np.zeros(parts + 1), np.zeros(parts + 1, dtype=np.int64)
    sizes = np.arange(1, longest + 1)
    for stop in range(1, parts + 1):
        span = min(stop, longest)
        starts = stop - sizes[:span]
        total = reach[starts] + width[starts, sizes[:span] - 1]
        pick = int(total.argmax())
        reach[stop], came[stop] = total[pick], starts[pick]
    return edges, reach, came


def _trace(reach: Floats, came: Ints, stop: int) -> tuple[Ints, Floats]:
    """Walk the dynamic programme back from ``stop``."""
    bounds = [stop]
    while bounds[-1] > 0:
        bounds.append(int(came[bounds[-1]]))
    edges = np.array(bounds[::-1], dtype=np.int64)
    widths = np.diff(reach[edges])
    kept = widths > 0  # a run of devices that fill no strip can only come first: later ones would join the strip before
    return np.append(edges[:-1][kept], stop), widths[kept]


def _width_grid(terms: Terms, count: int) -> Floats:
    """Geometric widths from a twentieth of an even share up to the whole side."""
    thinnest = max(terms.columns / (20.0 * count), 1e-3)
    return np.geomspace(thinnest, terms.columns, GRID)


def _longest_group(prefix: Floats, rows: int, count: int) -> int:
    """Group sizes worth trying: twice what fills a strip of median width, at least 8."""
    usual = max(float(prefix[GRID // 2, -1]) / count, 1e-12)
    return int(min(count, max(8, 2 * np.ceil(rows / usual), 2 * np.ceil(np.sqrt(count)))))


def group_widths(prefix: Floats, grid: Floats, rows: int, longest: int) -> Floats:
    """``W[j, n-1]``: the widest strip of devices j..j+n-1; 0 where they do not fill even the thinnest.

    For each start and size the first grid width whose rows fall short is found by bisection, and the width between it
    and the one before by a straight line.
    """
    places, count = len(grid), prefix.shape[1] - 1
    flat = np.ascontiguousarray(prefix.T).ravel()  # place of (device, width): device * places + width
    start = np.arange(count, dtype=np.int32)[:, None]
    stop = np.minimum(start + np.arange(1, longest + 1, dtype=np.int32), np.int32(count))
    begin, end = start * np.int32(places), stop * np.int32(places)
    low, step = np.zeros(stop.shape, dtype=np.int32), places
    while step > 1:  # low counts the widths known to be filled; places is a power of two
        step //= 2
        probe = low + np.int32(step - 1)
        filled = flat.take(end + probe) - flat.take(begin + probe) >= rows
        low += filled * np.int32(step)
    low += flat.take(end + low) - flat.take(begin + low) >= rows
    inner = np.clip(low, 1, places - 1)
    above = flat.take(end + inner - 1) - flat.take(begin + inner - 1)
    below = flat.take(end + inner) - flat.take(begin + inner)
    part = np.clip((above - rows) / np.maximum(above - below, 1e-300), 0.0, 1.0)
    width = grid[inner - 1] + part * (grid[inner] - grid[inner - 1])
    width[low == 0] = 0.0
    width[low == places] = grid[-1]
    width[start + np.arange(1, longest + 1) > count] = 0.0
    return np.asarray(width)
