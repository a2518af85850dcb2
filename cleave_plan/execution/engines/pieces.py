"""What travels to a device for one tile, taken apart into arrays and put together again at the other end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cleave_plan.kernels.arrays import Array
from cleave_plan.kernels.chain import ChainPieces, ChainProduct, Work
from cleave_plan.kernels.multiply import multiply
from cleave_plan.kernels.tile import Box, Pieces


class Slot(NamedTuple):
    """Stands for an array by its place among all."""

    place: int


def pieces_of(work: Work, operands: Sequence[Array | None], box: Box) -> Pieces | ChainPieces:
    """Views of the operands (in the order of ``work.run``) that a tile reads; raises ValueError where they do not fit."""
    return work.cut(operands, box) if isinstance(work, ChainProduct) else work.pieces(operands, box)


def result_of(work: Work, pieces: Any, box: Box) -> Array:
    """The tile's result from its pieces alone."""
    return work.compute(pieces, box) if isinstance(work, ChainProduct) else multiply(work, pieces, box)


def apart(pieces: Any) -> tuple[Any, list[Array]]:
    """The form of ``pieces`` (nested tuples) with a slot for each array, and the arrays."""
    arrays: list[Array] = []

    def form(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return Slot(len(arrays) - 1)
        if isinstance(value, tuple):
            children = [form(child) for child in value]
            return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
        return value

    return form(pieces), arrays


def together(form: Any, arrays: Sequence[Array]) -> Any:
    """What :func:`apart` took apart."""
    if isinstance(form, Slot):
        return arrays[form.place]
    if isinstance(form, tuple):
        children = [together(child, arrays) for child in form]
        return type(form)(*children) if hasattr(form, "_fields") else tuple(children)
    return form
