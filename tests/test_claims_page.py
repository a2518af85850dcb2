"""The page of claims: ratios, usable devices and recovery of cases by hand, and a run that goes on where another stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import claims
from benchmarks.claims_page import Case, page
from benchmarks.rival import fleet_of
from cleave_plan.fleet.device import Fleet
from cleave_plan.simulation.compare import DEVICE_RIVALS, OURS
from cleave_plan.workload.graph import Workload


def row(system: str, seconds: float | None, *, memory: bool = True, recovery: float | None = None) -> dict[str, Any]:
    """What ``compare --json`` writes of a strategy, as far as the page needs it."""
    return {
        "system": system, "memory_limited": memory, "batch_s": seconds, "executed_s": seconds, "recovery_s": recovery,
        "device_down_bytes": 2e9, "device_up_bytes": 1e9, "device_memory_bytes": 5e8,
    }  # fmt: skip


def case_of(devices: int, ours: float, swarm: float | None) -> Case:
    """Ours, SWARM within memory (or not) and in 10 s with it lifted, everyone else not at all."""
    rows = [row(OURS, ours)]
    for name in DEVICE_RIVALS:
        seconds = swarm if name == "SWARM" else None
        rows += [row(name, seconds, recovery=300.0), row(name, 10.0 if name == "SWARM" else None, memory=False, recovery=30.0)]
    rows += [
        row("2-D per GEMM", 4 * ours, memory=False),
        row("single server", 999.0),
        row("A100 80 GB", 6.0),
        row("H100 80 GB", 2.0),
    ]
    return Case(
        model="m", preset="p", devices=devices, commit="abc1234", rows=rows, recovery_s={"1": 1.5, "3": 2.0, "5": 2.5},
        plan_cpu_s=3.0, cpu_s=9.0,
    )  # fmt: skip


def test_the_page_says_what_the_cases_say() -> None:
    """Best ratios with their counts, the least 2-D ratio, usable devices, recovery at 256, cloud."""
    text = page([case_of(128, 50.0, None), case_of(256, 20.0, 60.0), case_of(64, 80.0, None)], (64, 128, 256, 512))
    claim = next(line for line in text.splitlines() if line.startswith("| m, `p` |"))
    assert "| 64, 128, 256 (not run: 512) |" in claim
    assert "3.00 × (SWARM, 256); none fits at 64, 128" in claim
    assert "0.50 × (SWARM, 256)" in claim  # memory lifted
    assert "| 4.00 × |" in claim
    assert "| 128, 256, 64 |" in claim  # ours pays up to 128 -> 256; SWARM runs at 256 alone; lifted it gains nothing by doubling
    assert "1.5 s, 2 s, 2.5 s" in claim
    assert "SWARM 300 s, 200 ×; SWARM 30 s, 20 ×" in claim
    assert "10 × as long" in claim
    assert "no fit / 10 s" in text
    assert "| 3 s of processor time | abc1234 |" in text
    assert "No case has been run" in page([], (64,))


def test_a_run_goes_on_where_another_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case is a line; one that was cut off is worked out again, the others are not."""
    done: list[int] = []

    def worked_out(_: Workload, fleet: Fleet) -> dict[str, Any]:
        done.append(len(fleet.devices))
        case = asdict(case_of(len(fleet.devices), 50.0, 60.0))
        return {name: case[name] for name in ("rows", "recovery_s", "plan_cpu_s", "cpu_s")}

    monkeypatch.setattr(claims, "case_of", worked_out)
    results, out = tmp_path / "claims.jsonl", tmp_path / "claims.md"
    base = ["--models", "opt-125m", "--presets", "cleave", "--results", str(results), "--page", str(out)]
    claims.main([*base, "--devices", "2,3"])
    lines = results.read_text().splitlines()
    results.write_text(f"{lines[0]}\n{lines[1][:50]}\n")
    claims.main([*base, "--devices", "2,3"])
    assert done == [2, 3, 3]
    assert [case.devices for case in claims.read(results)] == [2, 3]
    assert {case.commit for case in claims.read(results)} == {claims.checked_out()}
    assert "opt-125m, preset `cleave`" in out.read_text()


def test_a_case() -> None:
    """All strategies have their rows, and failures of more devices than there are have no recovery."""
    found = claims.case_of(claims.workload("opt-125m", 1, 32, False), fleet_of(2, "cleave", 1, None))
    assert {row["system"] for row in found["rows"]} >= {OURS, *DEVICE_RIVALS, "2-D per GEMM", "H100 80 GB"}
    assert set(found["recovery_s"]) == {"1"}
