"""Whole-array operations on boxes, runs and groups, against loops over one thing after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import gemm_of

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.dtypes import DType
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.boxes import before_in_run, cut_in_parts, place_in_run, rounded_runs, run_of
from cleave_plan.planning.groups import SQUARE, abilities, dealt, members
from cleave_plan.planning.roots import log_root
from cleave_plan.planning.terms import terms_of
from cleave_plan.planning.volume import volume_bound

FREE = Links(egress=np.inf, ingress=np.inf, flop_per_s=0.0)

RUNS = st.lists(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1e6)), min_size=1, max_size=6), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(runs=RUNS, totals=st.lists(st.integers(0, 100), min_size=6, max_size=6))
def test_runs_are_rounded_one_by_one(runs: list[list[tuple[int, float]]], totals: list[int]) -> None:
    """Each run sums to its total, no integer is a whole one away from its exact share, and places and sums restart."""
    starts = np.cumsum([0, *map(len, runs)])[:-1]
    run = run_of(starts, sum(map(len, runs)))
    sizes = np.array([size for one in runs for size, _ in one])
    found = rounded_runs(np.array([weight for one in runs for _, weight in one]), run, np.array(totals[: len(runs)]))
    places, before = place_in_run(run), before_in_run(sizes, run)
    for number, one in enumerate(runs):
        mine = run == number
        assert found[mine].sum() == totals[number]
        whole = sum(weight for _, weight in one)
        for share, (_, weight) in zip(found[mine].tolist(), one, strict=True):
            exact = totals[number] * (weight / whole if whole > 0 else 1 / len(one))
            assert abs(share - exact) < 1 + 1e-6
        assert places[mine].tolist() == list(range(len(one)))
        assert before[mine].tolist() == [sum(size for size, _ in one[:place]) for place in range(len(one))]


@given(ranges=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=8))
def test_ranges_are_cut_without_gaps(ranges: list[tuple[int, int, int]]) -> None:
    """The parts of a range follow one another from its start to its stop, and differ by one at the most."""
    start, length, parts = (np.array(column) for column in zip(*ranges, strict=True))
    of, first, stop = cut_in_parts(start, start + length, parts)
    for place, (begin, long, count) in enumerate(ranges):
        edges = [*first[of == place].tolist(), int(stop[of == place][-1])]
        assert edges[0] == begin
        assert edges[-1] == begin + long
        assert edges[1:] == [*stop[of == place].tolist()]
        assert len(edges) == count + 1
        assert max(np.diff(edges)) - min(np.diff(edges)) <= 1


def test_roots_of_columns() -> None:
    """Powers that pass 1 inside, before and after the range that is looked at."""
    roots, powers = np.array([0.3, 5.0, 0.01, 100.0, 2.0]), np.array([1.0, 2.0, 1.5, 0.5, 3.0])
    found = log_root(lambda x: (x / roots) ** -powers, np.full(5, 0.1), np.full(5, 10.0))
    assert found == pytest.approx([0.3, 5.0, 0.0, 10.0, 2.0], rel=1e-6)


@pytest.mark.parametrize("shape", [(131072, 20480, 5120), (5120, 131072, 20480)])
def test_dealt_groups_are_alike_and_full(shape: tuple[int, int, int]) -> None:
    """2,000 devices: a group's members tolerate about the same footprint, and what they bring together is near what it needs."""
    columns = device_columns(generate_fleet(2000).devices, DType.FLOAT16)
    terms = terms_of(gemm_of("g", (1, *shape), dtype=DType.FLOAT16))
    able = abilities(terms, columns, volume_bound(terms, columns, FREE))
    group = dealt(able)
    assert np.array_equal(np.unique(group), np.arange(group.max() + 1))
    now = members(able, group, int(group.max()) + 1)
    most = np.maximum.reduceat(able.cut[np.argsort(group, kind="stable")], np.cumsum(now.size) - now.size)
    assert float((most / now.limit(able))[now.size > 1].max()) < 1.15
    worth = able.worth(now.operand, now.limit(able), SQUARE).sum()
    assert float(able.worth(able.operand, able.alone, SQUARE).sum()) < worth
    full = now.operand / (SQUARE * able.side * able.depth * np.sqrt(now.limit(able)))
    assert float(np.median(np.abs(full - 1))) < 0.05
