"""`cleave-plan replan`: every option, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from cli_cases import FLEET, Files, cleave

JOINING = """\
schema: 1
name: more
servers:
  - {name: other, flops: 1 GFLOP/s, memory: 8 GB, memory_bandwidth: 5 GB/s, egress: 2 Gbit/s, ingress: 2 Gbit/s}
devices:
  - {name: tablet, flops: 4 GFLOP/s, downlink: 800 Mbit/s, uplink: 400 Mbit/s, latency: 0.1 ms, memory: 2 GB}
"""


def test_a_lost_device_and_one_that_joins(files: Files, tmp_path: Path) -> None:
    """First lost, then another joins: both plans pass the check, and the second knows what the first lost."""
    base = ["--model", files.model, "--fleet"]
    second, third, grown = tmp_path / "2.json", tmp_path / "3.json", tmp_path / "grown.yaml"
    shown = cleave("replan", files.plan, *base, files.fleet, "--lost", "phone", "-o", second)
    assert shown.exit_code == 0, shown.output
    assert "every other tile is where it was" in shown.stdout
    assert cleave("check", second, *base, files.fleet).exit_code == 0
    (tmp_path / "more.yaml").write_text(JOINING)
    changes = ["--joined", tmp_path / "more.yaml", "--grown", grown, "--gain", "0.01"]
    found = cleave("replan", second, *base, files.fleet, *changes, "-o", third, "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["lost"] == ["phone"]
    assert document["joined"] == ["tablet"]
    assert document["batch_s"] <= document["batch_before_s"]
    assert cleave("check", third, *base, grown).exit_code == 0
    assert cleave("check", third, *base, files.fleet).exit_code == 1  # it is for the grown fleet


def test_what_cannot_be_meant(files: Files, tmp_path: Path) -> None:
    """Exit 2 for what says nothing or names strangers, 3 when nobody is left, 1 for another model."""
    base, output = ["replan", files.plan, "--fleet", files.fleet], ["-o", tmp_path / "out.json"]
    more = tmp_path / "more.yaml"
    more.write_text(FLEET)
    for options, code, words in (
        ([], 2, "nothing has changed"), (["--lost", "radio"], 2, "radio"), (["--lost", "phone,,board"], 2, "--lost"),
        (["--joined", more], 2, "belong together"), (["--joined", more, "--grown", tmp_path / "g.yaml"], 2, "joins"),
        (["--lost", "phone", "--gain", "2"], 2, "--gain"), (["--lost", "laptop,phone,board"], 3, "every device is lost"),
    ):  # fmt: skip
        result = cleave(*base, "--model", files.model, *options, *output)
        assert result.exit_code == code, (options, result.output)
        assert words in result.stderr
    assert cleave(*base, "--model", files.other_model, "--lost", "phone", *output).exit_code == 1
    assert not (tmp_path / "out.json").exists()
