"""The numbers of attention's chains: forward from its two GEMMs and masks, backward from the forward chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cleave_plan.workload.chain import ChainForm
from cleave_plan.workload.gemm import Gemm, GemmShape
from cleave_plan.workload.graph import Chain

BACKWARD_OPERATORS = 3
"""Bytes of the operators between the products of a backward chain over those of the forward one: the forward ones again
(scores are recomputed) and their backward passes, which read values and gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What the operators between the products read beside the scores: bytes for each row, and for each batch item.

    ``constant_bytes`` depend on no input of the model and are sent once; ``learned``: some of it depends on parameters.
    """

    row_bytes: int = 0
    item_bytes: int = 0
    constant_bytes: int = 0
    learned: bool = False


def forward_chain(scores: Gemm, context: Gemm, operators: Mapping[str, int | None], *, level: int, sides: Sides) -> Chain:
    """The chain of ``scores`` and ``context`` with the server ``operators`` (names to bytes moved) between them.

    ``context`` multiplies what becomes of the scores, row by row: its batch and M are those of ``scores``, its K their N.
    """
    batch, rows, d_k, length = scores.shape
    d_v = context.shape.n
    item = scores.b.dtype.bytes_of(d_k * length) + context.b.dtype.bytes_of(length * d_v) + sides.item_bytes
    row, out_row = scores.a.dtype.bytes_of(d_k) + sides.row_bytes, context.out_dtype.bytes_of(d_v)
    sum_bytes = scores.a.dtype.accumulator_bits // 8
    form = ChainForm(
        row_bytes=row, item_bytes=item, out_row_bytes=out_row, out_item_bytes=0, held_bytes=2 * item,
        stream_bytes=row + length * sum_bytes + out_row,
        scores_bytes=scores.out_dtype.bytes_of(length) + context.a.dtype.bytes_of(length),
        between_bytes=_each(operators, batch * rows),
    )  # fmt: skip
    return Chain(
        name=context.name, gemms=(scores.name, context.name), operators=tuple(operators), level=level,
        shape=GemmShape(batch, rows, length * (d_k + d_v), 1), form=form, constant_bytes=sides.constant_bytes,
        learned=sides.learned,
    )  # fmt: skip


def backward_chain(
    chain: Chain, scores: Gemm, context: Gemm, gradients: Mapping[str, Gemm], operators: tuple[str, ...], *, level: int
) -> Chain | None:
    """The backward pass of ``chain``, whose GEMMs are ``scores`` and ``context``, at ``level``; its items stay whole.

    ``gradients``: the backward GEMMs by name, ``operators``: names of the backward passes of the chain's operators. None
    when not all four gradients are wanted.
    """
    names = tuple(f"{gemm.name}.{kind}" for gemm in (context, scores) for kind in ("dX", "dB"))
    if not all(name in gradients for name in names):
        return None
    batch, rows, d_k, length = scores.shape
    d_v, form = context.shape.n, chain.form
    grad_row = context.out_dtype.bytes_of(d_v)  # of dC
    sum_bytes = scores.a.dtype.accumulator_bits // 8
    out_row = scores.a.dtype.bytes_of(d_k)
    out_item = scores.b.dtype.bytes_of(d_k * length) + context.b.dtype.bytes_of(length * d_v)
    sums = (d_k + d_v) * length * sum_bytes  # dK and dV grow over the rows
    return Chain(
        name=f"{chain.name}.backward", gemms=names, operators=operators, level=level,
        shape=GemmShape(batch, 1, rows * length * (3 * d_k + 2 * d_v), 1), constant_bytes=chain.constant_bytes,
        form=ChainForm(
            row_bytes=rows * (form.row_bytes + grad_row), item_bytes=form.item_bytes, out_row_bytes=rows * out_row,
            out_item_bytes=out_item, held_bytes=form.held_bytes + sums,
            stream_bytes=form.row_bytes + grad_row + 2 * length * sum_bytes + out_row,
            scores_bytes=2 * rows * form.scores_bytes, between_bytes=BACKWARD_OPERATORS * rows * form.between_bytes,
        ),
    )  # fmt: skip


def _each(operators: Mapping[str, int | None], rows: int) -> int:
    """Bytes for each row, rounded up; operators of unknown size cannot count."""
    return -(-sum(size or 0 for size in operators.values()) // max(rows, 1))
