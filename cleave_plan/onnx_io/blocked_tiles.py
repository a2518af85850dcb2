"""Tiles of convolutions of images in blocks of channels, computed where they belong.

What a tile reads and how it is cut into runs of onnxruntime follows from the product and the box alone, and is worked out once; a
batch then only takes views and copies. Kernels of a product are packed once, whatever columns its tiles have: blocks of columns
are ranges of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.channel_blocks import opened
from cleave_plan.kernels.conv import ImageRange, image_ranges, padded_piece, span_sizes
from cleave_plan.kernels.epilogue import NOTHING_MORE
from cleave_plan.kernels.per_tile import PerTile
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.blocked_conv import ConvKind, kernels_in_blocks, session_in_blocks
from cleave_plan.onnx_io.conv_runs import Reach, has_whole_images, pads_around, run
from cleave_plan.onnx_io.conv_target import Target, target_of
from cleave_plan.workload.gemm import ConvWindow

Keep = Callable[[Hashable, Callable[[], Any], int], Any]
"""Gives what has a name, made where it is not kept from before, of so many bytes."""


class _Part(NamedTuple):
    """Some images of a tile, of which ``reach`` is given: ``source`` is what they read of the images, ``pads`` are around it.
    ``empty``: nothing is read but padding."""

    reach: Reach
    source: tuple[slice, ...]
    empty: bool
    pads: tuple[int, ...]


class _Program(NamedTuple):
    """The runs of a tile, and the bytes that it reads."""

    kind: ConvKind
    parts: tuple[_Part, ...]
    nbytes: int


class BlockConvolver:
    """Computes tiles of products of which something lies in blocks; packed kernels are kept by ``keep``."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._programs: PerTile[_Program] = PerTile()

    def run_into(self, product: Product, operands: Sequence[Array | None], box: Box, whole: Array, *, kernels: Hashable) -> int:
        """As :meth:`cleave_plan.onnx_io.conv_kernel.Convolver.run_into`, of a box that is not empty."""
        program = self._programs.of(product, box, partial(_program, product, operands, box))
        window, blocks, (a, b) = product.window, product.blocks, operands[:2]
        assert window is not None
        assert a is not None
        assert b is not None
        target = target_of(product, box, whole, None if product.epilogue is None else operands[-1])
        beside = self._kernels_and_bias(product, operands, box, target, kernels)
        images = opened(a, blocks.size) if blocks.a else a
        for part in program.parts:
            read = images[part.source]
            read = padded_piece(window, read, part.reach.place) if part.empty else read
            run(_session(program.kind, part.pads), beside, part.reach, read, target)
        return program.nbytes

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


def _program(product: Product, operands: Sequence[Array | None], box: Box) -> _Program:
    window, blocks = product.window, product.blocks
    assert window is not None
    bias, addend = (None, None) if product.epilogue is None else operands[-2:]
    kind = ConvKind(
        kernel=window.kernel, strides=window.strides, dilations=window.dilations, few=window.channels < blocks.size,
        columns=box.n_stop - box.n_start, bias=bias is not None, adds=addend is not None,
        epilogue=product.epilogue or NOTHING_MORE, blocks=blocks,
    )  # fmt: skip
    parts = tuple(_part(window, place) for place in image_ranges(window, box.rows))
    return _Program(kind, parts, product.pieces(operands, box).nbytes)


@cache
def _session(kind: ConvKind, pads: tuple[int, ...]) -> Any:
    """Sessions have no kernels, so that there are few and small ones."""
    return session_in_blocks(kind, pads)


def _part(window: ConvWindow, place: ImageRange) -> _Part:
    """What a range of a tile reads and gives."""
    whole, span = has_whole_images(window, place), window.span(place.first, place.last)
    region = tuple((0, size) for size in window.input) if whole else window.region(place.first, place.last)
    empty = any(start == stop for start, stop in region)
    sizes = window.output if whole else span_sizes(window, [stop - start for start, stop in span])
    source = (slice(place.start, place.stop), slice(None), *(slice(*side) for side in region))
    pads = (0,) * 2 * len(region) if empty else pads_around(window, place)
    return _Part(Reach.of(place, sizes), source, empty, pads)
