"""Tiles of convolutions of images in blocks of channels, computed where they belong.

What a tile reads and how it is cut into runs of onnxruntime follows from the product and the box alone, and is worked out once; a
batch then only takes views and copies. Kernels of a product are packed once, whatever columns its tiles have: blocks of columns
are ranges of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array, dense_on_lines, on_lines
from cleave_plan.kernels.channel_blocks import opened
from cleave_plan.kernels.conv import FEW_POSITIONS, ImageRange, image_ranges, padded_piece, skipped_positions, span_sizes
from cleave_plan.kernels.epilogue import NOTHING_MORE
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.blocked_conv import ConvKind, kernels_in_blocks, session_in_blocks
from cleave_plan.onnx_io.conv_target import Target, target_of
from cleave_plan.workload.gemm import ConvWindow

Keep = Callable[[Hashable, Callable[[], Any], int], Any]
"""Gives what has a name, made where it is not kept from before, of so many bytes."""

MOST_PROGRAMS = 1 << 14
"""Tiles whose runs are kept; then all are forgotten."""


class _Part(NamedTuple):
    """Some images of a tile: ``source`` is what they read of the images, ``pads`` are around it, ``sizes`` the positions along
    each axis that come of it, ``span``, of which the first ``skipped`` are not of the tile. ``empty``: nothing is read but
    padding."""

    place: ImageRange
    source: tuple[slice, ...]
    empty: bool
    pads: tuple[int, ...]
    sizes: tuple[int, ...]
    span: ImageRange
    skipped: int


class _Program(NamedTuple):
    """The runs of a tile of ``product``, and the bytes that it reads."""

    product: Product
    kind: ConvKind
    parts: tuple[_Part, ...]
    nbytes: int


class BlockConvolver:
    """Computes tiles of products of which something lies in blocks; packed kernels are kept by ``keep``."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._programs: dict[tuple[int, Box], _Program] = {}

    def run_into(self, product: Product, operands: Sequence[Array | None], box: Box, whole: Array, *, kernels: Hashable) -> int:
        """As :meth:`cleave_plan.onnx_io.conv_kernel.Convolver.run_into`, of a box that is not empty."""
        program = self._program(product, operands, box)
        window, blocks, (a, b) = product.window, product.blocks, operands[:2]
        assert window is not None
        assert a is not None
        assert b is not None
        target = target_of(product, box, whole, None if product.epilogue is None else operands[-1])
        beside = self._kernels_and_bias(product, operands, box, target, kernels)
        images = opened(a, blocks.size) if blocks.a else a
        for part in program.parts:
            read = images[part.source]
            read = padded_piece(window, read, part.place) if part.empty else read
            _run(_session(program.kind, part.pads), beside, part, read, target)
        return program.nbytes

    def _program(self, product: Product, operands: Sequence[Array | None], box: Box) -> _Program:
        key = (id(product), box)  # of a product that the program keeps, so that no other can have its place
        if key not in self._programs:
            if len(self._programs) >= MOST_PROGRAMS:
                self._programs.clear()
            window, blocks = product.window, product.blocks
            assert window is not None
            epilogue = product.epilogue or NOTHING_MORE
            bias, addend = (None, None) if product.epilogue is None else operands[-2:]
            kind = ConvKind(
                kernel=window.kernel, strides=window.strides, dilations=window.dilations, few=window.channels < blocks.size,
                columns=box.n_stop - box.n_start, bias=bias is not None, adds=addend is not None, epilogue=epilogue,
                blocks=blocks,
            )  # fmt: skip
            parts = tuple(_part(window, place) for place in image_ranges(window, box.rows))
            self._programs[key] = _Program(product, kind, parts, product.pieces(operands, box).nbytes)
        return self._programs[key]

    def _kernels_and_bias(
        self, product: Product, operands: Sequence[Array | None], box: Box, target: Target, kernels: Hashable
    ) -> dict[str, Array]:  # fmt: skip
        """Those of the columns that are computed."""
        window, b, size = product.window, operands[1], product.blocks.size
        assert window is not None
        assert b is not None
        own = slice(0, product.shape.n) if product.blocks.out else box.columns
        name = (kernels, own.start, own.stop)
        packed = self._keep(name, lambda: kernels_in_blocks(window, b[0][:, own], size), b.nbytes)
        found = {"w": packed[target.columns] if product.blocks.out else packed}
        bias = None if product.epilogue is None else operands[-2]
        if bias is not None:
            part, missing = bias[0, target.columns], -(target.columns.stop - target.columns.start) % size
            found["b"] = np.pad(part, (0, missing)) if missing else part
        return found


@cache
def _session(kind: ConvKind, pads: tuple[int, ...]) -> Any:
    """Sessions have no kernels, so that there are few and small ones."""
    return session_in_blocks(kind, pads)


def _part(window: ConvWindow, place: ImageRange) -> _Part:
    """What a range of a tile reads and gives."""
    whole = place.positions == window.rows_per_image
    span = window.span(place.first, place.last)
    region = tuple((0, size) for size in window.input) if whole else window.region(place.first, place.last)
    empty = any(start == stop for start, stop in region)
    begins = window.pads if whole else tuple(max(0, -begin) for begin, _ in span)
    ends = tuple(max(0, end - size) for (_, end), size in zip(span, window.input, strict=True))
    pads = (0,) * 2 * len(region) if empty else (*begins, *ends)
    sizes = window.output if whole else span_sizes(window, [stop - start for start, stop in span])
    skipped = skipped_positions(place, sizes)
    around = place._replace(first=place.first - skipped, last=place.first - skipped + prod(sizes) - 1)
    source = (slice(place.start, place.stop), slice(None), *(slice(*side) for side in region))
    return _Part(place, source, empty, pads, sizes, around, skipped)


def _run(session: Any, beside: Mapping[str, Array], part: _Part, images: Array, target: Target) -> None:
    """Run a session on what ``part`` reads; results go where they belong, by way of a copy where that is no run of memory."""
    place, span, axes = part.place, part.span, len(part.sizes)
    addend = target.addend
    dense = images.flags.c_contiguous and (addend is None or addend(span, place.start, place.stop).flags.c_contiguous)
    step = target.images_at_once(span) if dense else max(1, FEW_POSITIONS // span.positions)
    for first in range(place.start, place.stop, step):
        end = min(first + step, place.stop)
        own = target.room(span, first, end)
        in_place = span == place and target.exact and own.flags.c_contiguous
        result = own if in_place else on_lines(own.shape, own.dtype)
        binding = session.io_binding()
        for name, array in beside.items():
            binding.bind_cpu_input(name, array)
        given = dense_on_lines(images[first - place.start : end - place.start])
        # What lies in blocks has the shape of the images that it holds.
        binding.bind_cpu_input("x", given.reshape(end - first, -1, *given.shape[2 : 2 + axes]))
        shape = (end - first, result.size // (end - first) // prod(part.sizes), *part.sizes)
        if addend is not None:
            binding.bind_cpu_input("r", dense_on_lines(addend(span, first, end)).reshape(shape))
        binding.bind_output("y", "cpu", 0, np.float32, shape, result.__array_interface__["data"][0])
        session.run_with_iobinding(binding)
        if not in_place:
            target.put(place, first, end, result, part.skipped)
