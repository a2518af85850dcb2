"""GEMMs planned as one: the joined product beside the members' own, number by number, and what may not be joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_cases import activation, gemm_of, imported, parameter, workload_of

from cleave_plan.dtypes import DType
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.gemm import Gemm, Join
from cleave_plan.workload.joined import join, join_key, joins_of, view_of, view_of_groups

SIZES = st.integers(1, 5)


def wide(name: str, n: int, **changes: object) -> Gemm:
    """x [3, 4] times a weight of its own [4, n]."""
    return gemm_of(name, (1, 3, 4, n), activation("x"), parameter(f"{name}.w"), **changes)  # type: ignore[arg-type]


def deep(name: str, k: int, **changes: object) -> Gemm:
    """An operand of its own [3, k] times a weight [k, 5], added into the tensor ``sum``."""
    parts = {"output": "sum", **changes}
    return gemm_of(name, (1, 3, k, 5), activation(f"{name}.x"), parameter(f"{name}.w"), **parts)  # type: ignore[arg-type]


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_along_n_the_results_lie_side_by_side(widths: list[int]) -> None:
    """A [B1 | B2 | ...] is [A B1 | A B2 | ...], with the shape that the joined GEMM states."""
    members = [wide(f"g{i}", n) for i, n in enumerate(widths)]
    rng = np.random.default_rng(len(widths))
    a, bs = rng.standard_normal((3, 4)), [rng.standard_normal((4, n)) for n in widths]
    made = join(members, Join.N)
    whole = a @ np.hstack(bs)
    assert tuple(made.shape) == (1, 3, 4, whole.shape[1])
    np.testing.assert_allclose(whole, np.hstack([a @ b for b in bs]))
    assert made.macs == sum(member.macs for member in members)
    assert made.name == " + ".join(member.name for member in members)
    assert made.extents == (tuple(widths) if len(widths) > 1 else ())


@given(st.lists(SIZES, min_size=2, max_size=4))
def test_along_k_the_results_are_added(depths: list[int]) -> None:
    """[A1 | A2 | ...] [B1 ; B2 ; ...] is A1 B1 + A2 B2 + ..., with the shape that the joined GEMM states."""
    members = [deep(f"g{i}", k) for i, k in enumerate(depths)]
    rng = np.random.default_rng(len(depths))
    pairs = [(rng.standard_normal((3, k)), rng.standard_normal((k, 5))) for k in depths]
    left, right = np.hstack([a for a, _ in pairs]), np.vstack([b for _, b in pairs])
    made = join(members, Join.K)
    assert tuple(made.shape) == (1, 3, left.shape[1], 5)
    np.testing.assert_allclose(left @ right, sum(a @ b for a, b in pairs), atol=1e-12)
    assert made.output == "sum"
    assert made.extents == tuple(depths)
    assert made.a_bytes == sum(member.a_bytes for member in members)


@pytest.mark.parametrize(
    "change",
    [
        {"a": activation("y")}, {"level": 1}, {"op": "Gemm"}, {"out_dtype": DType.FLOAT64}, {"pinned": "a loop"}, {"repeats": 2},
        {"shape": (2, 3, 4, 6)}, {"shape": (1, 3, 5, 6)}, {"shape": (1, 3, 0, 6)}, {"b": activation("y")},
    ],
)  # fmt: skip
def test_what_cannot_be_joined_along_n(change: dict[str, object]) -> None:
    """Another A, level, operator, type or depth, a batch, work that is pinned, repeated or empty."""
    parts = {"shape": (1, 3, 4, 6), "a": activation("x"), "b": parameter("v")} | change
    other = gemm_of("other", parts.pop("shape"), parts.pop("a"), parts.pop("b"), **parts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be joined along n"):
        join([wide("one", 6), other], Join.N)
    assert join_key(wide("one", 6), Join.N) != join_key(other, Join.N)


def test_what_cannot_be_joined_along_k() -> None:
    """Results that go elsewhere, or have another shape; and along no axis nothing is joined."""
    for other in (deep("b", 2, output="elsewhere"), gemm_of("b", (1, 3, 2, 6), activation("b.x"), parameter("w"), output="sum")):
        with pytest.raises(ValueError, match="cannot be joined along k"):
            join([deep("a", 2), other], Join.K)
    with pytest.raises(ValueError, match="nothing"):
        join([wide("a", 2), wide("b", 2)], Join.NONE)


def test_groups_of_a_level() -> None:
    """Added results are joined first, then what shares A; the rest stays alone."""
    gemms = [
        wide("q", 5),
        wide("k", 5),
        gemm_of("o", (1, 3, 4, 5), activation("z"), parameter("o.w")),
        deep("d", 2),
        deep("e", 3),
    ]
    found = [(axis, tuple(member.name for member in members)) for axis, members in joins_of(gemms)]
    assert found == [(Join.K, ("d", "e")), (Join.N, ("q", "k")), (Join.NONE, ("o",))]


def test_views() -> None:
    """The view has products in place of members, level by level, and knows whose they are; without sharing it is the model."""
    workload = workload_of([wide("q", 5), wide("k", 6), gemm_of("o", (1, 3, 5, 4), activation("z"), parameter("o.w"), 1)])
    view = view_of(workload, shared=True)
    assert [(gemm.name, tuple(gemm.shape)) for gemm in view.workload.gemms] == [("q + k", (1, 3, 4, 11)), ("o", (1, 3, 5, 4))]
    assert [level.gemms for level in view.workload.levels] == [(0,), (1,)]
    assert view.names(0) == ["q", "k"]
    assert view.names(1) == ["o"]
    assert view.original is workload
    assert view.workload.gemm_macs == workload.gemm_macs
    apart = view_of(workload, shared=False)
    assert apart.workload.gemms == workload.gemms
    q, k, o = workload.gemms
    assert view_of_groups(workload, [(Join.N, (q, k)), (Join.NONE, (o,))]).workload == view.workload


def test_what_a_model_shares(tmp_path: Path) -> None:
    """llama-tiny in training: q, k, v and gate, up share A; the dX of each group are added, their dW share A."""
    step = training_workload(imported(tmp_path, "llama-tiny", batch=2, seq=8))
    names = {gemm.name for gemm in view_of(step, shared=True).workload.gemms}
    layer, group = "layers.0.attention", ("q", "k", "v")
    assert " + ".join(f"{layer}.{part}" for part in group) in names
    assert " + ".join(f"{layer}.{part}.dX" for part in group) in names
    assert " + ".join(f"{layer}.{part}.dW" for part in group) in names
    assert "layers.0.mlp.gate + layers.0.mlp.up" in names
    assert sum(gemm.macs for gemm in view_of(step, shared=True).workload.gemms) == step.gemm_macs
