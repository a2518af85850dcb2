"""Operators of ``onnx.reference`` whose results differ from the ONNX standard, corrected through its ``new_ops`` hook."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper
from onnx.reference.op_run import OpRun
from scipy import special

from cleave_plan.onnx_io.reference_pool import POOLS
from cleave_plan.onnx_io.rules.transposed import Placement

Array = NDArray[Any]


class BatchNormalization(OpRun):  # type: ignore[misc]
    """Inference uses the stored statistics in every operator set; onnx.reference takes those of the batch before 14."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, **attributes: Any) -> tuple[Array, ...]:
        across = (1, -1, *(1,) * (x.ndim - 2))
        momentum = attributes["momentum"]
        if not attributes.get("training_mode"):
            return (self._normalise(x, scale, bias, mean.reshape(across), variance.reshape(across)),)
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        batch_mean, batch_variance = wide.mean(axis=axes), wide.var(axis=axes)
        return (
            self._normalise(x, scale, bias, batch_mean.reshape(across), batch_variance.reshape(across)),
            (mean * momentum + batch_mean * (1 - momentum)).astype(mean.dtype),
            (variance * momentum + batch_variance * (1 - momentum)).astype(variance.dtype),
        )

    def _normalise(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
        across = (1, -1, *(1,) * (x.ndim - 2))
        factor = scale.reshape(across) / np.sqrt(variance + np.array(self.epsilon, variance.dtype))
        normalised: Array = ((x - mean) * factor + bias.reshape(across)).astype(x.dtype)
        return normalised


class ConvTranspose(OpRun):  # type: ignore[misc]
    """With groups too, whose channels onnx.reference puts in wrong places."""

    op_domain = ""

    def _run(self, x: Array, w: Array, bias: Array | None = None, **_: Any) -> tuple[Array]:
        axes = x.ndim - 2
        placement = Placement.of(self.onnx_node, x.shape[2:], w.shape[2:])
        groups = placement.groups
        rows = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1).transpose(1, 0, 3, 2)
        kernels = w.reshape(groups, 1, w.shape[0] // groups, -1)
        apart = (rows @ kernels).reshape(groups, x.shape[0], *x.shape[2:], *w.shape[1:])
        # [groups, images, *input, channels, *kernel] -> [images, groups * channels, *input, *kernel]
        turned = apart.transpose(1, 0, 2 + axes, *range(2, 2 + axes), *range(3 + axes, 3 + 2 * axes))
        output = placement.add(turned.reshape(x.shape[0], groups * w.shape[1], *turned.shape[3:]))
        if bias is not None:
            output = output + bias.reshape(1, -1, *(1,) * axes)
        return (output.astype(x.dtype),)


class Erf(OpRun):  # type: ignore[misc]
    """In the precision of its input; onnx.reference rounds to float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        return (np.asarray(special.erf(wide)).astype(x.dtype),)


class Gelu(OpRun):  # type: ignore[misc]
    """In the precision of its input; onnx.reference's function body rounds erf to float32."""

    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        if approximate == "tanh":
            gate = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
        else:
            gate = special.erf(wide / np.sqrt(2))
        return (np.asarray(0.5 * wide * (1 + gate)).astype(x.dtype),)


class GatherElements(OpRun):  # type: ignore[misc]
    """``indices`` may be shorter than ``data`` on the other axes, and may be many along any axis."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        cut = tuple(slice(None) if place == axis else slice(size) for place, size in enumerate(indices.shape))
        return (np.take_along_axis(data[cut], indices.astype(np.int64), axis=axis),)


class Loop(OpRun):  # type: ignore[misc]
    """An absent condition is true, an absent trip count is no limit, and scan outputs get a new first axis."""

    op_domain = ""

    def need_context(self) -> bool:
        """The body may read the tensors around it."""
        return True

    def _run(
        self, trips: Array | None = None, condition: Array | None = None, *carried: Any,
        context: Mapping[str, Any] | None = None, attributes: Mapping[str, Any] | None = None, **_: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        names, state = self.body.input_names, list(carried)
        scanned: list[list[Array]] = [[] for _ in self.body.output_names[1 + len(state) :]]
        limit = None if trips is None else int(np.asarray(trips).item())
        going = condition is None or bool(np.asarray(condition).item())
        step = 0
        while going and (limit is None or step < limit):
            values = {**(context or {}), names[0]: np.array(step, np.int64), names[1]: np.array(True)}
            values.update(zip(names[2:], state, strict=True))
            condition, *results = self._run_body(values, attributes=attributes)
            going = bool(np.asarray(condition).item())
            for collected, value in zip(scanned, results[len(state) :], strict=True):
                collected.append(value)
            state = results[: len(state)]
            step += 1
        declared = self.body.output_types_[1 + len(state) :]
        stacked = [np.stack(rows) if rows else _no_rows(kind) for rows, kind in zip(scanned, declared, strict=True)]
        return (*state, *stacked)


def _no_rows(declared: Any) -> Array:
    """A scan output after no iteration: 0 along the new axis, the declared sizes (0 where unknown) after it."""
    tensor = declared.tensor_type
    return np.empty((0, *(size.dim_value for size in tensor.shape.dim)), helper.tensor_dtype_to_np_dtype(tensor.elem_type))


class Unsqueeze(OpRun):  # type: ignore[misc]
    """Axes may stand in any order."""

    op_domain = ""

    def _run(self, data: Array, axes: Any = None) -> tuple[Array]:
        return (np.expand_dims(data, tuple(int(axis) for axis in np.atleast_1d(axes))),)


class _OfRows(OpRun):  # type: ignore[misc]
    """Before operator set 13, softmax and its kin work on the input as a matrix: axes from ``axis`` (default 1) on are one."""

    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        axis = next((attribute.i for attribute in self.onnx_node.attribute if attribute.name == "axis"), 1) % max(x.ndim, 1)
        rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
        return (self.of_rows(rows).astype(x.dtype).reshape(x.shape) if x.size else x,)

    def of_rows(self, rows: Array) -> Array:
        """The operator on a matrix, row by row."""
        raise NotImplementedError


class Softmax(_OfRows):
    """exp(x) / sum exp(x)."""

    def of_rows(self, rows: Array) -> Array:
        """Each row adds up to 1."""
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        normalised: Array = powers / powers.sum(axis=1, keepdims=True)
        return normalised


class LogSoftmax(_OfRows):
    """x - log sum exp(x)."""

    def of_rows(self, rows: Array) -> Array:
        """The logarithm of :class:`Softmax`, without its underflow."""
        shifted = rows - rows.max(axis=1, keepdims=True)
        logarithms: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return logarithms


class Hardmax(_OfRows):
    """1 at the first largest element, 0 elsewhere."""

    def of_rows(self, rows: Array) -> Array:
        """One 1 in each row."""
        ones: Array = np.eye(rows.shape[1])[rows.argmax(axis=1)]
        return ones


class DequantizeLinear(OpRun):  # type: ignore[misc]
    """(x - zero point) * scale, per tensor or along an axis: onnx.reference has it from operator set 19 on only."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, zero: Array | None = None, axis: int = 1, **_: Any) -> tuple[Array]:
        shape = [1] * x.ndim
        if scale.size > 1:
            shape[axis % x.ndim] = scale.size
        shift = 0 if zero is None else zero.astype(np.int32).reshape(shape)
        return (((x.astype(np.int32) - shift).astype(scale.dtype) * scale.reshape(shape)).astype(scale.dtype),)


_ALWAYS = [BatchNormalization, ConvTranspose, Erf, GatherElements, Gelu, Loop, Unsqueeze, *POOLS]
_BEFORE = {13: [Softmax, LogSoftmax, Hardmax], 19: [DequantizeLinear]}


def corrections(opset: int) -> list[type]:
    """For ``ReferenceEvaluator(new_ops=...)`` of a model of this version of the standard operator set."""
    return [*_ALWAYS, *(operator for version, operators in _BEFORE.items() if opset < version for operator in operators)]
