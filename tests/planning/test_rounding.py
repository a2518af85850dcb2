"""Strips in whole columns and rows, against every way to share the columns out and a scan over every number of rows."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import gemm_of

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.rounding import round_strips
from cleave_plan.planning.strips import Groups
from cleave_plan.planning.terms import terms_of

K = 4
LINK = st.integers(20, 400)


def seconds(rows: int, columns: int, figures: tuple[int, int, int]) -> float:
    """Of a tile on a device of so many bytes/s down, up and FLOP/s, its link and arithmetic side by side."""
    down, up, flop_per_s = figures
    return max(4 * K * (rows + columns) / down, 4 * rows * columns / up, 2 * K * rows * columns / flop_per_s) if rows else 0.0


def strip_seconds(rows: int, columns: int, group: list[tuple[int, int, int]]) -> float:
    """Of a strip whose rows go one by one to the device that is done first with one more."""
    if not columns:
        return 0.0
    own = [0] * len(group)
    for _ in range(rows):
        best = min(range(len(group)), key=lambda place: seconds(own[place] + 1, columns, group[place]))
        own[best] += 1
    return max(seconds(one, columns, figures) for one, figures in zip(own, group, strict=True))


def shares(total: int, parts: int) -> list[tuple[int, ...]]:
    """Every way to share ``total`` columns out over ``parts`` strips."""
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in shares(total - first, parts - 1)]


@given(
    st.lists(st.lists(st.tuples(LINK, LINK, LINK), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 12),
    st.integers(1, 14), st.integers(0, 1000),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_no_other_widths_are_faster(groups: list[list[tuple[int, int, int]]], rows: int, columns: int, seed: int) -> None:
    """Wherever the real widths start from, the slowest strip takes what it does with the best widths of all."""
    devices = [figures for group in groups for figures in group]
    down, up, flop_per_s = (np.array(column, dtype=float) for column in zip(*devices, strict=True))
    table = DeviceColumns(
        flop_per_s=flop_per_s, downlink=down, uplink=up, latency=np.zeros(len(devices)), memory=np.full(len(devices), 1e9),
        curve=np.full(len(devices), -1), curves=(),
    )  # fmt: skip
    real = np.random.default_rng(seed).dirichlet(np.ones(len(groups))) * columns
    given_groups = Groups(
        devices=np.arange(len(devices)), starts=np.array([0, *accumulate(len(group) for group in groups)][:-1]), widths=real,
        seconds=1.0,
    )  # fmt: skip
    found = round_strips(terms_of(gemm_of("g", (1, rows, K, columns))), table, given_groups)
    cells = np.zeros((rows, columns), dtype=int)
    for _, top, bottom, left, right in found.tolist():
        cells[top:bottom, left:right] += 1
    assert (cells == 1).all()
    slowest = max(seconds(b - t, r - left, devices[device]) for device, t, b, left, r in found.tolist())
    best = min(
        max(strip_seconds(rows, width, group) for width, group in zip(widths, groups, strict=True))
        for widths in shares(columns, len(groups))
    )
    assert slowest == pytest.approx(best, rel=1e-6)


def test_widths_far_from_the_best_ones_are_found() -> None:
    """Strips of many columns whose real widths are given the wrong way round: as fast as where they began right."""
    down = np.array([1e4, 1e5, 2e5, 4e5])
    table = DeviceColumns(
        flop_per_s=down * 10,
        downlink=down,
        uplink=down,
        latency=np.zeros(4),
        memory=np.full(4, 1e9),
        curve=np.full(4, -1),
        curves=(),
    )
    terms = terms_of(gemm_of("g", (1, 50, K, 900)))
    slowest = []
    for widths in ([10.0, 120.0, 250.0, 520.0], [520.0, 250.0, 120.0, 10.0]):
        groups = Groups(devices=np.arange(4), starts=np.arange(4), widths=np.array(widths), seconds=1.0)
        found = round_strips(terms, table, groups).tolist()
        slowest.append(max(4.0 * 50 * (right - left) / down[device] for device, _, _, left, right in found))
        assert [[left, right] for _, _, _, left, right in found] == [list(pair) for pair in pairwise([0, *(f[4] for f in found)])]
    assert slowest[0] == slowest[1]
