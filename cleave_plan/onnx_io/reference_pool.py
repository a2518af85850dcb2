"""Pooling for ``onnx.reference``, whose own goes through positions one by one in Python and misses some forms.

One way for all of them: pad, look at the input through sliding windows, and reduce each window at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]


class _Windows:
    """Where the windows of a pooling node lie over an input of spatial ``sizes``; one entry per axis in each list."""

    def __init__(self, node: Any, sizes: Sequence[int]) -> None:
        axes = len(sizes)
        self.kernel = list(node.kernel_shape)
        self.strides = list(node.strides or [1] * axes)
        self.dilations = list(getattr(node, "dilations", None) or [1] * axes)
        pads = list(node.pads or [0] * (2 * axes))
        mode = node.auto_pad or "NOTSET"
        mode = mode.decode() if isinstance(mode, bytes) else mode
        self.begin, self.end, self.output = pads[:axes], pads[axes:], [0] * axes
        for axis, size in enumerate(sizes):
            stride, reach = self.strides[axis], (self.kernel[axis] - 1) * self.dilations[axis] + 1
            if mode == "VALID":
                self.begin[axis] = self.end[axis] = 0
            if mode.startswith("SAME"):
                self.output[axis] = -(-size // stride)
                padding = max(0, (self.output[axis] - 1) * stride + reach - size)
                self.begin[axis] = padding // 2 if mode == "SAME_UPPER" else padding - padding // 2
                self.end[axis] = padding - self.begin[axis]
                continue
            room = size + self.begin[axis] + self.end[axis] - reach
            self.output[axis] = (-(-room // stride) if node.ceil_mode else room // stride) + 1
            # A window that would begin in the padding at the end does not count.
            if node.ceil_mode and (self.output[axis] - 1) * stride >= size + self.begin[axis]:
                self.output[axis] -= 1

    def over(self, x: Array, fill: Any) -> Array:
        """View [images, channels, *output, *kernel] of ``x`` [images, channels, *sizes] padded with ``fill``."""
        axes = len(self.kernel)
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        needed = [(out - 1) * step + span for out, step, span in zip(self.output, self.strides, reach, strict=True)]
        after = [max(0, need - size - pad) for need, size, pad in zip(needed, x.shape[2:], self.begin, strict=True)]
        padded = np.pad(x, [(0, 0), (0, 0), *zip(self.begin, after, strict=True)], constant_values=fill)
        view = sliding_window_view(padded, reach, axis=tuple(range(2, axes + 2)))
        picked = [slice(0, out * step, step) for out, step in zip(self.output, self.strides, strict=True)]
        return view[(slice(None), slice(None), *picked, *(slice(None, None, step) for step in self.dilations))]


class MaxPool(OpRun):  # type: ignore[misc]
    """Largest element of each window, and its place in the flattened input."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array, ...]:
        windows = _Windows(self, x.shape[2:])
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        seen = windows.over(x, lowest)
        flat = seen.reshape(*seen.shape[: x.ndim], -1)
        best = flat.max(axis=-1)
        if len(self.onnx_node.output) == 1:
            return (best,)
        inside = np.arange(prod(x.shape[2:])).reshape(x.shape[2:], order="F" if self.storage_order else "C")
        images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)) * inside.size
        places = windows.over(images + inside, -1).reshape(flat.shape)
        return best, np.take_along_axis(places, flat.argmax(axis=-1)[..., None], axis=-1)[..., 0]


class AveragePool(OpRun):  # type: ignore[misc]
    """Mean of each window, over the input alone or with its padding."""

    op_domain = ""

    def _run(self, x: Array, count_include_pad: int = 0, **_: Any) -> tuple[Array]:
        windows = _Windows(self, x.shape[2:])
        axes = tuple(range(x.ndim, 2 * x.ndim - 2))
        counted, counting = np.ones((1, 1, *x.shape[2:])), windows
        if count_include_pad:
            padding = list(zip(windows.begin, windows.end, strict=True))
            counted, counting = np.pad(counted, [(0, 0), (0, 0), *padding], constant_values=1), copy(windows)
            counting.begin = [0] * len(padding)
        number = counting.over(counted, 0).sum(axis=axes)
        total = windows.over(x.astype(np.promote_types(x.dtype, np.float32)), 0).sum(axis=axes)
        return ((total / number).astype(x.dtype),)


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """Largest element of each channel, for any number of axes."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


POOLS = [AveragePool, GlobalMaxPool, MaxPool]
