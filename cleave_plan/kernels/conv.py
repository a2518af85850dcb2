"""Rows of a convolution from the input that they read.

Rows are output positions in the order (image, position). A range of rows is sent, per image, the box that
``ConvWindow.region`` names: the tail of the first image, whole images in one block, the head of the last. Padding is
not sent; it is added here. The im2col matrix exists only on the device, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cleave_plan.kernels.arrays import Array
from cleave_plan.workload.gemm import ConvWindow

BLOCK_BYTES = 1 << 20
"""Bytes of im2col matrix that a device builds at a time (more only where one output row of the image needs more)."""

FEW_POSITIONS = 512
"""Images are multiplied together up to so many positions: narrower products spend their time on reading the kernels."""


class ImageRange(NamedTuple):
    """Output positions ``first..last`` (inclusive) of each of the images ``start:stop``.

    ``whole`` marks the images between the first and the last, which travel entire.
    """

    start: int
    stop: int
    first: int
    last: int
    whole: bool = False

    @property
    def positions(self) -> int:
        """Output positions of each of the images."""
        return self.last - self.first + 1


def image_ranges(window: ConvWindow, rows: slice) -> list[ImageRange]:
    """The output rows ``rows`` image by image: a tail, whole images together, a head; in row order."""
    if rows.stop <= rows.start:
        return []
    size = window.rows_per_image
    (first, begin), (last, end) = divmod(rows.start, size), divmod(rows.stop - 1, size)
    if first == last:
        return [ImageRange(first, first + 1, begin, end)]
    ranges = [ImageRange(first, first + 1, begin, size - 1)]
    if last > first + 1:
        ranges.append(ImageRange(first + 1, last, 0, size - 1, whole=True))
    return [*ranges, ImageRange(last, last + 1, 0, end)]


def cut_images(window: ConvWindow, images: Array, *, rows: slice, groups: slice) -> tuple[Array, ...]:
    """Views of ``images`` [images, groups * channels, *input] that ``rows`` of ``groups`` read, one for each range. Of images
    in blocks of channels, opened, all blocks are taken: they have no groups."""
    channels = slice(groups.start * window.channels, groups.stop * window.channels)
    return tuple(
        images[(slice(place.start, place.stop), channels, *(slice(*side) for side in _sent(window, place)))]
        for place in image_ranges(window, rows)
    )


Rooms = Callable[[ImageRange, int, int], Array]
"""Where results go: a range of a tile, the first and the end of some of its images -> [images, groups, columns, positions]."""


def rooms_of_tile(out: Array, window: ConvWindow, rows: slice) -> Rooms:
    """The parts of a tile's own result, [groups, rows, columns]."""
    groups, _, columns = out.shape
    begins, done = {}, 0
    for place in image_ranges(window, rows):
        begins[place] = done
        done += place.positions * (place.stop - place.start)

    def room(place: ImageRange, first: int, end: int) -> Array:
        begin = begins[place] + (first - place.start) * place.positions
        part = out[:, begin : begin + (end - first) * place.positions]
        return part.reshape(groups, end - first, place.positions, columns).transpose(1, 0, 3, 2)

    return room


def rooms_of_images(whole: Array, window: ConvWindow, groups: int, box_groups: slice, columns: slice) -> Rooms:
    """The parts of the whole result as the model has it, [images, groups * columns, positions]."""
    by_group = whole.reshape(window.images, groups, -1, window.rows_per_image)

    def room(place: ImageRange, first: int, end: int) -> Array:
        return by_group[first:end, box_groups, columns, place.first : place.last + 1]

    return room


def copy_rooms(window: ConvWindow, rows: slice, source: Rooms, target: Rooms) -> None:
    """Copy a tile from one place to another."""
    for place in image_ranges(window, rows):
        target(place, place.start, place.stop)[...] = source(place, place.start, place.stop)


