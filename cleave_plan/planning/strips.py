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
from cleave_plan.planning.heights import area_rate, heights
from cleave_plan.planning.terms import Terms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_GRAIN = 10
"""Places in a usual strip where another may begin."""

GRID = 64
"""Widths at which the prefix sums are kept; between them a width is interpolated."""

_ALL = 96
"""Up to so many parts of a fleet strips of any number of them are tried."""

_AROUND = np.geomspace(1 / 3, 3, 25)
"""Sizes of strips that are tried beyond, over the size that squares would have."""

LARGE = 1500
"""From so many devices on work that grows with them is done more coarsely."""

_WIDER = 3.0
"""Strips of large fleets are up to so many times wider and narrower than squares."""

_POWER = 0.6
"""About which power of what is covered the time is of."""


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
    low, high, best, trial = floor_s, np.inf, None, floor_s * 1.01
    while high - low > precision * low:
        share, found = _cover(terms, own, trial)
        if found is None:
            low = trial
            if low > 1e6 * floor_s:
                return None
        else:
            high, best = trial, found
            if share < 1 + precision:
                break
        # What is covered grows with a power of time between 1 and 2; a little more or less than that closes the bracket.
        guess = trial * float(np.clip(share, 1e-2, 1e2)) ** -_POWER * (1 + precision / 2)
        trial = guess if low < guess < high else min(2 * low, (low + min(high, 4 * low)) / 2)
    assert best is not None, "the bracket closes on a time that is enough"
    starts, widths = best
    first, last = int(starts[0]), int(starts[-1])  # leading devices that fill no strip are left out
    return Groups(devices=order[first:last], starts=starts[:-1] - first, widths=widths, seconds=high)


def _cover(terms: Terms, devices: DeviceColumns, T: float) -> tuple[float, tuple[Ints, Floats] | None]:
    """The share of N that strips cover at time T, and where it is at least 1 their boundaries (with the end) and widths."""
    sides = Sides(rows=terms.rows, columns=terms.columns, row_bytes=terms.row_bytes, col_bytes=terms.col_bytes)
    t = np.maximum(T - devices.latency, 0.0)
    grid = width_grid(sides, t * devices.downlink, t * area_rate(terms, devices, T))
    height = heights(terms, devices, T, grid[:, None])
    edges, reach, came = widest_cover(height, grid, sides)
    share = float(reach.max()) / terms.columns
    if share < 1:
        return share, None
    bounds = trace(came, int(np.argmax(reach >= terms.columns)))
    widths = np.diff(reach[bounds])
    kept = widths > 0  # a run of devices that fill no strip can only come first: later ones would join the strip before
    return share, (edges[np.append(bounds[:-1][kept], bounds[-1])], widths[kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A plane whose strips are ``rows`` long and lie beside each other over ``columns``; bytes of a row and of a column."""

    rows: int
    columns: int
    row_bytes: float
    col_bytes: float


def widest_cover(height: Floats, grid: Floats, sides: Sides) -> tuple[Ints, Floats, Ints]:
    """The dynamic programme over strips of consecutive devices: places where strips may begin or end, the widest cover by the
    devices before each, and the (index of the) place where its last strip begins.

    ``height[w, i]``: rows of device i at the width ``grid[w]``. Devices next to each other are alike and a strip's width makes
    up for one more or less of them, so in large fleets strips end at every few devices only (``_GRAIN`` times in a usual strip),
    and only strips of about so many devices are tried as fill one of squares.
    """
    count = height.shape[1]
    along, across = sides.rows * sides.row_bytes, sides.columns * sides.col_bytes
    usual = float(np.clip(np.sqrt(count * along / max(across, 1e-300)), 1, count))  # devices in a strip of squares
    parts = max(1, round(count / max(1, int(usual / _GRAIN))))
    edges = np.linspace(0, count, parts + 1).round().astype(np.int64)
    prefix = np.zeros((len(grid), parts + 1))
    np.cumsum(np.add.reduceat(height, edges[:-1], axis=1), axis=1, out=prefix[:, 1:])
    sizes = _sizes(prefix, edges, grid, sides)
    width = group_widths(prefix, grid, sides.rows, sizes)
    reach, came = np.zeros(parts + 1), np.zeros(parts + 1, dtype=np.int64)
    stops = np.minimum(np.arange(parts)[:, None] + sizes, parts)
    for start in range(parts):
        total, ends = reach[start] + width[start], stops[start]
        better = total > reach[ends]
        reach[ends[better]], came[ends[better]] = total[better], start
    return edges, reach, came


def _sizes(prefix: Floats, edges: Ints, grid: Floats, sides: Sides) -> Ints:
    """Numbers of parts that strips from each part on are tried with: all, where there are few; otherwise those around the number
    that fills a strip as wide as the part's own devices want it, square in bytes."""
    parts = prefix.shape[1] - 1
    if parts <= _ALL:
        return np.broadcast_to(np.arange(1, parts + 1), (parts, parts))
    own = np.diff(prefix, axis=1)
    wide = grid[:, None] * sides.col_bytes >= own / np.diff(edges) * sides.row_bytes
    wide[-1] = True
    filled = own[wide.argmax(axis=0), np.arange(parts)]
    usual = np.minimum(sides.rows / np.maximum(filled, sides.rows / parts), parts)
    sizes: Ints = np.maximum(np.rint(usual[:, None] * _AROUND), 1.0).astype(np.int64)
    return sizes


def trace(came: Ints, stop: int) -> Ints:
    """Places where the strips begin that end at ``stop``, and that place itself."""
    bounds = [stop]
    while bounds[-1] > 0:
        bounds.append(int(came[bounds[-1]]))
    return np.array(bounds[::-1], dtype=np.int64)


def width_grid(sides: Sides, operand: Floats, limit: Floats) -> Floats:
    """Widths at which strips are looked at, geometric up to the whole side: from a twentieth of an even share on, in large fleets
    from and up to a few times the widths of the squares of devices with ``operand`` bytes and at most ``limit`` elements."""
    count = len(operand)
    if count < LARGE:
        return np.geomspace(max(sides.columns / (20.0 * count), 1e-3), sides.columns, GRID)
    square = np.minimum(operand / (2 * sides.col_bytes), np.sqrt(limit * sides.row_bytes / sides.col_bytes))
    square = square[square > 0]
    least, most = (float(square.min()), float(square.max())) if len(square) else (1.0, 1.0)
    widest = min(_WIDER * most, float(sides.columns))
    return np.geomspace(max(min(least / _WIDER, widest / 2), 1e-3), widest, GRID // 2)


def group_widths(prefix: Floats, grid: Floats, rows: int, sizes: Ints) -> Floats:
    """``W[j, n]``: the widest strip of parts j..j+sizes[j, n]-1; 0 where they do not fill even the thinnest, or are not there.

    For each start and size the first grid width whose rows fall short is found by bisection, and the width between it
    and the one before by a straight line.
    """
    places, count = len(grid), prefix.shape[1] - 1
    flat = np.ascontiguousarray(prefix.T).ravel()  # place of (device, width): device * places + width
    start = np.arange(count, dtype=np.int32)[:, None]
    stop = np.minimum(start + sizes.astype(np.int32), np.int32(count))
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
    width[start + sizes > count] = 0.0
    return np.asarray(width)
