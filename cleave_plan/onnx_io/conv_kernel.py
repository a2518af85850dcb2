"""Tiles of convolutions by onnxruntime's Conv, whose kernels are packed once and which needs no im2col.

It takes float32 whose kernels have more than one position and are the same in every run. All else is computed by NumPy
(:mod:`cleave_plan.kernels.conv`): other element types, for most of which onnxruntime has no Conv on a CPU; kernels of one
position, where the image is the matrix already; and products on a grid, whose bits are promised.

onnxruntime is imported when the first tile is computed: what imports this module need not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import Work
from cleave_plan.kernels.conv import padded_pieces, rooms_of_tile, skipped_positions
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
    kinds = {work.a_dtype, work.b_dtype, work.out_dtype}
    return kinds == {DType.FLOAT32} and prod(work.window.kernel) > 1


class Convolver:
    """Computes tiles, and keeps a session with packed kernels for each range of kernels that it has met."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
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
        groups = box.batch_stop - box.batch_start
        if 0 in box.result_shape:
            return pieces.nbytes
        session = self._session((kernels, window, box.batch_start, box.batch_stop, box.n_start, box.n_stop), window, pieces.b)
        rooms = product.rooms(out, box) if in_place else rooms_of_tile(out, window, box.rows)
        for place, padded in padded_pieces(window, pieces.a, box.rows):
            (found,) = session.run(None, {"x": np.ascontiguousarray(padded)})
            skipped = skipped_positions(place, found.shape[2:])
            by_group = found.reshape(len(found), groups, found.shape[1] // groups, -1)
            rooms(place, place.start, place.stop)[...] = by_group[..., skipped : skipped + place.positions]
        return pieces.nbytes

    def _session(self, key: Hashable, window: ConvWindow, weights: Array) -> Any:
        """The session of some kernels, ``weights`` [groups, K, columns]."""
        if key in self._sessions:
            self._sessions.move_to_end(key)
            return self._sessions[key][0]
        self._sessions[key] = session, size = _session(window, weights), weights.nbytes
        self._bytes += size
        while self._bytes > KEPT_BYTES and len(self._sessions) > 1:
            self._bytes -= self._sessions.popitem(last=False)[1][1]
        return session


def _session(window: ConvWindow, weights: Array) -> Any:
    """A convolution without padding, on one thread, with ``weights`` [groups, K, columns] packed."""
    import onnxruntime

    groups, _, columns = weights.shape
    kernels = np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(groups * columns, window.channels, *window.kernel)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], group=groups, kernel_shape=window.kernel, strides=window.strides, dilations=window.dilations
    )
    rank = len(window.kernel) + 2
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name in "xy")
    graph = helper.make_graph([node], "tile", [x], [y], [numpy_helper.from_array(kernels, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    options = session_options(onnxruntime)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL  # kernels in onnxruntime's own layout
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
