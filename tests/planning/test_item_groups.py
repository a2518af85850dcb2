"""Many batch items with a group of devices each: exact cover, and about as fast as cutting the items one by one."""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import gemm_of
from test_large_fleets import drawn

from cleave_plan.planning import itemgroups
from cleave_plan.planning.itemgroups import APART, shared_by_groups
from cleave_plan.planning.option import Part, option_of
from cleave_plan.planning.terms import terms_of

ITEMS = APART + 12


@pytest.mark.parametrize(("m", "n"), [(64, 48), (48, 1), (7, 90)])
@pytest.mark.parametrize("devices", [2 * ITEMS + 5, 6 * ITEMS])
def test_many_items_are_covered_once_and_nearly_as_fast(m: int, n: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover by counting every element; the time against that of a search for each item by itself."""
    gemm = gemm_of("g", (ITEMS, m, 16, n))
    figures = drawn(devices, seed=devices + m)
    order = np.random.default_rng(1).permutation(devices)

    together = shared_by_groups(terms_of(gemm), figures, order)
    assert together is not None
    times = np.zeros((ITEMS, m, n), dtype=int)
    for _, top, bottom, left, right, k, k_stop, item, item_stop in together.tolist():
        assert (k, k_stop) == (0, 16)
        times[item:item_stop, top:bottom, left:right] += 1
    assert (times == 1).all()

    monkeypatch.setattr(itemgroups, "APART", ITEMS)
    apart = shared_by_groups(terms_of(gemm), figures, order)
    assert apart is not None
    took = [float(option_of(Part(gemm=gemm, copies=1), boxes, figures).device_s.max()) for boxes in (together, apart)]
    assert took[0] <= 1.5 * took[1]
