"""What several possible facts of one tensor have in common."""

from __future__ import annotations

from collections.abc import Sequence

from cleave_plan.onnx_io.facts import UNKNOWN, Fact


def agreement(facts: Sequence[Fact]) -> Fact:
    """Type, rank and sizes that all of ``facts`` share; a single fact as it is."""
    first = facts[0]
    if len(facts) == 1:
        return first
    if any(fact.other is not None for fact in facts):
        return first if all(fact.other == first.other for fact in facts) else UNKNOWN
    elem = first.elem if all(fact.elem == first.elem for fact in facts) else 0
    shapes = [fact.shape for fact in facts]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return Fact(elem=elem)
    sizes = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return Fact(elem=elem, shape=tuple(row[0] if len(set(row)) == 1 else None for row in sizes))


def filled(facts: Sequence[Fact], count: int) -> list[Fact]:
    """``facts`` cut or filled up with UNKNOWN to ``count``."""
    if len(facts) == count:
        return [*facts]
    return ([*facts] + [UNKNOWN] * count)[:count]


def without_value(fact: Fact) -> Fact:
    """The same shape and type, whatever the values are."""
    return fact if fact.value is None else Fact(elem=fact.elem, shape=fact.shape, other=fact.other)
