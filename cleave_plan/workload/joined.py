r"""GEMMs of one level that share an operand or a result, seen as one GEMM.

- ``n``: the same A (q, k, v of attention; gate and up of a gated MLP; dW of all three): one wider GEMM,
  [A B1 | A B2 | ...] = A [B1 | B2 | ...], so a device is sent its rows of A once.
- ``k``: results that are added into one tensor (dX of q, k, v): one deeper GEMM,
  A1 B1 + A2 B2 + ... = [A1 | A2 | ...] [B1 ; B2 ; ...], so one result comes back.

The joined GEMM is a value like any other; its name joins those of its members with " + ".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cleave_plan.workload.gemm import Gemm, GemmShape, Join, Operand
from cleave_plan.workload.graph import Workload


def join(members: Sequence[Gemm], axis: Join) -> Gemm:
    """One GEMM that does the work of ``members`` (in order along ``axis``); a single member is itself.

    Raises ValueError when they cannot be joined that way.
    """
    first = members[0]
    if len(members) == 1:
        return first
    if any(join_key(member, axis) != join_key(first, axis) for member in members) or axis is Join.NONE:
        raise ValueError(f"{', '.join(member.name for member in members)} cannot be joined along {axis.value or 'nothing'}")
    batch, m, k, n = first.shape
    if axis is Join.N:
        extents = tuple(member.shape.n for member in members)
        shape, a, output = GemmShape(batch, m, k, sum(extents)), first.a, " + ".join(member.output for member in members)
    else:
        extents = tuple(member.shape.k for member in members)
        shape, a, output = GemmShape(batch, m, sum(extents), n), _stacked([member.a for member in members]), first.output
    return replace(
        first, name=" + ".join(member.name for member in members), shape=shape, a=a,
        b=_stacked([member.b for member in members]), output=output, join=axis, extents=extents,
    )  # fmt: skip


def join_key(gemm: Gemm, axis: Join) -> tuple[object, ...] | None:
    """GEMMs of one level with equal keys can be joined along ``axis``; None: this one cannot."""
    types = (gemm.a.role, gemm.a.dtype, gemm.b.role, gemm.b.dtype, gemm.out_dtype, gemm.phase, gemm.level)
    if gemm.pinned or gemm.macs == 0 or gemm.shape.batch != 1 or gemm.repeats != 1:
        return None
    if axis is Join.N:
        return (gemm.a.tensor, gemm.op, gemm.shape.m, gemm.shape.k, gemm.window, *types)
    return (gemm.output, gemm.op, gemm.shape.m, gemm.shape.n, *types) if gemm.window is None else None


def joins_of(gemms: Sequence[Gemm]) -> list[tuple[Join, tuple[Gemm, ...]]]:
    """The GEMMs of one level in groups that are joined (along K where results are added, else along N), or alone."""
    groups: list[tuple[Join, tuple[Gemm, ...]]] = []
    left = list(gemms)
    for axis in (Join.K, Join.N):
        by_key: dict[tuple[object, ...], list[Gemm]] = {}
        for gemm in left:
            key = join_key(gemm, axis)
            if key is not None:
                by_key.setdefault(key, []).append(gemm)
        groups += [(axis, tuple(members)) for members in by_key.values() if len(members) > 1]
        taken = {member.name for _, members in groups for member in members}
        left = [gemm for gemm in left if gemm.name not in taken]
    return groups + [(Join.NONE, (gemm,)) for gemm in left]


def _stacked(operands: Sequence[Operand]) -> Operand:
    return replace(operands[0], tensor=" + ".join(operand.tensor for operand in operands))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A workload as it is planned: ``workload`` has joined GEMMs in place of their ``members`` (by the joined one's name)."""

    original: Workload
    workload: Workload
    members: Mapping[str, tuple[Gemm, ...]]


def view_of(workload: Workload, *, shared: bool) -> View:
    """The view of ``workload`` in which GEMMs with a shared operand or result are joined, or (not ``shared``) none are."""
    groups: list[tuple[Join, tuple[Gemm, ...]]] = []
    for level in workload.levels:
        inside = [workload.gemms[place] for place in level.gemms]
        groups += joins_of(inside) if shared else [(Join.NONE, (gemm,)) for gemm in inside]
    return view_of_groups(workload, groups)


def view_of_groups(workload: Workload, groups: Iterable[tuple[Join, tuple[Gemm, ...]]]) -> View:
    """The view of ``workload`` with the given products, each GEMM being in one; raises ValueError for what cannot be joined."""
    members: dict[str, tuple[Gemm, ...]] = {}
    inside: dict[int, list[Gemm]] = {level.index: [] for level in workload.levels}
    for axis, group in groups:
        product = join(group, axis)
        members[product.name] = group
        inside[product.level].append(product)
    gemms: list[Gemm] = []
    levels = []
    for level in workload.levels:
        levels.append(replace(level, gemms=tuple(range(len(gemms), len(gemms) + len(inside[level.index])))))
        gemms += inside[level.index]
    planned = replace(workload, gemms=tuple(gemms), levels=tuple(levels))
    return View(original=workload, workload=planned, members=members)
