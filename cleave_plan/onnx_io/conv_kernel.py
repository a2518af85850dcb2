"""Tiles of convolutions by onnxruntime's Conv, whose kernels are packed once, which needs no im2col, and which finishes results
(bias, addend, bounds) while they are in the cache.

It takes float32 whose kernels are the same in every run. All else is computed by NumPy (:mod:`cleave_plan.kernels.conv`): other
element types, for most of which onnxruntime has no Conv on a CPU, and products on a grid, whose bits are promised. Whole images
are read and written where they are; of parts of images onnxruntime is given a copy, because it takes dense arrays only.

onnxruntime is imported when the first tile is computed: what imports this module need not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.conv import FEW_POSITIONS, padded_pieces, rooms_of_tile, skipped_positions, span_sizes
from cleave_plan.kernels.epilogue import NOTHING_MORE, RELU, Epilogue
from cleave_plan.kernels.tile import Box, Product, cut
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
    """What a session computes: ranges of groups and columns of the kernels called ``kernels``, the bytes of their bias, whether
    something is added, and the bounds."""

    kernels: Hashable
    window: ConvWindow
    groups: tuple[int, int]
    columns: tuple[int, int]
    bias: bytes
    adds: bool
    epilogue: Epilogue


class Convolver:
    """Computes tiles, and keeps a session with packed kernels for each range of kernels that it has met."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[_Recipe, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def run(
        self, product: Product, operands: Sequence[Array | None], box: Box, out: Array, *, in_place: bool, kernels: Hashable
    ) -> int:
        """Compute the tile ``box`` of a product that :func:`takes`; the bytes that it reads of ``operands``.

        ``out`` is the whole result with ``in_place``, else the tile's own. ``kernels`` names the numbers of the kernels: jobs
        with the same name have the same ones. Raises ValueError when the box leaves the product.
        """
        window, (a, b, *_) = product.window, operands
        assert window is not None
        assert a is not None
        assert b is not None
        pieces = cut(product, a, b, box)
        if 0 in box.result_shape:
            return pieces.nbytes
        bias, addend = (None, None) if product.epilogue is None else product.beside(operands, box)
        recipe = _Recipe(
            kernels=kernels, window=window, groups=(box.batch_start, box.batch_stop), columns=(box.n_start, box.n_stop),
            bias=b"" if bias is None else bias.tobytes(), adds=addend is not None, epilogue=product.epilogue or NOTHING_MORE,
        )  # fmt: skip
        session = self._session(recipe, pieces.b)
        rooms = product.rooms(out, box) if in_place else rooms_of_tile(out, window, box.rows)
        for place, padded in padded_pieces(window, pieces.a, box.rows):
            sizes = span_sizes(window, padded.shape[2:])
            skipped = skipped_positions(place, sizes)
            span = place._replace(first=place.first - skipped, last=place.first - skipped + prod(sizes) - 1)
            step = max(1, FEW_POSITIONS // place.positions)
            for first in range(place.start, place.stop, step):
                end = min(first + step, place.stop)
                feeds = {"x": padded[first - place.start : end - place.start]}
                if addend is not None:
                    feeds["r"] = addend(span, first, end)
                _run_into(session, feeds, sizes, rooms(place, first, end), skipped)
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


def _run_into(session: Any, feeds: Mapping[str, Array], sizes: Sequence[int], room: Array, skipped: int) -> None:
    """Run a session on images; of the positions ``sizes`` that it gives, those from ``skipped`` on go into ``room`` [images,
    groups, columns, positions]."""
    count, groups, columns, positions = room.shape
    shape = (count, groups * columns, *sizes)
    in_place = positions == prod(sizes) and room.flags.c_contiguous
    result = room if in_place else np.empty((count, groups, columns, prod(sizes)), room.dtype)
    binding = session.io_binding()
    dense = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    binding.bind_cpu_input("x", dense["x"])
    if "r" in dense:
        binding.bind_cpu_input("r", dense["r"].reshape(shape))
    binding.bind_output("y", "cpu", 0, np.float32, shape, result.__array_interface__["data"][0])
    session.run_with_iobinding(binding)
    if not in_place:
        room[...] = result[..., skipped : skipped + positions]


def _session(recipe: _Recipe, weights: Array) -> Any:
    """A convolution without padding and what follows it, on one thread, with ``weights`` [groups, K, columns] packed."""
    import onnxruntime

    window, epilogue = recipe.window, recipe.epilogue
    groups = weights.shape[0]
    constants = {"w": np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(-1, window.channels, *window.kernel)}
    if recipe.bias:
        constants["b"] = np.frombuffer(recipe.bias, np.float32)
    nodes = [
        helper.make_node(
            "Conv", ["x", *constants], ["sums"], group=groups, kernel_shape=window.kernel, strides=window.strides,
            dilations=window.dilations,
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
