"""Benchmarks stay runnable: the smallest case of each driver, in a process of its own (they fix the thread counts)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def benchmark(*arguments: str, driver: str = "planning") -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks.DRIVER`` at the root of the checkout."""
    command = [sys.executable, "-m", f"benchmarks.{driver}", *arguments]
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


def test_tilings_are_judged_by_their_bars() -> None:
    """BERT-base over 16 devices: each row is above its bound, and has the bar of its fleet."""
    done = benchmark("--models", "bert-base", "--presets", "cleave", "--devices", "16", "--json", driver="tilings")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 8
    for row in rows:
        assert 0 <= row["above_percent"] <= row["bar_percent"] == (5.0 if row["shape"][0] > 1 else 4.0)


@pytest.mark.long
def test_small_fleets_are_not_beaten_by_exhaustion() -> None:
    """A few random fleets, and the products of OPT-13B on eight devices of both presets."""
    done = benchmark("--fleets", "5", "--seed", "3", "--json", driver="small")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 5 + 10
    assert not any(row["beaten"] for row in rows)


def test_the_rival_takes_what_planning_says() -> None:
    """OPT-13B, training, 256 and 1024 devices: 2211 s and 853 s, as the trials found."""
    done = benchmark("--devices", "256,1024", "--json", driver="rival")
    assert done.returncode == 0, done.stderr
    assert [round(row["total_s"]) for row in json.loads(done.stdout)] == [2211, 853]


@pytest.mark.long
def test_scip_is_asked_the_rivals_program() -> None:
    """Two devices and sides that are real: its optimum is the area bound. What tiles is found by exhaustion."""
    pytest.importorskip("pyscipopt", reason="the extra `bench` is not installed")
    done = benchmark("dW-fc1", "--devices", "2,4", "--real", "--limit", "20", "--json", driver="scip")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout):
        assert row["scip_bound_s"] == pytest.approx(row["ours_bound_s"], rel=1e-6)


def test_pieces_that_tile_and_that_do_not() -> None:
    """A pinwheel of five tiles 3 x 3; the same areas in other shapes do not; neither does a wrong sum."""
    script = (
        "from benchmarks.scip import tiles;"
        "print(tiles(((1, 2), (1, 1), (2, 1), (1, 2), (2, 1)), 3, 3), tiles(((3, 1), (2, 2), (1, 2)), 3, 3),"
        "tiles(((1, 3), (3, 1), (1, 3)), 3, 3), tiles(((3, 3), (1, 1)), 3, 3), tiles(((0, 3), (3, 3)), 3, 3))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True", "False", "False", "True"]


def test_execution_is_measured_beside_numpy() -> None:
    """A small product, few tiles, memory: figures in their units; exit code 1 only where a bar is missed."""
    done = benchmark(
        "gemm", "tiles", "memory", "--size", "256", "--tiles", "25", "--repeat", "1", "--without", "dask,ray,futures", "--json",
        driver="execute",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout)
    assert {row["unit"] for row in rows} == {"s", "x", "us", "MB"}
    assert all(row["value"] > 0 for row in rows)
    assert done.returncode == any(row["bar"] is not None and row["value"] > row["bar"] for row in rows)


def test_replanning_is_timed() -> None:
    """A small model over few devices: both times and their bars."""
    done = benchmark("--model", "opt-125m", "--devices", "6", "--losses", "2", driver="replanning")
    assert done.returncode == 0, done.stderr
    assert "rest of the plan" in done.stdout


def test_a_training_step_is_onnxruntimes() -> None:
    """The smallest GPT: every gradient agrees with onnxruntime's (else the benchmark fails), and devices do what is said."""
    done = benchmark("--model", "gpt-tiny", "--batch", "2", "--seq", "8", "--repeat", "1", "--json", driver="training")
    assert done.returncode in (0, 1), done.stderr  # 1: slower than the bar, which is for a larger model
    found = json.loads(done.stdout)
    assert 0.8 <= found["share_on_devices"] <= 1
    assert found["tiles"] >= found["levels"] > 0


def test_simulating_is_timed() -> None:
    """A small model over few devices on a narrow link: both pacings."""
    done = benchmark("--model", "opt-125m", "--devices", "6", "--links", "0.2", driver="simulating")
    assert done.returncode == 0, done.stderr
    assert "planned pacing" in done.stdout
    assert "shared pacing" in done.stdout


def test_decoding_is_timed() -> None:
    """The smallest OPT over four devices: a token is no slower with weights kept, and the bound no higher than the levels."""
    done = benchmark("--models", "opt-tiny", "--batches", "2", "--devices", "4", "--past", "15", "--json", driver="decode")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["bound_s"] <= row["levels_s"] * (1 + 1e-9)
    assert row["token_s"] <= row["first_s"]
    assert row["token_s"] <= row["streams_s"] * (1 + 1e-9)
