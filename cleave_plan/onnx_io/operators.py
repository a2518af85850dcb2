"""Which operators are matrix work, and what work: one rule per operator, all of them in RULES.

A rule gets a node whose input shapes are known and answers with a :class:`Form`: the canonical GEMM of
:mod:`cleave_plan.workload.gemm`, and which inputs of the node are its operands. A new operator is one function and one
entry. Operators that hold matrix work but have no rule (:mod:`matrix_work`) run on the server and are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import onnx

from cleave_plan.onnx_io.attributes import get_int, subgraphs
from cleave_plan.onnx_io.convolution import Convolution
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.onnx_io.matrix_work import domain_of, may_hold_matrix_work
from cleave_plan.workload.gemm import ConvWindow, GemmShape

Sizes = Sequence[tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A node as one canonical GEMM; ``a`` and ``b`` are the places of the operands among the node's inputs."""

    shape: GemmShape
    a: int = 0
    b: int = 1
    window: ConvWindow | None = None


Rule = Callable[[onnx.NodeProto, Sizes], Form]


def _matmul(node: onnx.NodeProto, sizes: Sizes) -> Form:
    """MatMul as NumPy does it: 1-D operands are a row (A) or a column (B), leading axes broadcast.

    Leading axes that both operands have are the batch, those of A alone lengthen M, those of B alone lengthen N.
    """
    a, b = _needed(sizes, 0), _needed(sizes, 1)
    if not a or not b:
        raise ShapeContradictionError("a scalar cannot be a MatMul operand")
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if a[-1] != b[-2]:
        raise ShapeContradictionError(f"inner sizes differ: {a[-1]} and {b[-2]}")
    rank = max(len(a), len(b)) - 2
    lead_a = (1,) * (rank + 2 - len(a)) + a[:-2]
    lead_b = (1,) * (rank + 2 - len(b)) + b[:-2]
    batch, m, n = 1, a[-2], b[-1]
    for from_a, from_b in zip(lead_a, lead_b, strict=True):
        if from_a == from_b:
            batch *= from_a
        elif from_b == 1:
            m *= from_a
        elif from_a == 1:
            n *= from_b
        else:
            raise ShapeContradictionError(f"leading sizes {lead_a} and {lead_b} do not broadcast")
    return Form(shape=GemmShape(batch, m, a[-1], n))


def _gemm(node: onnx.NodeProto, sizes: Sizes) -> Form:
    """Gemm: transposed operands are counted as they are used; alpha, beta and C are no matrix work."""
    a, b = _needed(sizes, 0), _needed(sizes, 1)
    if len(a) != 2 or len(b) != 2:
        raise ShapeContradictionError(f"Gemm needs matrices, these have {len(a)} and {len(b)} axes")
    m, k = reversed(a) if get_int(node, "transA", 0) else a
    k_of_b, n = reversed(b) if get_int(node, "transB", 0) else b
    if k != k_of_b:
        raise ShapeContradictionError(f"inner sizes differ: {k} and {k_of_b}")
    return Form(shape=GemmShape(1, m, k, n))


def _conv(node: onnx.NodeProto, sizes: Sizes) -> Form:
    """Conv of 1 to 3 (or more) spatial axes; one GEMM per group."""
    x, w = _needed(sizes, 0), _needed(sizes, 1)
    if len(x) < 3 or len(w) != len(x):
        raise ShapeContradictionError(f"Conv needs input and weights of one rank above 2, these have {len(x)} and {len(w)} axes")
    geometry = Convolution.of(node, len(x) - 2)
    images, channels, kernel = x[0], w[1], w[2:]
    if x[1] != channels * geometry.groups or w[0] % geometry.groups:
        raise ShapeContradictionError(
            f"{x[1]} input and {w[0]} output channels do not fit weights for {channels} channels in {geometry.groups} groups"
        )
    places = [geometry.axis(axis, size, kernel[axis]) for axis, size in enumerate(x[2:])]
    window = ConvWindow(
        images=images, channels=channels, input=x[2:], output=tuple(size for size, _ in places if isinstance(size, int)),
        kernel=kernel, strides=geometry.strides, dilations=geometry.dilations, pads=tuple(begin for _, begin in places),
    )  # fmt: skip
    return Form(
        shape=GemmShape(geometry.groups, images * prod(window.output), channels * prod(kernel), w[0] // geometry.groups),
        window=window,
    )


def _needed(sizes: Sizes, place: int) -> tuple[int, ...]:
    found = sizes[place] if place < len(sizes) else None
    if found is None:
        raise ShapeContradictionError(f"operand {place} is absent")
    return found


RULES: dict[tuple[str, str], Rule] = {("", "MatMul"): _matmul, ("", "Gemm"): _gemm, ("", "Conv"): _conv}


def rule_of(node: onnx.NodeProto) -> Rule | None:
    """The rule of the node's operator, None when it has none."""
    return RULES.get((domain_of(node), node.op_type))


def has_uncounted_matrix_work(node: onnx.NodeProto) -> bool:
    """Whether the node, or anything in its subgraphs, holds (or may hold) matrix work that no GEMM of the workload counts."""
    if rule_of(node) is not None:
        return False
    if may_hold_matrix_work(node):
        return True
    return any(
        rule_of(inner) is not None or has_uncounted_matrix_work(inner) for graph in subgraphs(node) for inner in graph.node
    )
