"""An option: one way to do a part of a level, with what it asks of devices and servers by ideal cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import partial_sum_seconds, server_seconds, server_tile_seconds
from cleave_plan.cost.tile import STREAM_SHARE, Held, Ints, Tiles, price
from cleave_plan.fleet.device import Server
from cleave_plan.plan.plan import Mode
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.boxes import Boxes, tiles_of_copies
from cleave_plan.workload.gemm import Gemm

Floats = NDArray[np.float64]

KEPT = 12
"""Options that a part keeps at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Identical GEMMs of one level: a sample and how many."""

    gemm: Gemm
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One way to do a part: tiles for each copy, ideal seconds on each device, bytes out of and into the servers.

    ``server_s``: seconds of what the server computes itself and, of these, ``sums_s`` of adding partial sums. ``tiles`` are
    empty when the server computes everything. ``homes``: servers (indices) whose arithmetic a slab was sized for; empty when
    any will do. ``work_bytes``: memory that the largest tile on each device needs beside its stream buffers.

    ``held_a``, ``held_b``: what tiles find on their devices, as in :class:`~cleave_plan.plan.plan.Assignment`, a column for each
    copy (empty: nothing), which takes ``kept_bytes`` of each device, and ``brief_bytes`` within its level; ``held``: the same in
    bytes, as the times assume. ``after``: options that must have left there what is found.
    """

    mode: Mode
    tiles: tuple[Tiles, ...]
    device_s: Floats
    down_bytes: float
    up_bytes: float
    work_bytes: Floats
    server_s: float = 0.0
    sums_s: float = 0.0
    homes: tuple[int, ...] = ()
    held_a: tuple[Ints, ...] = ()
    held_b: tuple[Ints, ...] = ()
    kept_bytes: Floats | None = None
    brief_bytes: Floats | None = None
    held: tuple[Held, ...] = ()
    after: tuple[Option, ...] = ()

    def seconds(self, links: Links) -> float:
        """Ideal seconds of the part alone, when the servers' links are shared by all."""
        return max(float(self.device_s.max()), self.links_s(links), self.server_s)

    def links_s(self, links: Links) -> float:
        """Seconds that the servers' links need for the part's bytes."""
        return max(self.down_bytes / links.egress, self.up_bytes / links.ingress)


def option_of(part: Part, boxes: Boxes, devices: DeviceColumns, server: Server | None = None) -> Option:
    """The option that does ``part`` by ``boxes``; boxes of device number ``len(devices)`` are ``server``'s own."""
    return option_from(part, tiles_of_copies(boxes, part.gemm.shape.batch, part.copies), devices, server)


def option_from(part: Part, copies: tuple[Tiles, ...], devices: DeviceColumns, server: Server | None = None) -> Option:
    """The option that does each copy of ``part`` by its tiles; tiles of device number ``len(devices)`` are ``server``'s own."""
    device_s, work = np.zeros(len(devices)), np.zeros(len(devices))
    down = up = server_s = sums_s = 0.0
    for tiles in copies:
        on_device = tiles.device < len(devices)
        sent = tiles.select(on_device)
        costs = price(part.gemm, sent, devices)
        seconds = np.where(costs.kept == 3, np.inf, costs.ideal_s)
        device_s += np.bincount(sent.device, seconds, minlength=len(devices))
        np.maximum.at(work, sent.device, costs.memory_bytes - STREAM_SHARE * devices.memory[sent.device])
        down, up = down + float(costs.down_bytes.sum()), up + float(costs.up_bytes.sum())
        if server is not None:
            sums_s += partial_sum_seconds(part.gemm, sent, costs, server)
            server_s += server_tile_seconds(part.gemm, tiles.select(~on_device), server)
    return Option(
        mode=mode_of(part.gemm, copies), tiles=copies, device_s=device_s, down_bytes=down, up_bytes=up, work_bytes=work,
        server_s=server_s + sums_s, sums_s=sums_s,
    )  # fmt: skip


def mode_of(gemm: Gemm, copies: tuple[Tiles, ...]) -> Mode:
    """The name of what is cut; whole batch items count as whole rows."""
    if any(bool(np.any(t.k_stop - t.k_start < gemm.shape.k)) for t in copies):
        return Mode.INNER
    cuts_m = any(bool(np.any(t.m_stop - t.m_start < gemm.shape.m)) for t in copies)
    cuts_n = any(bool(np.any(t.n_stop - t.n_start < gemm.shape.n)) for t in copies)
    if cuts_n:
        return Mode.TWO_DIMENSIONAL if cuts_m else Mode.COLUMN
    return Mode.ROW


def on_server(part: Part, devices: int, server: Server | None) -> Option:
    """The option that leaves the part to ``server`` (None: there is nothing to do)."""
    seconds = 0.0 if server is None else part.copies * server_seconds(part.gemm, server)
    return Option(
        mode=Mode.SERVER, tiles=(Tiles.of([]),) * part.copies, device_s=np.zeros(devices), down_bytes=0.0, up_bytes=0.0,
        work_bytes=np.zeros(devices), server_s=seconds,
    )  # fmt: skip


def non_dominated(options: list[Option], links: Links) -> list[Option]:
    """Options sorted by their own seconds, without those that a faster one beats in device seconds and bytes out."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.seconds(links), option.down_bytes)):
        beaten = any(other.device_s.max() <= option.device_s.max() and other.down_bytes <= option.down_bytes for other in kept)
        if not beaten:
            kept.append(option)
    return kept[:KEPT]
