"""A whole plan of 2,000 devices drawn at random: exact cover, the second opinion, the file, and the bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning_cases import gemm_of, workload_of

from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.planfile import load_plan, save_plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan


@pytest.mark.long
def test_two_thousand_devices(tmp_path: Path) -> None:
    """A wide GEMM, one so deep that its partial sums bind, and 300 items of which each has a group of devices."""
    gemms = [
        gemm_of("wide", (1, 8192, 2048, 8192), level=0),
        gemm_of("deep", (1, 5120, 65536, 5120), level=1),
        gemm_of("items", (300, 512, 64, 512), level=2),
    ]
    workload, fleet = workload_of(gemms), generate_fleet(2000, seed=7, unlimited_servers=True)
    plan = make_plan(workload, fleet, without=frozenset({"reuse"}))

    first = verify(plan, workload, fleet)  # counts every element's cover and prices every tile again
    assert first.ok, first.findings
    save_plan(plan, tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    second = verify(read, workload, fleet)
    assert second.ok, second.findings
    save_plan(read, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    assert plan.predicted.bound_s <= plan.predicted.ideal_levels_s
    assert plan.predicted.gap < 0.15
