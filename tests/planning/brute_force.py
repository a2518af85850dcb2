"""The best that one GEMM can take, by trying everything: an oracle that shares no code with the planner.

All partitions of the M x N grid into at most one rectangle per device are listed by filling the first uncovered cell
with every rectangle that fits; only the sizes of the rectangles matter for time. Every injection of rectangles into
devices is priced, so every subset of devices is tried too. Seconds are those of planning.md section 1, written out
again for one tile at a time in plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, permutations

from cleave_plan.fleet.device import Device, Fleet, Server
from cleave_plan.workload.gemm import Gemm

Sizes = tuple[tuple[int, int], ...]


@cache
def partitions(rows: int, columns: int, most: int) -> frozenset[Sizes]:
    """Sizes ``((r, c), ...)`` of all partitions of the grid into 1..``most`` rectangles, each kind once."""
    full = (1 << rows * columns) - 1
    row_bits = [[((1 << wide) - 1) << (row * columns) for wide in range(columns + 1)] for row in range(rows)]
    found: set[Sizes] = set()

    def fill(covered: int, sizes: Sizes) -> None:
        if covered == full:
            found.add(tuple(sorted(sizes)))
            return
        if len(sizes) == most:
            return
        first = (~covered & full).bit_length() and (~covered & full) & -(~covered & full)
        row, column = divmod(first.bit_length() - 1, columns)
        for wide in range(1, columns - column + 1):
            mask = 0
            for tall in range(1, rows - row + 1):
                mask |= row_bits[row + tall - 1][wide] << column
                if mask & covered:
                    break
                fill(covered | mask, (*sizes, (tall, wide)))

    fill(0, ())
    return frozenset(found)


def fraction(device: Device, flop: float) -> float:
    """Share of the FLOP/s figure that a tile of ``flop`` FLOP reaches: straight lines over log(flop)."""
    points = device.efficiency
    if not points or flop >= points[-1].flop:
        return points[-1].fraction if points else 1.0
    if flop <= points[0].flop:
        return points[0].fraction
    for low, high in pairwise(points):
        if flop <= high.flop:
            part = (math.log(flop) - math.log(low.flop)) / (math.log(high.flop) - math.log(low.flop))
            return low.fraction + part * (high.fraction - low.fraction)
    raise AssertionError("unreachable")


def tile_seconds(gemm: Gemm, device: Device, r: int, c: int) -> float:
    """Ideal seconds of one tile of whole depth; infinite where the device may not take it."""
    k, a, b, out = gemm.shape.k, gemm.a.dtype.bits / 8, gemm.b.dtype.bits / 8, gemm.out_dtype.bits / 8
    if k * (a + b) > 0.1 * device.memory_bytes:
        return math.inf
    if min(r * k * a, c * k * b, r * c * gemm.a.dtype.accumulator_bits / 8) > 0.9 * device.memory_bytes:
        return math.inf
    flop = 2 * r * c * k
    return device.latency_s + max(
        (r * k * a + c * k * b) / device.downlink_bytes_per_s,
        flop / (device.rate(gemm.dtype) * fraction(device, flop)),
        r * c * out / device.uplink_bytes_per_s,
    )


def server_seconds(gemm: Gemm, server: Server) -> float:
    """Seconds of the whole GEMM on the server."""
    shape = gemm.shape
    sizes = (
        (shape.m * shape.k, gemm.a.dtype.bits), (shape.k * shape.n, gemm.b.dtype.bits), (shape.m * shape.n, gemm.out_dtype.bits)
    )  # fmt: skip
    moved = sum(math.ceil(shape.batch * elements * bits / 8) for elements, bits in sizes)
    return max(
        2 * shape.batch * shape.m * shape.n * shape.k / server.rate(gemm.dtype), moved / server.memory_bandwidth_bytes_per_s
    )


def tilings(gemm: Gemm, fleet: Fleet) -> Iterator[tuple[float, float]]:
    """``(slowest device's seconds, bytes out of the server)`` of every tiling with at most one rectangle per device."""
    shape, devices = gemm.shape, fleet.devices
    priced = cache(lambda place, r, c: tile_seconds(gemm, devices[place], r, c))
    for sizes in partitions(shape.m, shape.n, len(devices)):
        down = sum(r * shape.k * gemm.a.dtype.bits / 8 + c * shape.k * gemm.b.dtype.bits / 8 for r, c in sizes)
        for chosen in permutations(range(len(devices)), len(sizes)):
            yield max(priced(place, r, c) for place, (r, c) in zip(chosen, sizes, strict=True)), down


def best_seconds(gemm: Gemm, fleet: Fleet, *, server_allowed: bool = True) -> float:
    """Ideal seconds of the best of all tilings and, where allowed, the one server; infinite when nothing fits."""
    (server,) = fleet.servers
    up = gemm.shape.m * gemm.shape.n * gemm.out_dtype.bits / 8 / server.ingress_bytes_per_s
    best = server_seconds(gemm, server) if server_allowed else math.inf
    for device_s, down in tilings(gemm, fleet):
        best = min(best, max(device_s, down / server.egress_bytes_per_s, up))
    return best
