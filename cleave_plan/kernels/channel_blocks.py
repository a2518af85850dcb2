"""Channels in blocks: how images lie in memory between convolutions that onnxruntime computes.

Images [images, channels, *positions] in blocks of b channels are stored as [images, channels / b, *positions, b]: what a position
has of a block is one run of memory, as vector units read it. Such an array keeps the shape of the images that it holds. Who moves
it, names its place, or takes whole blocks of its channels, need not know; who reads numbers opens it first (:func:`opened`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.conv import ImageRange, Rooms, image_ranges, rooms_of_tile
from cleave_plan.workload.gemm import ConvWindow


class Blocks(NamedTuple):
    """Which arrays of a convolution (without groups) lie in blocks of ``size`` channels: its input, its epilogue's addend, its
    result."""

    size: int = 0
    a: bool = False
    addend: bool = False
    out: bool = False


PLAIN = Blocks()


def opened(images: Array, size: int) -> Array:
    """The view [images, channels / size, *positions, size] of images in blocks; raises AssertionError where no view can be."""
    count, channels, *positions = images.shape
    view = images.reshape(count, channels // size, *positions, size)
    assert not view.size or np.may_share_memory(view, images), "channels and positions of an image are one run of memory"
    return view


def plain(view: Array) -> Array:
    """What :func:`opened` shows, as [images, channels, *positions]; a copy."""
    count, blocks, *positions, size = view.shape
    return np.ascontiguousarray(np.moveaxis(view, -1, 2)).reshape(count, blocks * size, *positions)


def in_blocks(images: Array, size: int) -> Array:
    """A copy of [images, channels, *positions] that lies in blocks of ``size`` channels."""
    count, channels, *positions = images.shape
    parts = images.reshape(count, channels // size, size, *positions)
    return np.ascontiguousarray(np.moveaxis(parts, 2, -1)).reshape(images.shape)


def around(columns: slice, size: int) -> slice:
    """The whole blocks that hold ``columns``."""
    return slice(columns.start // size * size, -(-columns.stop // size) * size)


def rooms_of_blocks(whole: Array, size: int, columns: slice) -> Rooms:
    """Some columns of ``whole`` [images, columns, positions], which lies in blocks, to be read: the rooms are copies."""
    view, wide = opened(whole, size), around(columns, size)
    blocks = slice(wide.start // size, wide.stop // size)

    def room(place: ImageRange, first: int, end: int) -> Array:
        part = plain(view[first:end, blocks, place.first : place.last + 1])
        return part[:, None, columns.start - wide.start : columns.stop - wide.start]

    return room


def store(view: Array, columns: slice, values: Array, *, begin: int) -> None:
    """Put some columns into ``view`` [images, blocks, positions, size] of a whole: ``values`` are blocks of the same form, of
    which the first begins at column ``begin``."""
    size, first = view.shape[-1], begin // view.shape[-1]
    full = slice(-(-columns.start // size), max(columns.stop // size, -(-columns.start // size)))
    view[:, full] = values[:, full.start - first : full.stop - first]
    for block in {columns.start // size, columns.stop // size} - set(range(full.start, full.stop)):
        lanes = slice(max(columns.start - block * size, 0), min(columns.stop - block * size, size))
        if lanes.start < lanes.stop:
            view[:, block, :, lanes] = values[:, block - first, :, lanes]


def place_in_blocks(whole: Array, window: ConvWindow, size: int, rows: slice, columns: slice, result: Array) -> None:
    """Put a tile's result, [1, rows, columns], into ``whole`` [images, columns, positions], which lies in blocks."""
    view, wide = opened(whole, size), around(columns, size)
    lanes = (columns.start - wide.start, wide.stop - columns.stop)
    own = rooms_of_tile(result, window, rows)
    for place in image_ranges(window, rows):
        values = np.pad(own(place, place.start, place.stop)[:, 0], ((0, 0), lanes, (0, 0)))
        there = view[place.start : place.stop, :, place.first : place.last + 1]
        store(there, columns, opened(in_blocks(values, size), size), begin=wide.start)
