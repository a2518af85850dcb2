"""What a rule says of a node: the GEMMs that it holds, and how it becomes one canonical product when devices compute it.

Reading a model needs no kernels: they are loaded when a product is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from cleave_plan.dtypes import DType
from cleave_plan.onnx_io.facts import ShapeContradictionError
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape

if TYPE_CHECKING:
    from cleave_plan.kernels.quantised import Coding, Companions
    from cleave_plan.onnx_io.rules.builder import Builder

Array = NDArray[Any]
Arrays = Sequence[Array | None]
"""A node's inputs in order, None for an absent optional one."""

Sizes = Sequence[tuple[int, ...] | None]
"""Shapes of a node's inputs in order, None for an absent or unknown one."""


class Form(NamedTuple):
    """One canonical GEMM of a node; a tuple, which takes half as long to make.

    ``a`` and ``b`` are the places of the operands among the node's inputs, None for a tensor that the node makes itself (of
    the type of its first input). ``a_dtype``, ``b_dtype`` and ``out_dtype`` say the element types that travel where they are
    not those of the tensors (packed weights, an operand quantised on the way), ``b_scales`` the places of scales and zero points
    that travel with B. ``part`` names the GEMM within a node that
    holds several. ``repeats`` and ``pinned`` are those of :class:`cleave_plan.workload.gemm.Gemm`.
    """

    shape: GemmShape
    a: int | None = 0
    b: int | None = 1
    window: ConvWindow | None = None
    a_dtype: DType | None = None
    b_dtype: DType | None = None
    b_scales: tuple[int, ...] = ()
    out_dtype: DType | None = None
    part: str = ""
    repeats: int = 1
    pinned: str = ""


def _nothing() -> Companions:
    from cleave_plan.kernels.quantised import NOTHING

    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """Canonical operands, and ``finish``: the whole result in the storage type (``Product.whole_shape``) -> the node's output.

    ``finish`` may write into what it is given.

    ``along`` accompanies the operands and is cut with them; ``coding`` says how B is packed, if it is.
    """

    a: Array
    b: Array
    finish: Callable[[Array], Array]
    along: Companions = field(default_factory=_nothing)
    coding: Coding | None = None


Rule = Callable[[onnx.NodeProto, Sizes], tuple[Form, ...]]
Lowering = Callable[[onnx.NodeProto, Gemm, Arrays], Lowered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """All that is known of one operator.

    ``forms`` gives the GEMMs of a node whose operands (inputs at the places ``operands``) have known shapes: none when there
    is no product in it, one that devices may compute, or any number that are all ``pinned``. It raises
    ShapeContradictionError when the operands do not fit. ``lower`` turns the arrays of a node with one unpinned form into
    canonical operands; it raises ValueError or IndexError when they are not what was planned. ``expand`` writes the nodes that
    a fused node stands for, or raises DeclinedError.
    """

    forms: Rule
    lower: Lowering | None = None
    expand: Callable[[Builder], None] | None = None
    operands: tuple[int, ...] = field(default=(0, 1))


def needed(sizes: Sizes, place: int) -> tuple[int, ...]:
    """The shape of a required operand; raises ShapeContradictionError when it is absent."""
    found = sizes[place] if place < len(sizes) else None
    if found is None:
        raise ShapeContradictionError(f"operand {place} is absent")
    return found


def operand(arrays: Arrays, place: int) -> Array:
    """A required operand; raises ValueError when it is absent."""
    array = arrays[place] if place < len(arrays) else None
    if array is None:
        raise ValueError(f"operand {place} is absent")
    return array


def optional(arrays: Arrays, place: int) -> Array | None:
    """An optional input, None when it is absent."""
    return arrays[place] if place < len(arrays) else None


def in_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """``array`` in ``dtype``, itself when it is already."""
    return array.astype(dtype, copy=False)
