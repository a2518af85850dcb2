"""`run --emulate`: predicted beside measured, in JSON and on the terminal, and what does not go together."""

from __future__ import annotations

import json

import pytest
from cli_cases import Files, cleave


def test_an_emulated_run(files: Files) -> None:
    """Every level in which devices have tiles stands beside its prediction; the outputs are verified as ever."""
    made = files.folder / "sends-everything.json"
    sizes = ["--dim", "batch=64"]
    assert cleave("plan", files.model, *sizes, "--fleet", files.fleet, "--without", "reuse", "-o", made).exit_code == 0
    run = ["run", made, "--model", files.model, "--workers", "2", "--emulate", "--fleet", files.fleet, "--scale", "0.2"]
    done = cleave(*run, "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verified"]["ok"]
    comparison, plan = document["comparison"], json.loads(made.read_text())
    assert (comparison["emulated"], comparison["scale"]) == (True, 0.2)
    predicted = {level["index"]: level["executed_s"] for level in plan["predicted"]["levels"]}
    for level in comparison["levels"]:
        if level["level"] in predicted:  # the plan lists one of several identical levels
            assert level["predicted_s"] == pytest.approx(predicted[level["level"]])
        assert level["measured_s"] >= 0.999 * level["predicted_s"]
        for device in level["devices"].values():
            assert len(device["work"][0]) == 4
    text = cleave(*run).stdout
    assert "1 s of the fleet is 0.2 s here" in text
    assert "half of the levels are within" in text
    assert "devices keep nothing" not in text


def test_a_run_of_a_plan_that_keeps_says_what_it_sends(files: Files) -> None:
    """Everything is sent, as in the plan's first batch: what is predicted beside the measured adds up to that."""
    plan = json.loads(files.plan.read_text())["predicted"]
    assert plan["spared_bytes"] > 0
    run = ["run", files.plan, "--model", files.model, "--workers", "2"]
    document = json.loads(cleave(*run, "--emulate", "--fleet", files.fleet, "--scale", "0.2", "--json").stdout)
    assert any("devices keep nothing in a run" in note for note in document["notes"])
    assert document["bytes_down"] == plan["downlink_bytes"] + plan["spared_bytes"]
    predicted = sum(level["predicted_s"] for level in document["comparison"]["levels"])
    assert predicted <= (plan["first_batch_s"] - plan["server_operators_s"]) * (1 + 1e-9)
    assert predicted > plan["levels_s"]


@pytest.mark.parametrize("options", [["--emulate"], ["--scale", "2"], ["--fleet"]], ids=" ".join)
def test_what_does_not_go_together(files: Files, options: list[str]) -> None:
    """Emulation needs its fleet, and a scale or a fleet without emulation says nothing."""
    more = [files.fleet] if options == ["--fleet"] else []
    result = cleave("run", files.plan, "--model", files.model, *options, *more)
    assert result.exit_code == 2
    assert "--emulate --fleet FLEET" in result.stderr


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "fast"])
def test_scales_that_cannot_be_meant(files: Files, scale: str) -> None:
    """A finite number above 0."""
    result = cleave("run", files.plan, "--model", files.model, "--emulate", "--fleet", files.fleet, "--scale", scale)
    assert result.exit_code == 2
    assert "--scale" in result.stderr
