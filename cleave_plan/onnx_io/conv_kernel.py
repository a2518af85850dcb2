"""Tiles of convolutions by onnxruntime's Conv, whose kernels are packed once, which needs no im2col, and which finishes results
(bias, addend, bounds) while they are in the cache.

It takes float32 whose kernels are the same in every run. All else is computed by NumPy (:mod:`cleave_plan.kernels.conv`): other
element types, for most of which onnxruntime has no Conv on a CPU, and products on a grid, whose bits are promised. Whole images
are read and written where they are; of parts of images onnxruntime is given a copy, because it takes dense arrays only.
Images may lie in blocks of channels (:mod:`cleave_plan.onnx_io.blocked_conv`).

onnxruntime is imported when the first tile is computed: what imports this module need not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.channel_blocks import PLAIN, Blocks, opened
from cleave_plan.kernels.conv import ImageRange, image_ranges, padded_piece, skipped_positions, span_sizes, whole_images
from cleave_plan.kernels.epilogue import NOTHING_MORE, Epilogue
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.blocked_conv import conv_nodes, ended, session_of
from cleave_plan.onnx_io.conv_target import Target, target_of
from cleave_plan.onnx_io.runtime import onnxruntime_installed
from cleave_plan.workload.gemm import ConvWindow

KEPT_BYTES = 512 << 20
"""Bytes of kernels, as the model has them, whose packed copies a worker keeps; those used longest ago go first."""


class Convolution(StrEnum):
    """What computes tiles of convolutions."""

    NUMPY = "numpy"
    ONNXRUNTIME = "onnxruntime"


def require_convolution(name: str) -> Convolution:
    """The choice called ``name``; raises UsageError for another name, and where onnxruntime is asked for and not installed."""
    if name not in list(Convolution):
        raise UsageError(f"there is no convolution {name!r}", expected=f"one of {', '.join(Convolution)}")
    if name == Convolution.ONNXRUNTIME and not onnxruntime_installed():
        raise UsageError(
            "onnxruntime is asked for convolutions and not installed",
            remedy="install it with `pip install 'cleave-plan[ort]'`, or let NumPy compute them",
        )
    return Convolution(name)


def takes(work: Work) -> bool:
    """Whether onnxruntime computes tiles of ``work``, if its kernels are constant."""
    if not isinstance(work, Product) or work.window is None or work.grid is not None or work.coding is not None:
        return False
    return {work.a_dtype, work.b_dtype, work.out_dtype} == {DType.FLOAT32}


class _Recipe(NamedTuple):
    """What a session computes: ranges of groups and columns of the kernels called ``kernels``, with ``pads`` around the input
    (begins, then ends), the bytes of their bias, whether something is added, the bounds, and what lies in blocks."""

    kernels: Hashable
    window: ConvWindow
    groups: tuple[int, int]
    columns: tuple[int, int]
    pads: tuple[int, ...]
    bias: bytes
    adds: bool
    epilogue: Epilogue
    blocks: Blocks


class Convolver:
    """Computes tiles, and keeps a session with packed kernels for each range of kernels that it has met."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[_Recipe, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def run_into(self, product: Product, operands: Sequence[Array | None], box: Box, whole: Array, *, kernels: Hashable) -> int:
        """Compute the tile ``box`` of a product that :func:`takes` where it belongs in ``whole``; the bytes that it reads of
        ``operands``.

        ``kernels`` names the numbers of the kernels: jobs with the same name have the same ones. Raises ValueError when the box
        leaves the product.
        """
        window, pieces, (a, b, *_) = product.window, product.pieces(operands, box), operands
        assert window is not None
        assert a is not None
        assert b is not None
        if 0 in box.result_shape:
            return pieces.nbytes
        bias, addend = (None, None) if product.epilogue is None else operands[-2:]
        target = target_of(product, box, whole, addend)
        weights, bias = b[box.batch, :, target.columns], None if bias is None else bias[box.batch, target.columns]
        recipe = _Recipe(
            kernels=kernels, window=window, groups=(box.batch_start, box.batch_stop),
            columns=(target.columns.start, target.columns.stop), pads=(), bias=b"" if bias is None else bias.tobytes(),
            adds=addend is not None, epilogue=product.epilogue or NOTHING_MORE, blocks=product.blocks,
        )  # fmt: skip
        images_in = opened(a, product.blocks.size) if product.blocks.a else a
        for place, piece in zip(image_ranges(window, box.rows), pieces.a, strict=True):
            if place.positions == window.rows_per_image:
                images, pads = whole_images(window, images_in, place, box.batch), _pads(window)
            else:
                images, pads = padded_piece(window, piece, place), (0,) * 2 * len(window.kernel)
            session = self._session(recipe._replace(pads=pads), weights)
            _run_images(session, window, place, images, target)
        return pieces.nbytes

    def _session(self, recipe: _Recipe, weights: Array) -> Any:
        """The session for a recipe; ``weights`` [groups, K, columns] are those that it names."""
        if recipe in self._sessions:
            self._sessions.move_to_end(recipe)
            return self._sessions[recipe][0]
        self._sessions[recipe] = session, size = _session(recipe, weights), weights.nbytes
        self._bytes += size
        while self._bytes > KEPT_BYTES and len(self._sessions) > 1:
            self._bytes -= self._sessions.popitem(last=False)[1][1]
        return session


