"""Measuring this machine: a small grid for real, the budget, and the fitted curve against a dumber computation."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.fleet.device import Quality
from cleave_plan.profiles import machine
from cleave_plan.profiles.curve import fit_curves
from cleave_plan.profiles.machine import DEFAULT_GRID, measure_machine
from cleave_plan.profiles.records import GemmMeasurement, ProfileKind


def timing(m: int, seconds: float, dtype: str = "float32") -> GemmMeasurement:
    """A timing of (m, 1) @ (1, 1)."""
    return GemmMeasurement(
        dtype=dtype, m=m, k=1, n=1, threads=1, median_s=seconds, lower_quartile_s=seconds, upper_quartile_s=seconds,
        repeats=1, numpy="", blas="", date="",
    )  # fmt: skip


def test_measuring_for_real() -> None:
    """Every shape and element type of a tiny grid, in order, with spread, memory, and progress to the end."""
    seen: list[tuple[int, int, str]] = []
    grid = [(64, 64, 64), (8, 16, 24)]
    found = measure_machine(
        "here", grid=grid, dtypes=("float32", "float16"), repeats=3, budget_s=20, progress=lambda *report: seen.append(report)
    )
    profile = found.profile
    assert found.skipped == ()
    assert (profile.name, profile.kind) == ("here", ProfileKind.MACHINE)
    assert sorted((g.dtype, g.m, g.k, g.n) for g in profile.gemms) == [
        ("float16", 8, 16, 24), ("float16", 64, 64, 64), ("float32", 8, 16, 24), ("float32", 64, 64, 64),
    ]  # fmt: skip
    assert {(g.threads, g.repeats) for g in profile.gemms} == {(1, 3)}
    assert all(g.numpy and g.blas and g.date for g in profile.gemms)
    assert profile.figures["memory"].value == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert profile.figures["memory_bandwidth"].value > 1e6
    assert {figure.provenance.quality for figure in profile.figures.values() if figure.provenance} == {Quality.MEASURED}
    assert [done for done, _, _ in seen] == [0, 1, 2, 3, 4, 5]
    assert {total for _, total, _ in seen} == {5}


def test_shapes_beyond_the_budget_are_named() -> None:
    """A float16 product that would take minutes is skipped and said so; the small one is there."""
    found = measure_machine("here", grid=[(4, 4, 4), (4096, 4096, 4096)], dtypes=("float16",), repeats=1, budget_s=1)
    assert found.skipped == (("float16", 4096, 4096, 4096),)
    assert [(g.m, g.k, g.n) for g in found.profile.gemms] == [(4, 4, 4)]


def test_threads_are_set_before_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets every BLAS's variable, whatever this process has."""
    given: dict[str, str] = {}
    start = machine.subprocess.Popen

    def spy(*arguments: object, env: dict[str, str], **options: object) -> object:
        given.update(env)
        return start(*arguments, env=env, **options)  # type: ignore[call-overload]

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(machine.subprocess, "Popen", spy)
    measure_machine("here", grid=[(4, 4, 4)], dtypes=("float32",), repeats=1, threads=2, budget_s=5)
    assert {given[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")} == {"2"}


def test_a_child_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No half profile comes of a timing process that ended early."""
    monkeypatch.setattr(machine, "_GRACE_S", -4.9)
    with pytest.raises(ExecutionError, match="ended early"):
        measure_machine("here", grid=[(512, 512, 512)], dtypes=("float16",), repeats=100, budget_s=5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"grid": []},
        {"grid": [(0, 1, 1)]},
        {"grid": [(1, 1, 10**9)]},
        {"grid": [(1, 1, 1), (1, 1, 1)]},
        {"dtypes": ()},
        {"dtypes": ("int8",)},
        {"dtypes": ("float32", "float32")},
        {"repeats": 0},
        {"threads": 0},
        {"budget_s": 0.0},
        {"budget_s": float("nan")},
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, object]) -> None:
    """Refused before anything is started."""
    with pytest.raises(UsageError):
        measure_machine("here", **arguments)  # type: ignore[arg-type]


def test_default_grid_is_usable() -> None:
    """Each shape once, none beyond the memory of a small machine."""
    assert len(set(DEFAULT_GRID)) == len(DEFAULT_GRID)
    assert all((m * k + k * n + m * n) * 8 < 200e6 for m, k, n in DEFAULT_GRID)


def test_curve_literal() -> None:
    """2, 4, 8 FLOP at 1, 4, 2 FLOP/s: the figure is 4, and the dip after it does not count."""
    (curve,) = fit_curves([timing(1, 2.0), timing(2, 1.0), timing(4, 4.0)]).values()
    assert curve.flop_per_s == 4.0
    assert [(point.flop, point.fraction) for point in curve.points] == [(2, 0.25), (4, 1.0), (8, 1.0)]


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.floats(1e-6, 1e3), st.sampled_from(["float32", "float64"])), min_size=1, max_size=20
    )
)
def test_curve_is_the_least_non_decreasing_envelope(rows: list[tuple[int, float, str]]) -> None:
    """At every measured size: the best rate at that size or below, over the best of all; per element type."""
    gemms = [timing(*row) for row in rows]
    for dtype, curve in fit_curves(gemms).items():
        mine = [gemm for gemm in gemms if gemm.dtype == dtype]
        best = max(gemm.flop_per_s for gemm in mine)
        assert curve.flop_per_s == best
        assert [point.flop for point in curve.points] == sorted({gemm.flop for gemm in mine})
        for point in curve.points:
            assert point.fraction == max(gemm.flop_per_s for gemm in mine if gemm.flop <= point.flop) / best
