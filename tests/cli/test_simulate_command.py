"""`cleave-plan simulate`: every option, on a plan that the command line made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import Files, cleave

from cleave_plan.api import load_plan


def simulated(files: Files, *options: str) -> dict[str, Any]:
    """The JSON document of a simulation of the plan for the fleet of three."""
    result = cleave("simulate", files.plan, "--model", files.model, "--fleet", files.fleet, "--json", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_simulate_is_the_prediction(files: Files) -> None:
    """By default each batch takes what the plan predicts, on the terminal and as JSON."""
    predicted = load_plan(files.plan).predicted
    found = simulated(files, "--batches", "2")
    assert found["batch_s"] == pytest.approx([predicted.batch_s] * 2, rel=1e-9)
    assert found["excess"] == pytest.approx(0, abs=1e-9)
    assert [level["planned_s"] for level in found["levels"]] == pytest.approx([level.executed_s for level in predicted.levels])
    assert set(found["device_busy_s"]) == {"laptop", "phone", "board"}
    shown = cleave("simulate", files.plan, "--model", files.model, "--fleet", files.fleet)
    assert shown.exit_code == 0
    assert "nothing: every device as its figures say" in shown.stdout


def test_simulate_with_jitter_heat_and_shared_links(files: Files) -> None:
    """What varies costs time; a seed gives the same batches again."""
    options = ["--pacing", "shared", "--jitter", "0.3", "--seed", "7", "--batches", "3"]
    first, again = simulated(files, *options), simulated(files, *options)
    assert first == again
    assert first["excess"] > 0.01
    helped = simulated(files, "--jitter", "0.9", "--dispatch", "dynamic", "--batches", "30", "--seed", "1")
    alone = simulated(files, "--jitter", "0.9", "--batches", "30", "--seed", "1")
    assert helped["mean_batch_s"] <= alone["mean_batch_s"]
    hot = simulated(files, "--throttle", "1 ms,0.1,10 s", "--batches", "3")
    assert hot["excess"] > 0


def test_simulate_writes_a_trace(files: Files, tmp_path: Path) -> None:
    """`--trace` writes a file beside everything else that is said."""
    assert simulated(files, "--trace", str(tmp_path / "t.pftrace"))["batch_s"] == simulated(files)["batch_s"]
    assert (tmp_path / "t.pftrace").stat().st_size > 100


def test_simulate_refuses_what_means_nothing(files: Files) -> None:
    """Exit 2 with the option's name for settings, exit 1 for a model that the plan was not made for."""
    base = ["simulate", files.plan, "--fleet", files.fleet]
    for options, words in (
        (["--throttle", "5 min"], "AFTER,SHARE,COOL"), (["--throttle", "1 s,2,1 s"], "share above 0"),
        (["--throttle", "1 s,x,1 s"], "share above 0"), (["--batches", "0"], "--batches"), (["--jitter", "nan"], "--jitter"),
        (["--pacing", "fast"], "--pacing"),
    ):  # fmt: skip
        result = cleave(*base, "--model", files.model, *options)
        assert result.exit_code == 2, options
        assert words in result.stderr
    other = cleave(*base, "--model", files.other_model)
    assert other.exit_code == 1


def test_simulate_churn(files: Files, tmp_path: Path) -> None:
    """Rates for a time, a trace for batches; options that do not go together are refused."""
    found = simulated(files, "--churn", "failures=1 h,joins=10 s", "--duration", "2", "--gain", "0.1", "--seed", "3")
    assert found["kind"] == "churn"
    assert found["seconds"] >= 2
    assert found["unfinished"] == 0
    (tmp_path / "t.csv").write_text("time,event,device,detail\n1 ms,fail,board,\n")
    out = tmp_path / "churn.pftrace"
    traced = simulated(files, "--churn", str(tmp_path / "t.csv"), "--batches", "2", "--detect", "1 ms", "--trace", str(out))
    assert out.stat().st_size > 100
    assert traced["events"]["fail"] == 1
    assert len(traced["batch_s"]) == 2
    base = ["simulate", files.plan, "--model", files.model, "--fleet", files.fleet]
    assert "No tile was lost" in cleave(*base, "--churn", str(tmp_path / "t.csv")).stdout
    everyone = "time,event,device,detail\n0,leave,board,\n0,leave,phone,\n0,leave,laptop,\n"
    (tmp_path / "gone.csv").write_text(everyone)
    nobody = cleave(*base, "--churn", str(tmp_path / "gone.csv"))
    assert nobody.exit_code == 3
    assert "none joins later" in nobody.stderr
    (tmp_path / "back.csv").write_text(everyone + "5 s,join,laptop,\n")
    waited = simulated(files, "--churn", str(tmp_path / "back.csv"), "--batches", "1")
    assert waited["waited_s"] == 5
    assert waited["batch_s"][0] > 5
    for options, code in (
        (["--churn", "deaths=1"], 2), (["--churn", "failures=1 h", "--jitter", "0.1"], 2), (["--duration", "1"], 2),
        (["--churn", str(tmp_path / "none.csv")], 4), (["--churn", ""], 2),
    ):  # fmt: skip
        assert cleave(*base, *options).exit_code == code, options
