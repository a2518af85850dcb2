"""Losses: from an output of the graph to a scalar, and the gradient of that scalar with respect to the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from cleave_plan.errors import UsageError
from cleave_plan.onnx_io.facts import Dim, Fact
from cleave_plan.onnx_io.gradient.tensor import Tensor, wide

INT64 = onnx.TensorProto.INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """What is minimised.

    ``kind``: "cross-entropy", "mse" or "output:NAME" (a scalar output of the graph). ``output``: the output that the first two
    look at (default: the first). ``target``: the name of the input for labels or values. ``ignore_index``: the label of what does
    not count; ``label_smoothing``: the share of probability that is spread over all classes; ``class_axis``: the axis of the
    logits that holds the classes.
    """

    kind: str = "cross-entropy"
    output: str = ""
    target: str = "target"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    class_axis: int = -1


def target_fact(spec: LossSpec, prediction: Tensor) -> Fact:
    """Type and shape of the target input: labels of int64 without the class axis, or values like the prediction."""
    shape = prediction.shape
    if spec.kind == "mse":
        return Fact(elem=prediction.elem, shape=shape)
    if shape is None or not shape:
        raise UsageError(
            f"the output {prediction.name!r} has no axis for classes", where="--loss cross-entropy", expected="logits",
            remedy="name another output with --output",
        )  # fmt: skip
    axis = class_axis(spec, prediction)
    return Fact(elem=INT64, shape=tuple(size for place, size in enumerate(shape) if place != axis))


def class_axis(spec: LossSpec, prediction: Tensor) -> int:
    """The class axis counted from 0; raises UsageError when the output does not have it."""
    if not -prediction.rank <= spec.class_axis < prediction.rank:
        raise UsageError(
            f"the output {prediction.name!r} has {prediction.rank} axes", where=f"--class-axis {spec.class_axis}",
            expected=f"an axis from {-prediction.rank} to {prediction.rank - 1}",
        )  # fmt: skip
    return spec.class_axis % prediction.rank


def cross_entropy(spec: LossSpec, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """L = -Σ_r v_r Σ_c q_rc log p_rc / n and its gradient dX = v (p - q) / n.

    p = softmax X over the classes c; q_rc = (1 - s) [c = t_r] + s / C, s the label smoothing; v_r = 0 where t_r is the ignored
    index, else 1; n = Σ v (at least 1, so that a batch in which nothing counts gives 0 and not 0/0). Computed in float32
    or wider.
    """
    axis = class_axis(spec, logits)
    x = wide(logits)
    smoothing = spec.label_smoothing
    counted = target.equals(target.constant(np.int64(spec.ignore_index))).op("Not")
    label = target.where(counted).op("Unsqueeze", x.ints(axis))
    valid = counted.cast(x.elem).op("Unsqueeze", x.ints(axis))
    number = valid.op("ReduceSum", keepdims=0).op("Max", x.like(1))
    log_p = x.op("LogSoftmax", axis=axis)
    picked = log_p.op("GatherElements", label, axis=axis) * (1 - smoothing)
    if smoothing:
        picked = picked + log_p.mean(axis) * smoothing
    loss = -(picked * valid).op("ReduceSum", keepdims=0) / number

    weight = valid / number
    p = log_p.exp()
    if smoothing:
        p = p - smoothing / x.count_along([axis], x.elem)
    at_label = p.op("GatherElements", label, axis=axis) - (1 - smoothing)
    gradient = p.op("ScatterElements", label, at_label, axis=axis) * weight
    return loss, gradient.cast(logits.elem)


def mean_squared_error(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """L = Σ (X - T)² / n over all n elements, dX = 2 (X - T) / n."""
    apart = wide(prediction) - wide(target)
    number = apart.op("Size").cast(apart.elem)
    loss = (apart * apart).op("ReduceSum", keepdims=0) / number
    return loss, (apart * (apart.like(2) / number)).cast(prediction.elem)


def scalar_output(output: Tensor) -> tuple[Tensor, Tensor]:
    """L = the output, its gradient 1; raises UsageError when it holds more than one number."""
    shape = output.shape
    if shape is None or any(size != 1 for size in shape):
        raise UsageError(
            f"the output {output.name!r} is not a single number but {_text(shape)}", where=f"--loss output:{output.name}",
            expected="a scalar output", remedy="take cross-entropy or mse, or add a reduction to the model",
        )  # fmt: skip
    one = output.constant(np.ones([1] * len(shape), output.numpy_type))
    return output, one


def _text(shape: tuple[Dim, ...] | None) -> str:
    return (
        "of unknown shape" if shape is None else f"of shape [{', '.join('?' if size is None else str(size) for size in shape)}]"
    )
