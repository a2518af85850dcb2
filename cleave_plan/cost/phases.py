r"""A tile's executed time as the phases that follow one another on its device.

In a phase a download, arithmetic and an upload run side by side, and it ends when the last of them does; by itself it
takes ``wait + max(down/d, flop, up/u)``. The phases of a tile add up to the executed time of :mod:`cleave_plan.cost.tile`:

    A or B kept    latency and the kept operand down  |  the rest down, arithmetic and the result up side by side
    C kept         latency, all down beside arithmetic  |  the result up
    a chain of g   latency and the first item's K and V down  |  g - 1 items, all three side by side
                   |  rows of the last item, all three side by side  |  what the last item sends up at its end

Columns are in the order of the tiles and, within a tile, of time. Units: bytes and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import Held, Tiles, price
from cleave_plan.workload.gemm import Gemm

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """Columns over phases: the tile's place, seconds of latency before the rest, bytes down, FLOP and their seconds, bytes up."""

    tile: Ints
    wait_s: Floats
    down_bytes: Floats
    flop: Floats
    flop_s: Floats
    up_bytes: Floats

    def __len__(self) -> int:
        return len(self.tile)


def phases_of(gemm: Gemm, tiles: Tiles, devices: DeviceColumns, held: Held | None = None) -> Phases:
    """The phases of each of ``tiles`` (all of them on devices), those without any content left out; ``held``: what the
    devices hold already."""
    costs = price(gemm, tiles, devices, held)
    own = devices.take(tiles.device)
    if gemm.chain is not None:
        down, flop, up = _chain_shares(gemm, tiles, costs.a_bytes, costs.b_bytes, costs.flop, costs.up_bytes)
    else:
        down, flop, up = _shares(costs.kept, costs.a_bytes, costs.b_bytes, costs.flop, costs.up_bytes)
    wait = np.zeros_like(down)
    wait[:, 0] = own.latency
    full = (wait > 0) | (down > 0) | (flop > 0) | (up > 0)
    tile = np.broadcast_to(np.arange(len(tiles))[:, None], down.shape)
    flop_s = flop / np.asarray(own.rate(costs.flop))[:, None]
    return Phases(
        tile=tile[full], wait_s=wait[full], down_bytes=down[full], flop=flop[full], flop_s=flop_s[full], up_bytes=up[full]
    )


def _shares(kept: Ints, a: Floats, b: Floats, flop: Floats, up: Floats) -> tuple[Floats, Floats, Floats]:
    """Bytes down, FLOP and bytes up in the two phases of plain tiles; each of shape (tiles, 2)."""
    result_last = kept == 2
    first = np.where(result_last, a + b, np.where(kept == 0, a, b))
    none = np.zeros_like(up)
    return (
        np.stack([first, a + b - first], axis=1),
        np.stack([np.where(result_last, flop, 0), np.where(result_last, 0, flop)], axis=1),
        np.stack([none, up], axis=1),
    )


def _chain_shares(gemm: Gemm, tiles: Tiles, a: Floats, b: Floats, flop: Floats, up: Floats) -> tuple[Floats, Floats, Floats]:
    """The same in the four phases of chains; each of shape (tiles, 4)."""
    assert gemm.chain is not None
    r, g = tiles.m_stop - tiles.m_start, (tiles.batch_stop - tiles.batch_start).astype(float)
    item_up = up * (gemm.chain.out_item_bytes / np.maximum(r * gemm.chain.out_row_bytes + gemm.chain.out_item_bytes, 1))
    none, others = np.zeros_like(up), (g - 1) / g
    return (
        np.stack([b / g, others * (a + b), a / g, none], axis=1),
        np.stack([none, others * flop, flop / g, none], axis=1),
        np.stack([none, others * up, (up - item_up) / g, item_up / g], axis=1),
    )
