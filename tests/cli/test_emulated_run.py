"""`run --emulate`: predicted beside measured, in JSON and on the terminal, and what does not go together."""

from __future__ import annotations

import json

import pytest
from cli_cases import Files, cleave


def test_an_emulated_run(files: Files) -> None:
    """Every level in which devices have tiles stands beside its prediction; the outputs are verified as ever."""
    run = ["run", files.plan, "--model", files.model, "--workers", "2", "--emulate", "--fleet", files.fleet, "--scale", "0.2"]
    done = cleave(*run, "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verified"]["ok"]
    comparison, plan = document["comparison"], json.loads(files.plan.read_text())
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
