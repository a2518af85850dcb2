"""Rows of a convolution from the input that they read.

Rows are output positions in the order (image, position). A range of rows is sent, per image, the box that
``ConvWindow.region`` names: the tail of the first image, whole images in one block, the head of the last. Padding is
not sent; it is added here. The im2col matrix exists only on the device, a block of rows at a time.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cleave_plan.kernels.arrays import Array
from cleave_plan.workload.gemm import ConvWindow

BLOCK_BYTES = 8 << 20
"""Bytes of im2col matrix that a device builds at a time (more only where one output row of the image needs more)."""


class ImageRange(NamedTuple):
    """Output positions ``first..last`` (inclusive) of each of the images ``start:stop``.

    ``whole`` marks the images between the first and the last, which travel entire.
    """

    start: int
    stop: int
    first: int
    last: int
    whole: bool = False


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
    """Views of ``images`` [images, groups * channels, *input] that ``rows`` of ``groups`` read, one for each range."""
    channels = slice(groups.start * window.channels, groups.stop * window.channels)
    return tuple(
        images[(slice(place.start, place.stop), channels, *(slice(*side) for side in _sent(window, place)))]
        for place in image_ranges(window, rows)
    )


def convolve(
    window: ConvWindow,
    pieces: tuple[Array, ...],
    weights: Array,
    *,
    rows: slice,
    working: np.dtype[Any],
    out: Array | None = None,
) -> Array:
    """Result [groups, rows, columns] in ``working`` from the pieces of :func:`cut_images` and ``weights`` [groups, K, columns];
    in ``out`` where it is given.

    K runs over (channel, kernel position), both in their ONNX order, and is whole.
    """
    weights = weights.astype(working, copy=False)
    result = np.empty((weights.shape[0], rows.stop - rows.start, weights.shape[2]), working) if out is None else out
    done = 0
    for place, piece in zip(image_ranges(window, rows), pieces, strict=True):
        origin = tuple(start for start, _ in _sent(window, place))
        for image in piece:
            count = place.last - place.first + 1
            _convolve_image(window, _with_padding(window, image, origin, place), weights, place, result[:, done : done + count])
            done += count
    return result


def patch(window: ConvWindow, piece: Array, *, row: int) -> Array:
    """The one im2col row [K] of output position ``row``, whose piece (of one group) is [1, channels, ...]."""
    (place,) = image_ranges(window, slice(row, row + 1))
    origin = tuple(start for start, _ in _sent(window, place))
    padded = _with_padding(window, piece[0], origin, place)
    steps = tuple(slice(None, None, step) for step in window.dilations)
    return padded[(slice(None), *steps)].reshape(-1)


def _sent(window: ConvWindow, place: ImageRange) -> tuple[tuple[int, int], ...]:
    if place.whole:
        return tuple((0, size) for size in window.input)
    return window.region(place.first, place.last)


def _with_padding(window: ConvWindow, image: Array, origin: tuple[int, ...], place: ImageRange) -> Array:
    """The whole span that the rows reach, zeros where it leaves the input; ``image`` [channels, ...] begins at ``origin``."""
    span = window.span(place.first, place.last)
    source, target = [slice(None)], [slice(None)]
    for (begin, end), start, length in zip(span, origin, image.shape[1:], strict=True):
        low, high = max(begin, start), min(end, start + length)
        high = max(low, high)
        source.append(slice(low - start, high - start))
        target.append(slice(low - begin, high - begin))
    shape = (image.shape[0], *(end - begin for begin, end in span))
    inside = image[tuple(source)]
    if inside.shape == shape:
        return inside
    padded = np.zeros(shape, image.dtype)
    padded[tuple(target)] = inside
    return padded


def _convolve_image(window: ConvWindow, padded: Array, weights: Array, place: ImageRange, out: Array) -> None:
    """Output positions of one image into ``out`` [groups, positions, columns]: im2col by sliding windows, then products."""
    groups, depth, axes = weights.shape[0], weights.shape[1], len(window.output)
    reach = tuple((size - 1) * step + 1 for size, step in zip(window.kernel, window.dilations, strict=True))
    view = sliding_window_view(padded, reach, axis=tuple(range(1, axes + 1)))
    view = view[(slice(None), *(slice(None, None, step) for step in (*window.strides, *window.dilations)))]
    view = view.reshape(groups, window.channels, *view.shape[1:])
    view = np.moveaxis(view, 1, axes + 1)

    # Along the first axis that varies, whole slabs of `inner` positions are multiplied at a time.
    lead = next((axis for axis, size in enumerate(view.shape[1 : axes + 1]) if size > 1), axes - 1)
    view = view.reshape(groups, *view.shape[lead + 1 :])
    inner = prod(view.shape[2 : axes - lead + 1])
    slabs = max(1, BLOCK_BYTES // max(1, groups * inner * depth * weights.itemsize))
    skipped = place.first % inner
    for begin in range(0, view.shape[1], slabs):
        block = view[:, begin : begin + slabs]
        columns = block.reshape(groups, block.shape[1] * inner, depth).astype(weights.dtype, copy=False)
        products = np.matmul(columns, weights)
        low, high = begin * inner - skipped, begin * inner - skipped + products.shape[1]
        keep = slice(max(low, 0), min(high, out.shape[1]))
        out[:, keep] = products[:, keep.start - low : keep.stop - low]
