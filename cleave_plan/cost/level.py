r"""What a level takes: the loads that its GEMMs put on devices and servers, and the largest of them.

    T_level = max( max_i sum of tile seconds on device i,
                   egress bytes of server s / E_s,   ingress bytes of server s / I_s,
                   seconds of GEMMs computed on server s + 12 bytes * partial sums received / memory bandwidth )

Activations live on the fleet's first server. A GEMM whose weights are on servers j with shares w_j (summing to 1) draws
w_j of its tiles' bytes from each; every j other than the first also receives w_j of the activation operands from the
first and returns w_j of the result. What server s computes itself, a whole GEMM or a tile of one whose weights it holds,
takes max(flop / F_s, (A + B + C bytes) / memory bandwidth); a chain moves scores and probabilities too, and the bytes of
the operators between its products come on top.
Units: seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import Held, TileCosts, Tiles, price, work_of
from cleave_plan.fleet.device import Fleet, Server
from cleave_plan.workload.gemm import Gemm, Role

Floats = NDArray[np.float64]

SUM_BYTES = 12.0
"""Memory traffic of adding one partial sum: two are read, one is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The servers (indices) that hold a GEMM's weights, and each one's share of the traffic."""

    servers: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Columns over devices (``ideal_s``, ``executed_s``) and over servers (bytes out, bytes in, seconds)."""

    ideal_s: Floats
    executed_s: Floats
    egress: Floats
    ingress: Floats
    server_s: Floats

    def __add__(self, other: Load) -> Load:
        return Load(
            ideal_s=self.ideal_s + other.ideal_s, executed_s=self.executed_s + other.executed_s,
            egress=self.egress + other.egress, ingress=self.ingress + other.ingress, server_s=self.server_s + other.server_s,
        )  # fmt: skip

    @classmethod
    def none(cls, devices: int, servers: int) -> Load:
        """No load at all."""
        zero, rest = np.zeros(devices), np.zeros(servers)
        return cls(ideal_s=zero, executed_s=zero, egress=rest, ingress=rest, server_s=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTime:
    """Seconds of a level by both costs, and what binds by the executed one ("device NAME", "egress NAME", ...)."""

    ideal_s: float
    executed_s: float
    binds: str


def tiled_load(
    gemm: Gemm,
    tiles: Tiles,
    placement: Placement,
    devices: DeviceColumns,
    servers: Sequence[Server],
    held: Held | None = None,
) -> Load:
    """The load of one GEMM computed by devices, and by the first server of ``placement`` where a tile is its own.

    ``held``: what the devices hold already (:class:`Held`), one entry per tile.
    """
    on_device = tiles.device < len(devices)
    sent = tiles.select(on_device)
    costs = price(gemm, sent, devices, None if held is None else held.select(on_device))
    load = _moves(gemm, placement, len(devices), len(servers))
    down, up = float(costs.down_bytes.sum()), float(costs.up_bytes.sum())
    for server, share in zip(placement.servers, placement.shares, strict=True):
        load.egress[server] += share * down
        load.ingress[server] += share * up
        load.server_s[server] += share * partial_sum_seconds(gemm, sent, costs, servers[server])
    home = placement.servers[0]
    load.server_s[home] += server_tile_seconds(gemm, tiles.select(~on_device), servers[home])
    load.ideal_s[:] = np.bincount(sent.device, costs.ideal_s, minlength=len(devices))
    load.executed_s[:] = np.bincount(sent.device, costs.executed_s, minlength=len(devices))
    return load


def server_load(gemm: Gemm, placement: Placement, devices: int, servers: Sequence[Server]) -> Load:
    """The load of one GEMM computed on the first server of ``placement``."""
    load = _moves(gemm, placement, devices, len(servers))
    load.server_s[placement.servers[0]] += server_seconds(gemm, servers[placement.servers[0]])
    return load


def server_seconds(gemm: Gemm, server: Server) -> float:
    """Seconds that ``server`` needs for the whole GEMM: arithmetic or memory traffic, whichever is longer."""
    moved = gemm.repeats * (gemm.a_bytes + gemm.b_bytes + gemm.out_bytes)
    between = 0
    if gemm.chain is not None:
        rows = gemm.shape.batch * gemm.shape.m
        moved, between = moved + rows * gemm.chain.scores_bytes, rows * gemm.chain.between_bytes
    bandwidth = server.memory_bandwidth_bytes_per_s
    return max(gemm.flop / server.rate(gemm.dtype), moved / bandwidth) + between / bandwidth


def server_rate(gemm: Gemm, server: Server) -> float:
    """FLOP/s that ``server`` reaches on ``gemm`` or on any tile of it at the most.

    Its rate, but no more than its memory feeds: no tile moves fewer bytes for a FLOP than the whole (of a chain, whose items
    take their K and V along, with the operators in between; a convolution's input is left out: a tile may skip what the whole
    is charged for).
    """
    rate, bandwidth = server.rate(gemm.dtype), server.memory_bandwidth_bytes_per_s
    if gemm.macs == 0:
        return rate
    batch, m, k, n = gemm.shape
    if gemm.chain is None:
        bits = k * n * gemm.b.bits + m * n * gemm.out_dtype.bits + (0 if gemm.window else m * k * gemm.a.bits)
        return min(rate, 2.0 * m * k * n * bandwidth / (bits / 8))
    flop, rows = 2.0 * batch * m * k, batch * m
    moved = gemm.a_bytes + gemm.b_bytes + gemm.out_bytes + rows * gemm.chain.scores_bytes
    return flop / (max(flop / rate, moved / bandwidth) + rows * gemm.chain.between_bytes / bandwidth)


def level_time(load: Load, fleet: Fleet) -> LevelTime:
    """The largest load of a level, by both costs."""
    egress = load.egress / np.array([server.egress_bytes_per_s for server in fleet.servers])
    ingress = load.ingress / np.array([server.ingress_bytes_per_s for server in fleet.servers])
    device = int(load.executed_s.argmax())
    candidates = [(float(load.executed_s[device]), f"device {fleet.devices[device].name}")]
    for place, server in enumerate(fleet.servers):
        candidates += [
            (float(egress[place]), f"egress {server.name}"),
            (float(ingress[place]), f"ingress {server.name}"),
            (float(load.server_s[place]), f"server {server.name}"),
        ]
    executed, binds = max(candidates, key=lambda candidate: candidate[0])
    others = max(seconds for seconds, _ in candidates[1:])
    return LevelTime(ideal_s=max(float(load.ideal_s.max()), others), executed_s=executed, binds=binds)


def server_tile_seconds(gemm: Gemm, tiles: Tiles, server: Server) -> float:
    """Seconds that ``server`` needs for tiles of its own, one after the other."""
    return float(server_seconds_of(gemm, tiles, server).sum())


def server_seconds_of(gemm: Gemm, tiles: Tiles, server: Server) -> Floats:
    """Seconds that ``server`` needs for each of the tiles."""
    work = work_of(gemm, tiles)
    moved, between = work.a_bytes + work.b_bytes + work.up_bytes, np.zeros(len(tiles))
    if gemm.chain is not None:
        rows = (tiles.batch_stop - tiles.batch_start) * (tiles.m_stop - tiles.m_start)
        moved, between = moved + rows * gemm.chain.scores_bytes, 1.0 * rows * gemm.chain.between_bytes
    bandwidth = server.memory_bandwidth_bytes_per_s
    return np.asarray(np.maximum(work.flop / server.rate(gemm.dtype), moved / bandwidth) + between / bandwidth)


def _moves(gemm: Gemm, placement: Placement, devices: int, servers: int) -> Load:
    """Activations carried between the first server and the others that take part."""
    load = Load(
        ideal_s=np.zeros(devices), executed_s=np.zeros(devices), egress=np.zeros(servers), ingress=np.zeros(servers),
        server_s=np.zeros(servers),
    )  # fmt: skip
    inward = sum(
        float(size) for operand, size in ((gemm.a, gemm.a_bytes), (gemm.b, gemm.b_bytes)) if operand.role is Role.ACTIVATION
    )
    for server, share in zip(placement.servers, placement.shares, strict=True):
        if server != 0:
            load.egress[0] += share * inward
            load.ingress[server] += share * inward
            load.egress[server] += share * gemm.out_bytes
            load.ingress[0] += share * gemm.out_bytes
    return load


def partial_sum_seconds(gemm: Gemm, tiles: Tiles, costs: TileCosts, server: Server) -> float:
    """Adding partial sums: 12 bytes of memory traffic for each one received."""
    return float(partial_sum_seconds_of(gemm, tiles, costs, server).sum())


def partial_sum_seconds_of(gemm: Gemm, tiles: Tiles, costs: TileCosts, server: Server) -> Floats:
    """The same for each of the tiles; 0 where K is whole."""
    partial = tiles.k_stop - tiles.k_start < gemm.shape.k
    elements = np.where(partial, costs.up_bytes, 0.0) / (gemm.a.dtype.accumulator_bits / 8)
    return np.asarray(SUM_BYTES * elements / server.memory_bandwidth_bytes_per_s)
