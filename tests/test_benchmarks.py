"""Benchmarks stay runnable: the smallest case of each driver, in a process of its own (they fix the thread counts)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks.planning`` at the root of the checkout."""
    command = [sys.executable, "-m", "benchmarks.planning", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_planning_reports_every_level() -> None:
    """Each fleet size gives its levels with a time that is not below the bound, and both durations."""
    done = benchmark("smoke", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [result["devices"] for result in results] == [4, 8]
    for result in results:
        assert result["planning_s"] > 0
        assert sum(row["count"] for row in result["rows"]) == 11  # 2 layers of 5 levels in a row (attention is one), and the head
        assert all(row["time_s"] >= row["bound_s"] * (1 - 1e-9) for row in result["rows"])


def test_an_unknown_case_is_refused_by_name() -> None:
    """Exit code 2 and the names that there are."""
    done = benchmark("opt-14b")
    assert done.returncode == 2
    assert "opt-13b" in done.stderr
