"""The best that a tiny level can take by trying everything, K cut and GEMMs side by side: shares no code with the planner.

Of each GEMM all partitions of its M x N x K block into a few boxes are listed by filling the first uncovered cell; each box goes
to any device or to the server that holds the weights, several to one if need be; and each server may hold them. What a way
of doing a GEMM asks of devices, links and servers adds up over the GEMMs of the level (planning.md section 1, in plain
numbers); the level takes the largest of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.workload.gemm import Gemm, Role

Box = tuple[int, int, int]


@cache
def partitions(m: int, n: int, k: int, most: int, whole_depth: bool) -> frozenset[tuple[Box, ...]]:
    """Sizes ``((r, c, depth), ...)`` of all partitions of the block into 1..``most`` boxes, each kind once."""
    full, found = (1 << m * n * k) - 1, set()

    def mask(i: int, j: int, d: int, box: Box) -> int:
        cells = ((i + a) * n * k + (j + b) * k + d + e for a in range(box[0]) for b in range(box[1]) for e in range(box[2]))
        return sum(1 << cell for cell in cells)

    def fill(covered: int, boxes: tuple[Box, ...]) -> None:
        if covered == full:
            found.add(tuple(sorted(boxes)))
            return
        if len(boxes) == most:
            return
        free = ~covered & full
        cell = (free & -free).bit_length() - 1
        i, j, d = cell // (n * k), cell // k % n, cell % k
        for box in product(range(1, m - i + 1), range(1, n - j + 1), range(k, k + 1) if whole_depth else range(1, k - d + 1)):
            own = mask(i, j, d, box)
            if not own & covered:
                fill(covered | own, (*boxes, box))

    fill(0, ())
    return frozenset(found)


def ways(gemm: Gemm, fleet: Fleet, *, most: int, inner: bool, server: bool) -> NDArray[np.float64]:
    """A row for each way: seconds of each device, then for each server seconds out, seconds in, seconds of its own."""
    count, found = len(fleet.devices), []
    for home in range(len(fleet.servers)):
        owners = range(count + (1 if server else 0))
        for boxes in partitions(gemm.shape.m, gemm.shape.n, gemm.shape.k, most, not inner):
            for chosen in product(owners, repeat=len(boxes)):
                found.append(_load(gemm, fleet, home, boxes, chosen))
    rows = np.unique(np.array(found), axis=0)
    return rows[np.isfinite(rows).all(axis=1)]


def best(gemms: Sequence[Gemm], fleet: Fleet, *, most: int = 3, inner: bool = True, server: bool = True) -> float:
    """Ideal seconds of the level of ``gemms`` (one or two) at best."""
    first, *others = [ways(gemm, fleet, most=most, inner=inner, server=server) for gemm in gemms]
    if not others:
        return float(first.max(axis=1).min())
    (second,) = others
    return min(float((row + second).max(axis=1).min()) for row in first)


def _load(gemm: Gemm, fleet: Fleet, home: int, boxes: tuple[Box, ...], chosen: tuple[int, ...]) -> list[float]:
    a, b, out, wide = gemm.a.bits / 8, gemm.b.bits / 8, gemm.out_dtype.bits / 8, gemm.a.dtype.accumulator_bits / 8
    devices = [0.0] * len(fleet.devices)
    down = up = partial = own_s = 0.0
    keeper = fleet.servers[home]
    for (r, c, depth), owner in zip(boxes, chosen, strict=True):
        whole = depth == gemm.shape.k
        sent, returned, flop = r * depth * a + c * depth * b, r * c * (out if whole else wide), 2.0 * r * c * depth
        if owner == len(devices):
            own_s += max(flop / keeper.rate(gemm.dtype), (sent + returned) / keeper.memory_bandwidth_bytes_per_s)
            continue
        devices[owner] += _seconds(gemm, fleet.devices[owner], (r, c, depth), sent, returned, flop)
        down, up = down + sent, up + returned
        partial += 0 if whole else r * c
    loads: list[float] = []
    carried = sum(size for operand, size in ((gemm.a, gemm.a_bytes), (gemm.b, gemm.b_bytes)) if operand.role is Role.ACTIVATION)
    for place, one in enumerate(fleet.servers):
        leaves, arrives = (down, up) if place == home else (0.0, 0.0)
        if home != 0:
            leaves += carried if place == 0 else gemm.out_bytes if place == home else 0.0
            arrives += gemm.out_bytes if place == 0 else carried if place == home else 0.0
        loads += _server(
            one, leaves, arrives, (own_s + 12 * partial / one.memory_bandwidth_bytes_per_s) if place == home else 0.0
        )
    return [*devices, *loads]


def best_attention(heads: int, rows: int, length: int, width: int, fleet: Fleet) -> float:
    """Ideal seconds of float32 attention as one piece of work, at best: heads and rows of Q are cut, nothing else.

    Q (rows x width), K and V (length x width) go to whoever computes, rows of the context come back; scores and
    probabilities pass through the memory of a server that computes it itself. One server.
    """
    (keeper,) = fleet.servers
    count, least = len(fleet.devices), math.inf
    for boxes in partitions(rows, heads, 1, 4, True):
        for chosen in product(range(count + 1), repeat=len(boxes)):
            devices, down, up, own_s = [0.0] * count, 0.0, 0.0, 0.0
            for (r, items, _), owner in zip(boxes, chosen, strict=True):
                sent = 4.0 * items * (r * width + 2 * length * width)
                returned, flop = 4.0 * items * r * width, 2.0 * items * r * length * 2 * width
                if owner == count:
                    moved = sent + returned + 4.0 * items * r * 2 * length
                    own_s += max(flop / keeper.rate(DType.FLOAT32), moved / keeper.memory_bandwidth_bytes_per_s)
                    continue
                one = fleet.devices[owner]
                devices[owner] += one.latency_s + max(
                    sent / one.downlink_bytes_per_s, flop / one.rate(DType.FLOAT32), returned / one.uplink_bytes_per_s
                )
                down, up = down + sent, up + returned
            least = min(least, max(*devices, down / keeper.egress_bytes_per_s, up / keeper.ingress_bytes_per_s, own_s))
    return least


def _server(server: Server, leaves: float, arrives: float, own_s: float) -> list[float]:
    return [leaves / server.egress_bytes_per_s, arrives / server.ingress_bytes_per_s, own_s]


def _seconds(gemm: Gemm, device: Device, box: Box, sent: float, returned: float, flop: float) -> float:
    r, c, depth = box
    a, b, wide = gemm.a.bits / 8, gemm.b.bits / 8, gemm.a.dtype.accumulator_bits / 8
    if depth * (a + b) > 0.1 * device.memory_bytes or min(r * depth * a, c * depth * b, r * c * wide) > 0.9 * device.memory_bytes:
        return math.inf
    longest = max(sent / device.downlink_bytes_per_s, flop / device.rate(gemm.dtype), returned / device.uplink_bytes_per_s)
    return device.latency_s + longest
