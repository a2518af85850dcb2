r"""Frozen operands that stay on the devices from batch to batch: options that keep them, and how many levels may.

In a forward pass the weights of a GEMM are the same in every batch. An option that keeps them pays for their download once,
in the first batch, and takes memory for ever after; all figures of the program are those of a later batch. Offered are

- tilings made for it (:mod:`cleave_plan.planning.stationary`), each class of GEMMs with its share of the devices' memory in
  proportion to its weights, so that all levels together fit; where even so no whole operand fits, for half of the levels,
  a quarter, ...;
- in tiny cases every tiling that no other beats (:mod:`cleave_plan.planning.exact`), as if memory had room for all;
- the best tiling that streams its weights, with these kept: what there is for convolutions and batched products.

The program of :mod:`cleave_plan.planning.formulation` then has, for each device i, the row

    device-memory/i     sum kept_bytes[o][i] * z[L,p,o,S]  <=  0.9*m_i - (most that a tile of the chosen options needs there)

Rows are added for devices that an answer overloads, until it overloads none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.level import partial_sum_seconds, server_tile_seconds
from cleave_plan.cost.tile import STREAM_SHARE, Held, Ints, Tiles, price
from cleave_plan.fleet.device import Server
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.boxes import Boxes, tiles_of_copies
from cleave_plan.planning.exact import front, tiny
from cleave_plan.planning.holding import found_elements, on_devices
from cleave_plan.planning.option import Option, Part, mode_of
from cleave_plan.planning.stationary import Stationary
from cleave_plan.planning.terms import eligible, terms_of
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.reuse import SIDES, Side, operand_of

Floats = NDArray[np.float64]

_FEWEST = 64
"""Options are made for as few as one in so many levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepContext:
    """Where options that keep are searched: device figures, bytes that each device may keep for one copy of the level's
    part, links and server (None: it may not compute), whether K may be cut."""

    devices: DeviceColumns
    room: Floats
    links: Links
    server: Server | None
    inner: bool


def keeping_options(part: Part, sides: Sequence[Side], streamed: Sequence[Option], context: KeepContext) -> list[Option]:
    """Options of ``part`` that keep its operands ``sides``; ``streamed`` are those that send them in every batch."""
    found = []
    cut = [option for option in streamed if any(len(tiles) for tiles in option.tiles)]
    if cut:
        best = min(cut, key=lambda option: option.seconds(context.links))
        found.append(kept_option(part, best.tiles, sides, context))
    if tuple(sides) == ("b",) and part.gemm.shape.batch == 1 and part.gemm.window is None:
        tilings = [*_exact(part, context), *_stationary(part, context)]
        found += [kept_option(part, tiles, sides, context) for tiles in tilings]
    return [option for option in found if np.isfinite(option.device_s.max())]


def _stationary(part: Part, context: KeepContext) -> Iterator[tuple[Tiles, ...]]:
    """Tilings for all levels, or for as few of them as fit; over all devices, and over fewer where the servers' links bind."""
    able = eligible(terms_of(part.gemm), context.devices)
    fewer = 1
    while fewer <= _FEWEST:
        room = np.where(able, fewer * context.room / part.copies, 0.0)
        boxes = _boxes(part, room, context)
        if boxes is not None:
            yield _copied(boxes, part)
            yield from _over_fewer_devices(part, room, boxes, context)
            return
        fewer *= 2


def _exact(part: Part, context: KeepContext) -> Iterator[tuple[Tiles, ...]]:
    """The Pareto front of exact tilings of a tiny GEMM whose B stays."""
    terms = terms_of(part.gemm, part.copies)
    able = np.flatnonzero(eligible(terms, context.devices))
    if not tiny(terms, len(able)) or len(able) == 0:
        return
    sides = np.arange(1, max(terms.rows, terms.columns) + 1)
    device, r, c = (axis.ravel() for axis in np.meshgrid(able, sides, sides, indexing="ij"))
    shapes = list(zip(device.tolist(), r.tolist(), c.tolist(), strict=True))
    tiles = Tiles.of([(d, 0, rows, 0, columns, 0, terms.depth, 0, 1) for d, rows, columns in shapes])
    costs = price(part.gemm, tiles, context.devices, _found_again(part.gemm, tiles, {"a": 0 * c, "b": c}))
    seconds = np.where(costs.kept == 3, np.inf, costs.ideal_s)
    table = dict(zip(shapes, zip(seconds.tolist(), costs.down_bytes.tolist(), strict=True), strict=True))
    for layout in front(terms.rows, terms.columns, able.tolist(), lambda *tile: table[tile]):
        if np.isfinite(layout.seconds):
            boxes = layout.rectangles(terms.rows, terms.columns)
            yield (Tiles.of([(d, a, b, e, f, 0, terms.depth, 0, 1) for d, a, b, e, f in boxes]),)


