"""Where a tile's results go when onnxruntime computes it, and what is added to them: as the model has them or in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.channel_blocks import around, opened, store
from cleave_plan.kernels.conv import FEW_POSITIONS, ImageRange, Rooms, rooms_of_images
from cleave_plan.kernels.tile import Box, Product


class Target(Protocol):
    """Rooms of a tile's result in memory, whose order, where a room is one run, is that of onnxruntime's result.

    An addend has the order of its room, or that of the model where onnxruntime is to put it into blocks.
    """

    @property
    def columns(self) -> slice:
        """What is computed."""

    @property
    def exact(self) -> bool:
        """Whether that is the tile and nothing else."""

    @property
    def addend(self) -> Rooms | None:
        """What is added to a room."""

    def images_at_once(self, place: ImageRange) -> int:
        """How many images of a range are worth one run."""

    def room(self, place: ImageRange, first: int, end: int) -> Array:
        """The room of some images of a range."""

    def put(self, place: ImageRange, first: int, end: int, result: Array, skipped: int) -> None:
        """Copy the positions of ``place`` out of ``result``, which has ``skipped`` others before them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _InOrder:
    """In a result as the model has it."""

    rooms: Rooms
    columns: slice
    addend: Rooms | None
    exact: bool = True

    def images_at_once(self, place: ImageRange) -> int:
        """A few small ones, so that the kernels are read once for several."""
        return max(1, FEW_POSITIONS // place.positions)

    def room(self, place: ImageRange, first: int, end: int) -> Array:
        """[images, groups, columns, positions]."""
        return self.rooms(place, first, end)

    def put(self, place: ImageRange, first: int, end: int, result: Array, skipped: int) -> None:
        """A slice of the positions."""
        self.rooms(place, first, end)[...] = result[..., skipped : skipped + place.positions]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _InBlocks:
    """In a result in blocks, opened: [images, blocks, positions, size]. ``wanted`` are the tile's own columns."""

    view: Array
    columns: slice
    wanted: slice
    addend: Rooms | None

    @property
    def exact(self) -> bool:
        """Whether the tile is of whole blocks."""
        return self.columns == self.wanted

    def images_at_once(self, place: ImageRange) -> int:
        """All whose rooms are one run; else a few small ones."""
        all_of_them = place.stop - place.start
        together = self.exact and self.room(place, place.start, place.stop).flags.c_contiguous
        return all_of_them if together else max(1, FEW_POSITIONS // place.positions)

    def room(self, place: ImageRange, first: int, end: int) -> Array:
        """[images, blocks, positions, size]."""
        size = self.view.shape[-1]
        blocks = slice(self.columns.start // size, self.columns.stop // size)
        return self.view[first:end, blocks, place.first : place.last + 1]

    def put(self, place: ImageRange, first: int, end: int, result: Array, skipped: int) -> None:
        """A slice of the positions, and of the first and the last block what is the tile's."""
        there = self.view[first:end, :, place.first : place.last + 1]
        store(there, self.wanted, result[:, :, skipped : skipped + place.positions], begin=self.columns.start)


def target_of(product: Product, box: Box, whole: Array, addend: Array | None) -> Target:
    """The rooms of the tile ``box`` in ``whole``, and in the whole addend of its epilogue."""
    window, blocks = product.window, product.blocks
    assert window is not None
    if not blocks.out:
        beside = None if addend is None else product.addend_rooms(addend, box)
        return _InOrder(rooms=product.rooms(whole, box), columns=box.columns, addend=beside)
    wide = around(box.columns, blocks.size)
    given = None
    if addend is not None and not blocks.addend:
        given = rooms_of_images(addend, window, 1, box.batch, wide)
    elif addend is not None:
        given = _InBlocks(view=opened(addend, blocks.size), columns=wide, wanted=wide, addend=None).room
    return _InBlocks(view=opened(whole, blocks.size), columns=wide, wanted=box.columns, addend=given)
