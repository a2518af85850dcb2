"""Assignments some of whose devices are gone: their tiles cut anew over the others, product by product, all others as they were.

A product is cut anew in the longest of the levels that it is in, its takers being busy with what else they have there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import BOX, Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.errors import InfeasibleError
from cleave_plan.plan.plan import Assignment
from cleave_plan.planning.option import mode_of
from cleave_plan.planning.recut import recut
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload

Floats = NDArray[np.float64]
Kind = tuple[tuple[int, int], ...]
"""A kind of level: places of its products' assignments, each with how many of its products are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """``assignments`` in the order they were given; ``tiles`` lost their device and became ``pieces`` on ``takers`` devices.

    A tile that several identical products share counts once.
    """

    assignments: tuple[Assignment, ...]
    tiles: int
    pieces: int
    takers: int


def patched(
    workload: Workload,
    assignments: Sequence[Assignment],
    columns: Callable[[DType], DeviceColumns],
    away: NDArray[np.bool_],
) -> Patched:
    """``assignments`` (naming the GEMMs of ``workload``, products that they are) without the devices where ``away`` is true.

    ``columns`` gives the figures of all devices for an element type. Raises InfeasibleError when nobody can take a tile.
    """
    patch = _Patch(workload, assignments, columns, away)
    found = patch.assignments()
    return Patched(assignments=found, tiles=patch.tiles, pieces=patch.pieces, takers=len(patch.takers))


class _Patch:
    """The tiles of each assignment as they are now."""

    def __init__(
        self,
        workload: Workload,
        assignments: Sequence[Assignment],
        columns: Callable[[DType], DeviceColumns],
        away: NDArray[np.bool_],
    ) -> None:
        self._workload, self._given, self._columns, self._away = workload, assignments, columns, away
        self._changed: dict[int, Tiles] = {}
        self._gemm: dict[int, Gemm] = {}
        self.tiles = self.pieces = 0
        self.takers: set[int] = set()

    def assignments(self) -> tuple[Assignment, ...]:
        """All of them, those of products that lost tiles with others in their place."""
        busy = {kind: self._busy(kind) for kind in self._kinds()}
        for kind in sorted(busy, key=lambda kind: (-float(busy[kind][~self._away].max(initial=0.0)), kind)):
            for place, _ in kind:
                if place not in self._changed and self._lost(place).any():
                    self._cut_anew(place, kind)
        return tuple(self._finished(place) for place in range(len(self._given)))

    def _kinds(self) -> list[Kind]:
        place = {name: number for number, assignment in enumerate(self._given) for name in assignment.gemms}
        kinds: dict[Kind, None] = {}
        for level in self._workload.levels:
            count: Counter[int] = Counter()
            for at in level.gemms:
                gemm = self._workload.gemms[at]
                self._gemm.setdefault(place[gemm.name], gemm)
                count[place[gemm.name]] += 1
            kinds.setdefault(tuple(sorted(count.items())))
        return list(kinds)

    def _tiles(self, place: int) -> Tiles:
        return self._changed.get(place, self._given[place].tiles)

    def _lost(self, place: int) -> NDArray[np.bool_]:
        return np.append(self._away, False)[self._tiles(place).device]

    def _busy(self, kind: Kind) -> Floats:
        """Executed seconds of each device in a level of this kind, by the tiles that it has now; infinite for those away."""
        busy = np.where(self._away, np.inf, 0.0)
        for place, times in kind:
            tiles, gemm = self._tiles(place), self._gemm[place]
            sent = tiles.select((tiles.device < len(busy)) & ~self._lost(place))
            if len(sent):
                costs = price(gemm, sent, self._columns(gemm.dtype))
                busy += times * np.bincount(sent.device, costs.executed_s, minlength=len(busy))
        return busy

    def _cut_anew(self, place: int, kind: Kind) -> None:
        tiles, lost, gemm = self._tiles(place), self._lost(place), self._gemm[place]
        found = recut(gemm, tiles.select(lost), self._columns(gemm.dtype), self._busy(kind))
        if found.left:
            raise InfeasibleError(
                f"no device that is left can take {len(found.left)} tiles of lost ones", where=f"GEMM {gemm.name}",
                facts={"gemm": gemm.name, "unit": "tile", "left": len(found.left), "devices": int((~self._away).sum())},
                remedy="plan anew for the devices that are left",
            )  # fmt: skip
        kept = tiles.select(~lost)
        names = ("device", *BOX)
        joined = {name: np.concatenate([kept.column(name), found.tiles.column(name)]) for name in names}
        self._changed[place] = Tiles(**joined)
        self.tiles, self.pieces = self.tiles + int(lost.sum()), self.pieces + len(found.tiles)
        self.takers |= set(found.tiles.device.tolist())

    def _finished(self, place: int) -> Assignment:
        if place not in self._changed:
            return self._given[place]
        tiles = self._changed[place]
        return replace(self._given[place], tiles=tiles, mode=mode_of(self._gemm[place], (tiles,)))
