r"""GEMMs that are planned as one: those of a level that share an operand or a result, and those of a chain.

- ``n``: the same A (q, k, v of attention; gate and up of a gated MLP; dW of all three): one wider GEMM,
  [A B1 | A B2 | ...] = A [B1 | B2 | ...], so a device is sent its rows of A once.
- ``k``: results that are added into one tensor (dX of q, k, v): one deeper GEMM,
  A1 B1 + A2 B2 + ... = [A1 | A2 | ...] [B1 ; B2 ; ...], so one result comes back.
- ``chain``: scores and context of attention with the operators between them (:mod:`cleave_plan.workload.chain`).

The product is a GEMM like any other; its name joins those of its members with " + ". A chain's product stands in the
chain's level and takes the operators between its members along: they are counted with it, on devices and on the server.
Levels keep their places; one that has lost all its GEMMs takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cleave_plan.workload.gemm import Gemm, GemmShape, Join, Operand
from cleave_plan.workload.graph import Chain, ServerOperator, Workload


def join(members: Sequence[Gemm], axis: Join) -> Gemm:
    """One GEMM that does the work of ``members`` (in order along ``axis``, N or K); a single member is itself.

    Raises ValueError when they cannot be joined that way.
    """
    first = members[0]
    if len(members) == 1:
        return first
    keys = {join_key(member, axis) for member in members} if axis in (Join.N, Join.K) else {None}
    if len(keys) > 1 or None in keys:
        raise ValueError(f"{', '.join(member.name for member in members)} cannot be joined along {axis.value or 'nothing'}")
    batch, m, k, n = first.shape
    if axis is Join.N:
        extents = tuple(member.shape.n for member in members)
        shape, a, output = GemmShape(batch, m, k, sum(extents)), first.a, " + ".join(member.output for member in members)
    else:
        extents = tuple(member.shape.k for member in members)
        shape, a, output = GemmShape(batch, m, sum(extents), n), _stacked([member.a for member in members]), first.output
    return replace(
        first, name=_name(members), shape=shape, a=a, b=_stacked([member.b for member in members]), output=output, join=axis,
        extents=extents,
    )  # fmt: skip


def chained(chain: Chain, members: Sequence[Gemm]) -> Gemm:
    """The product of ``chain``, whose GEMMs are ``members``: A stands for its rows, B for what it sends with each item."""
    first, last = members[0], members[-1]
    return replace(
        first, name=_name(members), op="Chain", shape=chain.shape, a=first.a, b=_stacked([first.b, last.b]), output=last.output,
        out_dtype=last.out_dtype, level=chain.level, join=Join.CHAIN, chain=chain.form,
    )  # fmt: skip


def product_of(workload: Workload, members: Sequence[Gemm], axis: Join) -> Gemm:
    """What ``members`` (GEMMs of ``workload``) are as one; raises ValueError when they cannot be joined that way."""
    if axis is not Join.CHAIN:
        return join(members, axis)
    names = tuple(member.name for member in members)
    for chain in workload.chains:
        if chain.gemms == names:
            return chained(chain, members)
    raise ValueError(f"{', '.join(names)} are no chain of the model")


def join_key(gemm: Gemm, axis: Join) -> tuple[object, ...] | None:
    """GEMMs of one level with equal keys can be joined along ``axis``; None: this one cannot."""
    types = (
        gemm.a.role,
        gemm.a.dtype,
        gemm.b.role,
        gemm.b.dtype,
        gemm.b.scale_bits,
        gemm.out_dtype,
        gemm.phase,
        gemm.level,
        gemm.rule,
    )
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


def _name(members: Sequence[Gemm]) -> str:
    return " + ".join(member.name for member in members)


def _stacked(operands: Sequence[Operand]) -> Operand:
    return replace(operands[0], tensor=" + ".join(operand.tensor for operand in operands))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A workload as it is planned: ``workload`` has joined GEMMs in place of their ``members`` (by the joined one's name)."""

    original: Workload
    workload: Workload
    members: Mapping[str, tuple[Gemm, ...]]

    def names(self, level: int) -> list[str]:
        """Names of all members of the products of one level."""
        places = self.workload.levels[level].gemms
        return [member.name for place in places for member in self.members[self.workload.gemms[place].name]]


def view_of(workload: Workload, *, shared: bool, chains: Iterable[Chain] = ()) -> View:
    """The view of ``workload`` in which the given ``chains`` are products and, with ``shared``, so are GEMMs with a shared
    operand or result."""
    gemms = {gemm.name: gemm for gemm in workload.gemms}
    groups = [(Join.CHAIN, tuple(gemms[name] for name in chain.gemms)) for chain in chains]
    taken = {member.name for _, members in groups for member in members}
    for level in workload.levels:
        inside = [workload.gemms[place] for place in level.gemms if workload.gemms[place].name not in taken]
        groups += joins_of(inside) if shared else [(Join.NONE, (gemm,)) for gemm in inside]
    return view_of_groups(workload, groups)


def view_of_groups(workload: Workload, groups: Iterable[tuple[Join, tuple[Gemm, ...]]]) -> View:
    """The view of ``workload`` with the given products, each GEMM being in one; raises ValueError for what cannot be joined."""
    members: dict[str, tuple[Gemm, ...]] = {}
    inside: dict[int, list[Gemm]] = {level.index: [] for level in workload.levels}
    for axis, group in groups:
        product = product_of(workload, group, axis)
        members[product.name] = group
        inside[product.level].append(product)
    gemms: list[Gemm] = []
    levels = []
    for level in workload.levels:
        levels.append(replace(level, gemms=tuple(range(len(gemms), len(gemms) + len(inside[level.index])))))
        gemms += inside[level.index]
    return View(
        original=workload, members=members,
        workload=replace(
            workload, gemms=tuple(gemms), levels=tuple(levels), server_operators=_left_between(workload, members)
        ),
    )  # fmt: skip


def _left_between(workload: Workload, members: Mapping[str, tuple[Gemm, ...]]) -> tuple[ServerOperator, ...]:
    """Server operators that no chained product takes in."""
    chained_names = {tuple(member.name for member in group) for group in members.values()}
    taken = {name for chain in workload.chains if chain.gemms in chained_names for name in chain.operators}
    return tuple(operator for operator in workload.server_operators if operator.name not in taken)
