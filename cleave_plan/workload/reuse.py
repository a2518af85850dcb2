r"""Who reads again what a GEMM was sent: the operands that a device may keep.

    inference   a frozen parameter is read again by the same GEMM in the next batch
    training    X of C = X W is read again by dW = X^T dC, W by dX = dC W^T;  dC of dX is read again by dW in the same level;
                where C is computed twice, X and W are those of the second time, which is the nearer one

(parameters change after every training step, so nothing of them stays from batch to batch). Only plain products take part
in training: one batch item, no convolution window, no chain, run once. A reading is between products as they are planned
(:mod:`cleave_plan.workload.joined`); where the members of a joined GEMM are read apart, their operands differ and nothing
is kept for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from cleave_plan.workload.gemm import Gemm, Operand, Phase, Role
from cleave_plan.workload.graph import Workload

Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")

_SIDES_OF: Mapping[Phase, tuple[tuple[Side, Side], ...]] = {
    Phase.FORWARD: (("a", "a"), ("b", "b")), Phase.RECOMPUTE: (("a", "a"), ("b", "b")), Phase.GRADIENT_INPUT: (("a", "b"),),
}  # fmt: skip
"""Operands of GEMMs of a phase that gradients of the same node read again, each with the operand that it is there."""


_GRADIENTS = (Phase.GRADIENT_INPUT, Phase.GRADIENT_WEIGHT)


class Reading(NamedTuple):
    """GEMM ``reader`` (by name) reads as its operand ``reader_side`` the tensor that ``keeper`` had as ``keeper_side``.

    ``turned``: rows of the one are columns of the other. Rows and columns of A are M and K, those of B are K and N.
    """

    keeper: str
    keeper_side: Side
    reader: str
    reader_side: Side
    turned: bool
    same_level: bool


def operand_of(gemm: Gemm, side: Side) -> Operand:
    """Operand A or B."""
    return gemm.a if side == "a" else gemm.b


def frozen(workload: Workload, gemm: Gemm, side: Side) -> bool:
    """Whether this operand is the same in every batch, and a device may keep its pieces from one to the next."""
    plain = gemm.chain is None and gemm.repeats == 1 and not gemm.pinned and gemm.macs > 0
    windowed = side == "a" and gemm.window is not None
    return plain and not windowed and not workload.training and operand_of(gemm, side).role is Role.PARAMETER


def readings(workload: Workload) -> tuple[Reading, ...]:
    """All readings of one training step, in the order of the readers; empty for a forward pass."""
    if not workload.training:
        return ()
    by_nodes: dict[tuple[str, Phase], list[Gemm]] = {}
    for gemm in workload.gemms:
        if _plain(gemm):
            by_nodes.setdefault((gemm.node, gemm.phase), []).append(gemm)
    found = []
    for gemm in workload.gemms:
        if _plain(gemm) and gemm.phase in _GRADIENTS:
            found += list(_of_reader(gemm, by_nodes))
    return tuple(found)


def _of_reader(reader: Gemm, by_nodes: dict[tuple[str, Phase], list[Gemm]]) -> Iterator[Reading]:
    """What a gradient reads again: of its forward GEMM, the last time that it was computed, and of the dX beside it."""
    last = Phase.RECOMPUTE if (reader.node, Phase.RECOMPUTE) in by_nodes else Phase.FORWARD
    for phase in (last, Phase.GRADIENT_INPUT):
        for keeper in by_nodes.get((reader.node, phase), []):
            for keeper_side, reader_side in _SIDES_OF[phase]:
                turned = phase is last
                if keeper is not reader and _same(keeper, keeper_side, reader, reader_side, turned):
                    yield Reading(
                        keeper=keeper.name, keeper_side=keeper_side, reader=reader.name, reader_side=reader_side,
                        turned=turned, same_level=keeper.level == reader.level,
                    )  # fmt: skip


def _plain(gemm: Gemm) -> bool:
    return (
        gemm.shape.batch == 1 and gemm.window is None and gemm.chain is None and gemm.repeats == 1
        and not gemm.pinned and gemm.macs > 0
    )  # fmt: skip


def sides_of(gemm: Gemm, side: Side) -> tuple[int, int]:
    """Rows and columns of an operand."""
    return (gemm.shape.m, gemm.shape.k) if side == "a" else (gemm.shape.k, gemm.shape.n)


def _same(keeper: Gemm, keeper_side: Side, reader: Gemm, reader_side: Side, turned: bool) -> bool:
    mine, its = operand_of(keeper, keeper_side), operand_of(reader, reader_side)
    rows, columns = sides_of(keeper, keeper_side)
    shape = (columns, rows) if turned else (rows, columns)
    return mine.tensor == its.tensor and mine.bits == its.bits and shape == sides_of(reader, reader_side)