def _pads(window: ConvWindow) -> tuple[int, ...]:
    """Padding around a whole image, begins and then ends; what lies beyond the last window counts as none."""
    sides = zip(window.input, window.output, window.kernel, window.strides, window.dilations, window.pads, strict=True)
    ends = [(n - 1) * step + (size - 1) * apart + 1 - length - begin for length, n, size, step, apart, begin in sides]
    return (*window.pads, *(max(0, end) for end in ends))


def _run_images(session: Any, window: ConvWindow, place: ImageRange, images: Array, target: Target) -> None:
    """Run a session on ``images``, from which it gives the positions ``place`` and, of parts of an image, some around them."""
    sizes = (
        window.output
        if place.positions == window.rows_per_image
        else span_sizes(window, images.shape[2 : 2 + len(window.kernel)])
    )
    skipped = skipped_positions(place, sizes)
    span = place._replace(first=place.first - skipped, last=place.first - skipped + prod(sizes) - 1)
    step = target.images_at_once(span)
    for first in range(place.start, place.stop, step):
        end = min(first + step, place.stop)
        own = target.room(span, first, end)
        in_place = span == place and target.exact and own.flags.c_contiguous
        result = own if in_place else np.empty(own.shape, own.dtype)
        binding = session.io_binding()
        part = np.ascontiguousarray(images[first - place.start : end - place.start])
        # What lies in blocks has the shape of the images that it holds.
        binding.bind_cpu_input("x", part.reshape(end - first, -1, *part.shape[2 : 2 + len(sizes)]))
        shape = (end - first, result.size // (end - first) // prod(sizes), *sizes)
        if target.addend is not None:
            binding.bind_cpu_input("r", np.ascontiguousarray(target.addend(span, first, end)).reshape(shape))
        binding.bind_output("y", "cpu", 0, np.float32, shape, result.__array_interface__["data"][0])
        session.run_with_iobinding(binding)
        if not in_place:
            target.put(place, first, end, result, skipped)


def _session(recipe: _Recipe, weights: Array) -> Any:
    """A convolution and what follows it, on one thread, with ``weights`` [groups, K, columns] packed."""
    inputs, rank = ["x", "r"] if recipe.adds else ["x"], len(recipe.window.kernel) + 2
    bias = np.frombuffer(recipe.bias, np.float32) if recipe.bias else None
    if recipe.blocks != PLAIN:
        nodes, constants = conv_nodes(
            recipe.window, recipe.pads, weights, bias, recipe.epilogue, recipe.blocks, adds=recipe.adds
        )  # fmt: skip
    else:
        nodes, constants = _standard_nodes(recipe, weights, bias)
    return session_of(nodes, inputs, constants, rank=rank)


def _standard_nodes(recipe: _Recipe, weights: Array, bias: Array | None) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """The operators of the ONNX standard that make y of x and r, and their constants."""
    window, epilogue = recipe.window, recipe.epilogue
    groups = weights.shape[0]
    constants = {"w": np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(-1, window.channels, *window.kernel)}
    if bias is not None:
        constants["b"] = bias
    nodes = [
        helper.make_node(
            "Conv", ["x", *constants], ["sums"], group=groups, kernel_shape=window.kernel, strides=window.strides,
            dilations=window.dilations, pads=recipe.pads,
        )
    ]  # fmt: skip
    if recipe.adds:
        nodes.append(helper.make_node("Add", ["sums", "r"], ["added"]))
    return ended(nodes, epilogue, constants)
