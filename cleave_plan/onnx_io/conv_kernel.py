"""Tiles of convolutions by onnxruntime's Conv, whose kernels are packed once, which needs no im2col, and which finishes results
(bias, addend, bounds) while they are in the cache.

It takes float32 whose kernels are the same in every run. All else is computed by NumPy (:mod:`cleave_plan.kernels.conv`): other
element types, for most of which onnxruntime has no Conv on a CPU, and products on a grid, whose bits are promised. Whole images
are read and written where they are; of parts of images onnxruntime is given a copy, because it takes dense arrays only.

onnxruntime is imported when the first tile is computed: what imports this module need not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.conv import (
    FEW_POSITIONS,
    ImageRange,
    Rooms,
    image_ranges,
    padded_piece,
    skipped_positions,
    span_sizes,
    whole_images,
)
from cleave_plan.kernels.epilogue import NOTHING_MORE, RELU, Epilogue
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.onnx_io.ort_session import session_options
from cleave_plan.onnx_io.runtime import onnxruntime_installed
from cleave_plan.workload.gemm import ConvWindow

KEPT_BYTES = 512 << 20
"""Bytes of kernels, as the model has them, whose packed copies a worker keeps; those used longest ago go first."""

_OPSET, _IR = 13, 8


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
    (begins, then ends), the bytes of their bias, whether something is added, and the bounds."""

    kernels: Hashable
    window: ConvWindow
    groups: tuple[int, int]
    columns: tuple[int, int]
    pads: tuple[int, ...]
    bias: bytes
    adds: bool
    epilogue: Epilogue


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
        window, pieces, a = product.window, product.pieces(operands, box), operands[0]
        assert window is not None
        assert a is not None
        if 0 in box.result_shape:
            return pieces.nbytes
        bias, addend = (None, None) if product.epilogue is None else product.beside(operands, box)
        recipe = _Recipe(
            kernels=kernels, window=window, groups=(box.batch_start, box.batch_stop), columns=(box.n_start, box.n_stop), pads=(),
            bias=b"" if bias is None else bias.tobytes(), adds=addend is not None, epilogue=product.epilogue or NOTHING_MORE,
        )  # fmt: skip
        rooms = product.rooms(whole, box)
        for place, piece in zip(image_ranges(window, box.rows), pieces.a, strict=True):
            if place.positions == window.rows_per_image:
                images, pads = whole_images(window, a, place, box.batch), _pads(window)
            else:
                images, pads = padded_piece(window, piece, place), (0,) * 2 * len(window.kernel)
            session = self._session(recipe._replace(pads=pads), pieces.b)
            _run_images(session, window, place, images, rooms, addend)
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


def _run_images(session: Any, window: ConvWindow, place: ImageRange, images: Array, rooms: Rooms, addend: Rooms | None) -> None:
    """Run a session on ``images``, from which it gives the positions ``place`` and, of parts of an image, some around them."""
    sizes = window.output if place.positions == window.rows_per_image else span_sizes(window, images.shape[2:])
    skipped = skipped_positions(place, sizes)
    span = place._replace(first=place.first - skipped, last=place.first - skipped + prod(sizes) - 1)
    step = max(1, FEW_POSITIONS // place.positions)
    for first in range(place.start, place.stop, step):
        end = min(first + step, place.stop)
        room, own = rooms(place, first, end), rooms(span, first, end)
        shape = (end - first, own.shape[1] * own.shape[2], *sizes)
        in_place = span == place and own.flags.c_contiguous
        result = own if in_place else np.empty(own.shape, own.dtype)
        binding = session.io_binding()
        inputs = [np.ascontiguousarray(images[first - place.start : end - place.start])]
        inputs += [] if addend is None else [np.ascontiguousarray(addend(span, first, end)).reshape(shape)]
        for name, array in zip("xr", inputs, strict=False):
            binding.bind_cpu_input(name, array)
        binding.bind_output("y", "cpu", 0, np.float32, shape, result.__array_interface__["data"][0])
        session.run_with_iobinding(binding)
        if not in_place:
            room[...] = result[..., skipped : skipped + place.positions]


def _session(recipe: _Recipe, weights: Array) -> Any:
    """A convolution and what follows it, on one thread, with ``weights`` [groups, K, columns] packed."""
    import onnxruntime

    window, epilogue = recipe.window, recipe.epilogue
    groups = weights.shape[0]
    constants = {"w": np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(-1, window.channels, *window.kernel)}
    if recipe.bias:
        constants["b"] = np.frombuffer(recipe.bias, np.float32)
    nodes = [
        helper.make_node(
            "Conv", ["x", *constants], ["sums"], group=groups, kernel_shape=window.kernel, strides=window.strides,
            dilations=window.dilations, pads=recipe.pads,
        )
    ]  # fmt: skip
    if recipe.adds:
        nodes.append(helper.make_node("Add", ["sums", "r"], ["added"]))
    last = nodes[-1].output[0]
    if epilogue == RELU:
        nodes.append(helper.make_node("Relu", [last], ["y"]))
    elif epilogue.bounded:
        constants |= {"low": np.array(epilogue.low, np.float32), "high": np.array(epilogue.high, np.float32)}
        nodes.append(helper.make_node("Clip", [last, "low", "high"], ["y"]))
    nodes[-1].output[0] = "y"
    rank = len(window.kernel) + 2
    x, r, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in "xry")
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tile", [x, r] if recipe.adds else [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    options = session_options(onnxruntime)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL  # kernels in onnxruntime's own layout
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