def _boxes(part: Part, room: Floats, context: KeepContext) -> Boxes | None:
    server = context.server if part.copies == 1 else None
    return Stationary(gemm=part.gemm, devices=context.devices, room=room, server=server, inner=context.inner).boxes()


def _over_fewer_devices(part: Part, room: Floats, boxes: Boxes, context: KeepContext) -> Iterator[tuple[Tiles, ...]]:
    """While the servers' egress binds, the half of the devices with the faster links."""
    speed = np.minimum(context.devices.downlink, context.devices.uplink)
    count = int((room > 0).sum())
    while count > 1 and _egress_binds(part, boxes, context):
        count //= 2
        keep = np.argsort(-np.where(room > 0, speed, -1.0), kind="stable")[:count]
        room = np.where(np.isin(np.arange(len(room)), keep), room, 0.0)
        again = _boxes(part, room, context)
        if again is None:
            return
        boxes = again
        yield _copied(boxes, part)


def _egress_binds(part: Part, boxes: Boxes, context: KeepContext) -> bool:
    option = kept_option(part, _copied(boxes, part), ("b",), context)
    return option.links_s(context.links) > float(option.device_s.max())


def _copied(boxes: Boxes, part: Part) -> tuple[Tiles, ...]:
    """The same boxes for each copy of the part."""
    return tiles_of_copies(boxes, 1, 1) * part.copies


def kept_option(part: Part, copies: tuple[Tiles, ...], sides: Sequence[Side], context: KeepContext) -> Option:
    """The option that does ``part`` by ``copies`` and keeps all pieces of ``sides``, as it is in a later batch."""
    devices = context.devices
    device_s, kept, work = np.zeros(len(devices)), np.zeros(len(devices)), np.zeros(len(devices))
    down = up = server_s = sums_s = 0.0
    helds: list[Held] = []
    columns: dict[Side, list[Ints]] = {"a": [], "b": []}
    for tiles in copies:
        on_device = tiles.device < len(devices)
        for side in SIDES:
            length = tiles.m_stop - tiles.m_start if side == "a" else tiles.n_stop - tiles.n_start
            columns[side].append(np.where(on_device, length, 0) if side in sides else np.zeros_like(length))
            elements = found_elements(tiles, columns[side][-1], side, None, None)
            kept += on_devices(part.gemm, tiles, elements, side, len(devices))
        held = _found_again(part.gemm, tiles, {side: columns[side][-1] for side in SIDES})
        sent = tiles.select(on_device)
        costs = price(part.gemm, sent, devices, held.select(on_device))
        device_s += np.bincount(sent.device, np.where(costs.kept == 3, np.inf, costs.ideal_s), minlength=len(devices))
        np.maximum.at(work, sent.device, costs.memory_bytes - STREAM_SHARE * devices.memory[sent.device])
        down, up = down + float(costs.down_bytes.sum()), up + float(costs.up_bytes.sum())
        if context.server is not None:
            sums_s += partial_sum_seconds(part.gemm, sent, costs, context.server)
            server_s += server_tile_seconds(part.gemm, tiles.select(~on_device), context.server)
        helds.append(held)
    return Option(
        mode=mode_of(part.gemm, copies), tiles=copies, device_s=device_s, down_bytes=down, up_bytes=up,
        server_s=server_s + sums_s, sums_s=sums_s, held_a=tuple(columns["a"]), held_b=tuple(columns["b"]), kept_bytes=kept,
        work_bytes=work, held=tuple(helds),
    )  # fmt: skip


def _found_again(gemm: Gemm, tiles: Tiles, kept: dict[Side, Ints]) -> Held:
    """What each tile finds of its own kept pieces in a later batch."""
    items = (tiles.batch_stop - tiles.batch_start).astype(float)
    item = {side: kept[side] * (tiles.k_stop - tiles.k_start) * (operand_of(gemm, side).bits / 8) for side in SIDES}
    return Held(
        a_bytes=items * item["a"], b_bytes=items * item["b"], a_item=item["a"], b_item=item["b"], resident=np.zeros(len(tiles))
    )
