"""Tiles of convolutions by onnxruntime's Conv, whose kernels are packed once, which needs no im2col, and which finishes results
(bias, addend, bounds) while they are in the cache.

It takes float32 whose kernels are the same in every run. All else is computed by NumPy (:mod:`cleave_plan.kernels.conv`): other
element types, for most of which onnxruntime has no Conv on a CPU, and products on a grid, whose bits are promised. Whole images
are read and written where they are; of parts of images onnxruntime is given a copy, because it takes dense arrays only.
Images may lie in blocks of channels (:mod:`cleave_plan.onnx_io.blocked_tiles`).

onnxruntime is imported when the first tile is computed: what imports this module need not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.channel_blocks import PLAIN
from cleave_plan.kernels.conv import image_ranges, padded_piece, span_sizes, whole_images
from cleave_plan.kernels.epilogue import NOTHING_MORE, Epilogue
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.blocked_conv import ended, session_of
from cleave_plan.onnx_io.blocked_tiles import BlockConvolver
from cleave_plan.onnx_io.conv_runs import Reach, has_whole_images, pads_around, run
from cleave_plan.onnx_io.conv_target import target_of
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
    """What a session of the standard's operators computes: ranges of groups and columns of the kernels called ``kernels``, with
    ``pads`` around the input (begins, then ends), the bytes of their bias, whether something is added, and the bounds."""

    kernels: Hashable
    window: ConvWindow
    groups: tuple[int, int]
    columns: tuple[int, int]
    pads: tuple[int, ...]
    bias: bytes
    adds: bool
    epilogue: Epilogue


class Convolver:
    """Computes tiles, and keeps sessions and packed kernels that it has met."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._blocks = BlockConvolver(self._keep)

    def run_into(self, product: Product, operands: Sequence[Array | None], box: Box, whole: Array, *, kernels: Hashable) -> int:
        """Compute the tile ``box`` of a product that :func:`takes` where it belongs in ``whole``; the bytes that it reads of
        ``operands``.

        ``kernels`` names the numbers of the kernels: jobs with the same name have the same ones. Raises ValueError when the box
        leaves the product.
        """
        window, (a, b) = product.window, operands[:2]
        assert window is not None
        assert a is not None
        assert b is not None
        if 0 in box.result_shape:
            return product.pieces(operands, box).nbytes
        if product.epilogue is not None and product.epilogue.parts:
            for columns, epilogue in product.epilogue.within(box.columns):
                part = box._replace(n_start=columns.start, n_stop=columns.stop)
                self.run_into(_with_epilogue(product, epilogue), operands, part, whole, kernels=kernels)
            return product.pieces(operands, box).nbytes
        if product.blocks != PLAIN:
            return self._blocks.run_into(product, operands, box, whole, kernels=kernels)
        pieces, bias = product.pieces(operands, box), None if product.epilogue is None else operands[-2]
        weights, target = b[box.batch, :, box.columns], target_of(product, box, whole, operands[-1] if product.epilogue else None)
        recipe = _Recipe(
            kernels=kernels, window=window, groups=(box.batch_start, box.batch_stop), columns=(box.n_start, box.n_stop), pads=(),
            bias=b"" if bias is None else bias[box.batch, box.columns].tobytes(), adds=target.addend is not None,
            epilogue=product.epilogue or NOTHING_MORE,
        )  # fmt: skip
        for place, piece in zip(image_ranges(window, box.rows), pieces.a, strict=True):
            if has_whole_images(window, place):
                images, pads, sizes = whole_images(window, a, place, box.batch), pads_around(window, place), window.output
            else:
                images, pads = padded_piece(window, piece, place), (0,) * 2 * len(window.kernel)
                sizes = span_sizes(window, images.shape[2:])
            own = recipe._replace(pads=pads)
            session = self._keep(own, partial(_session, own, weights), weights.nbytes)
            run(session, {}, Reach.of(place, sizes), images, target)
        return pieces.nbytes

    def _keep(self, name: Hashable, make: Callable[[], Any], nbytes: int) -> Any:
        """What is called ``name``, made where it is not kept from before."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name][0]
        self._kept[name] = made, _ = make(), nbytes
        self._bytes += nbytes
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return made


@cache
def _with_epilogue(product: Product, epilogue: Epilogue) -> Product:
    """The product with another epilogue; the same object for the same product."""
    return replace(product, epilogue=epilogue)


def _session(recipe: _Recipe, weights: Array) -> Any:
    """A convolution and what follows it, with ``weights`` [groups, K, columns] packed."""
    nodes, constants = _standard_nodes(recipe, weights, np.frombuffer(recipe.bias, np.float32) if recipe.bias else None)
    return session_of(nodes, ["x", "r"] if recipe.adds else ["x"], constants, rank=len(recipe.window.kernel) + 2)


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
