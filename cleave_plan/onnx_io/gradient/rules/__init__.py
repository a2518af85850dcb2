"""One gradient rule per operator, by family; importing this package registers all of them (``RULES``).

In formulas dY is the gradient of the loss with respect to Y, the operator's output; products without a sign are elementwise.
"""

from cleave_plan.onnx_io.gradient.rule import RULES
from cleave_plan.onnx_io.gradient.rules import (
    activations,
    arithmetic,
    convolution,
    einsum,
    indexing,
    linear,
    normalisation,
    pooling,
    reduction,
    scan,
    shape,
)

__all__ = [
    "RULES", "activations", "arithmetic", "convolution", "einsum", "indexing", "linear", "normalisation", "pooling", "reduction",
    "scan", "shape",
]  # fmt: skip
