"""The activation that onnxruntime fuses into a Gemm or Conv, applied to the whole result by the server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from cleave_plan.onnx_io.attributes import get_float, get_floats, get_string
from cleave_plan.onnx_io.rules.forms import Array, in_type

_ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "": lambda x, a, b: x,
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Clip": lambda x, a, b: np.clip(x, a, b),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "Softplus": lambda x, a, b: np.logaddexp(x, 0),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "ParametricSoftplus": lambda x, a, b: a * np.logaddexp(b * x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
}  # fmt: skip


def known_activation(node: onnx.NodeProto) -> bool:
    """Whether the node's activation is one that the server can apply."""
    return get_string(node, "activation", "") in _ACTIVATIONS


def activate(node: onnx.NodeProto, array: Array) -> Array:
    """``array`` after the node's activation, in its own type.

    FusedGemm has its parameters as activation_alpha, activation_beta and activation_gamma, FusedConv as activation_params.
    """
    name = get_string(node, "activation", "")
    if not name:
        return array
    first, second = (*get_floats(node, "activation_params"), 0.0, 0.0)[:2]
    alpha, beta = get_float(node, "activation_alpha", first), get_float(node, "activation_beta", second)
    wide = np.promote_types(array.dtype, np.float32)
    return in_type(_ACTIVATIONS[name](array.astype(wide), wide.type(alpha), wide.type(beta)), array.dtype)
