"""Each gradient rule against finite differences, on random shapes, with broadcasting; and some of their edges."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import Case, values
from gradient_cases import run_case as run
from gradient_draws import DRAWS
from gradient_draws_spatial import SIZED
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cleave_plan.onnx_io.gradient.rules import RULES

EXAMPLES = settings(max_examples=6, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.parametrize("op", sorted(RULES))
@given(seed=st.integers(0, 10**6), dynamic=st.booleans())
@EXAMPLES
def test_every_rule(op: str, seed: int, dynamic: bool) -> None:
    """Sizes known, or only when the graph runs. A rule without a case of its own fails here."""
    case = DRAWS[op](np.random.default_rng(seed))
    assert case.op == op
    run(case, dynamic=dynamic and op not in SIZED)


def test_mutual_broadcasting_of_unknown_sizes() -> None:
    """Both operands are stretched, along axes that only the run tells."""
    rng = np.random.default_rng(3)
    run(Case(op="Mul", inputs=[values(rng, 3, 1, 2), values(rng, 4, 1)]), dynamic=True)


def test_power_at_its_edges() -> None:
    """Negative bases with whole exponents, exponent 0, and a constant exponent."""
    rng = np.random.default_rng(4)
    run(Case(op="Pow", inputs=[values(rng, 3, 4), np.array(3.0)], wanted=[0], fixed=[1]))
    run(Case(op="Pow", inputs=[values(rng, 2, 3), np.array([0.0, 2.0, 1.0])], wanted=[0]))
    run(Case(op="Pow", inputs=[values(rng, 2, 3), np.array([2, 2, 3])], wanted=[0]))


def test_product_of_zeros() -> None:
    """One zero among the factors has a gradient, beside two zeros nothing has."""
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.5, 2.0, 0.5]])
    run(Case(op="ReduceProd", inputs=[x, np.array([1])], fixed=[1]))


SLICES = [
    ([1], [3], [0], None), ([-3, 0], [2**62, -1], [1, 2], None), ([0, 1], [4, 4], None, None),
    ([3, -1], [-100, 0], [0, 1], [-1, -2]), ([0], [4], [0], [2]), ([-100], [100], [-1], [1]),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slices(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None, dynamic: bool) -> None:
    """Negative ends, clamped ends, steps over elements and backwards; the places may only be known when the graph runs."""
    x = values(np.random.default_rng(2), 4, 5, 3)
    given_axes = None if axes is None else np.array(axes)
    inputs = [x, np.array(starts), np.array(ends), given_axes, None if steps is None else np.array(steps)]
    fixed = [place for place in (1, 2, 3, 4) if inputs[place] is not None and (not dynamic or axes is None or place >= 3)]
    run(Case(op="Slice", inputs=inputs, fixed=fixed), dynamic=dynamic)