def convolve(window: ConvWindow, pieces: tuple[Array, ...], weights: Array, *, rows: slice, rooms: Rooms) -> None:
    """The tile's result into ``rooms`` from the pieces of :func:`cut_images` and ``weights`` [groups, K, columns], in whose type
    products are formed.

    K runs over (channel, kernel position), both in their ONNX order, and is whole. Images with few positions are multiplied
    together, so that the kernels are read once for several.
    """
    kernels = weights.transpose(0, 2, 1)
    for place, padded in padded_pieces(window, pieces, rows):
        step = max(1, FEW_POSITIONS // place.positions)
        for first in range(place.start, place.stop, step):
            end = min(first + step, place.stop)
            images = padded[first - place.start : end - place.start]
            _convolve_images(window, images, kernels, place, rooms(place, first, end))


def padded_pieces(window: ConvWindow, pieces: tuple[Array, ...], rows: slice) -> Iterator[tuple[ImageRange, Array]]:
    """Each range of ``rows`` with all that its windows reach, [images, groups * channels, *span]: a convolution of it without
    padding gives the range's positions, after :func:`skipped_positions`."""
    for place, piece in zip(image_ranges(window, rows), pieces, strict=True):
        yield place, padded_piece(window, piece, place)


def padded_piece(window: ConvWindow, piece: Array, place: ImageRange) -> Array:
    """One range of :func:`padded_pieces` from its piece."""
    return _with_padding(window, piece, tuple(start for start, _ in _sent(window, place)), place)


def whole_images(window: ConvWindow, images: Array, place: ImageRange, groups: slice) -> Array:
    """The images of a range as they are, whatever of them is read; a view."""
    return images[place.start : place.stop, groups.start * window.channels : groups.stop * window.channels]


def span_sizes(window: ConvWindow, span: Sequence[int]) -> tuple[int, ...]:
    """How many positions a convolution without padding has along each axis of ``span``."""
    sides = zip(span, window.kernel, window.strides, window.dilations, strict=True)
    return tuple((length - (size - 1) * dilation - 1) // stride + 1 for length, size, stride, dilation in sides)


def skipped_positions(place: ImageRange, sizes: Sequence[int]) -> int:
    """How many of the positions that the span of ``place`` gives (``sizes`` along each axis) lie before its first."""
    return place.first % prod(sizes[_lead(sizes) + 1 :])


def _lead(sizes: Sequence[int]) -> int:
    """The first axis along which positions vary."""
    return next((axis for axis, size in enumerate(sizes) if size > 1), len(sizes) - 1)


def convolved(window: ConvWindow, pieces: tuple[Array, ...], weights: Array, *, rows: slice) -> Array:
    """The same as an array of its own, [groups, rows, columns]."""
    out = np.empty((weights.shape[0], rows.stop - rows.start, weights.shape[2]), weights.dtype)
    convolve(window, pieces, weights, rows=rows, rooms=rooms_of_tile(out, window, rows))
    return out


def im2col(window: ConvWindow, sent: ImageRange, piece: Array, part: ImageRange, groups: int) -> Array:
    """The matrix [groups, K, positions] of the output positions ``part`` of one image, in C order.

    ``piece`` [1, groups * channels, ...] is what that image's positions ``sent``, of which ``part`` are some, read.
    """
    origin = tuple(start for start, _ in _sent(window, sent))
    view, sizes = _windows(window, _with_padding(window, piece, origin, part))
    matrix = view.reshape(groups, window.channels * prod(window.kernel), prod(sizes))
    return np.ascontiguousarray(matrix[..., skipped_positions(part, sizes) :][..., : part.positions])


def patch(window: ConvWindow, piece: Array, *, row: int) -> Array:
    """The one im2col row [K] of output position ``row``, whose piece (of one group) is [1, channels, ...]."""
    (place,) = image_ranges(window, slice(row, row + 1))
    origin = tuple(start for start, _ in _sent(window, place))
    padded = _with_padding(window, piece, origin, place)[0]
    steps = tuple(slice(None, None, step) for step in window.dilations)
    row_of_k: Array = padded[(slice(None), *steps)].reshape(-1)
    return row_of_k


def _sent(window: ConvWindow, place: ImageRange) -> tuple[tuple[int, int], ...]:
    if place.whole:
        return tuple((0, size) for size in window.input)
    return window.region(place.first, place.last)


def _with_padding(window: ConvWindow, images: Array, origin: tuple[int, ...], place: ImageRange) -> Array:
    """The whole span that the rows reach, zeros where it leaves the input; ``images`` [images, channels, *input, ...] begin at
    ``origin``."""
    span = window.span(place.first, place.last)
    source, target = [slice(None)] * 2, [slice(None)] * 2
    axes = 2 + len(span)
    for (begin, end), start, length in zip(span, origin, images.shape[2:axes], strict=True):
        low, high = max(begin, start), min(end, start + length)
        high = max(low, high)
        source.append(slice(low - start, high - start))
        target.append(slice(low - begin, high - begin))
    shape = (*images.shape[:2], *(end - begin for begin, end in span), *images.shape[axes:])
    inside = images[tuple(source)]
    if inside.shape == shape:
        return inside
    padded = np.zeros(shape, images.dtype)
    padded[tuple(target)] = inside
    return padded


def _convolve_images(window: ConvWindow, padded: Array, kernels: Array, place: ImageRange, out: Array) -> None:
    """Images [images, channels, ...] into ``out`` [images, groups, columns, positions]; ``kernels`` are [groups, columns, K].

    im2col by sliding windows, where a window is more than one position, then products.
    """
    groups, columns, depth = kernels.shape
    count, axes = padded.shape[0], len(window.output)
    view, sizes = _windows(window, padded)

    # Along the first axis that varies, whole slabs of `inner` positions are multiplied at a time.
    lead = _lead(sizes)
    inner = prod(sizes[lead + 1 :])
    view = view.reshape(*view.shape[: axes + 2], *sizes[lead:])
    slabs = max(1, BLOCK_BYTES // max(1, groups * count * inner * depth * kernels.itemsize))
    if prod(window.kernel) == 1 and count == 1:
        slabs = sizes[lead]  # nothing is copied: the image is the matrix
    skipped = skipped_positions(place, sizes)
    for begin in range(0, sizes[lead], slabs):
        block = view[(slice(None),) * (axes + 2) + (slice(begin, begin + slabs),)]
        wide = block.shape[axes + 2] * inner
        low, high = begin * inner - skipped, begin * inner - skipped + wide
        keep = slice(max(low, 0), min(high, place.positions))
        matrix = block.reshape(groups, depth, count * wide).astype(kernels.dtype, copy=False)
        if count == 1:
            np.matmul(kernels, matrix[..., keep.start - low : keep.stop - low], out=out[0, ..., keep])
        else:
            products = np.matmul(kernels, matrix).reshape(groups, columns, count, wide).transpose(2, 0, 1, 3)
            out[..., keep] = products[..., keep.start - low : keep.stop - low]


def _windows(window: ConvWindow, padded: Array) -> tuple[Array, tuple[int, ...]]:
    """A view [channels, kernel..., images, output...] of what each output position reads, and the sizes of its output axes."""
    axes = len(window.output)
    reach = tuple((size - 1) * step + 1 for size, step in zip(window.kernel, window.dilations, strict=True))
    view = sliding_window_view(padded, reach, axis=tuple(range(2, axes + 2)))
    view = view[(slice(None), slice(None), *(slice(None, None, step) for step in (*window.strides, *window.dilations)))]
    # K before the positions, so that runs of the image stay runs.
    view = view.transpose(1, *range(axes + 2, 2 * axes + 2), 0, *range(2, axes + 2))
    return view, view.shape[axes + 2 :]
