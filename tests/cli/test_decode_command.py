"""`plan` and `explain` of a decoding step: the time of a token, and which devices hold what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_cases import cleave
from click.testing import Result

from models.registry import build

FLEET = """\
schema: 1
name: room
servers:
  - {name: home, flops: 1 GFLOP/s, memory: 8 GB, memory_bandwidth: 50 MB/s, egress: 2 Gbit/s, ingress: 2 Gbit/s}
devices:
  - {name: desktop, flops: 300 GFLOP/s, downlink: 940 Mbit/s, uplink: 940 Mbit/s, latency: 0.1 ms, memory: 800 MB}
  - {name: laptop, flops: 100 GFLOP/s, downlink: 600 Mbit/s, uplink: 400 Mbit/s, latency: 0.1 ms, memory: 400 MB}
"""


@dataclass(frozen=True)
class Step:
    """Files of a decoding step, and what the command that planned it said."""

    model: Path
    fleet: Path
    plan: Path
    made: Result

    def command(self, name: str, *options: object) -> Result:
        """A command on the plan, with its model and fleet."""
        return cleave(name, self.plan, "--model", self.model, "--fleet", self.fleet, *options)


SIZES = ["--dim", "batch=8", "--dim", "past=31"]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """Two layers of OPT that add one token to a cache, without their weights; a fleet; and the plan of eight sequences."""
    folder = tmp_path_factory.mktemp("decode")
    model, fleet, plan = folder / "opt.onnx", folder / "fleet.yaml", folder / "plan.json"
    model.write_bytes(build("opt-tiny", decode=True, weights="none").SerializeToString())
    fleet.write_text(FLEET)
    return Step(model, fleet, plan, cleave("plan", model, *SIZES, "--fleet", fleet, "-o", plan))


def test_a_token_is_planned_with_weights_on_the_devices(step: Step) -> None:
    """Every weight that is multiplied is on some device once at the least; the first batch sends it; `check` agrees."""
    assert step.made.exit_code == 0, step.made.stderr
    shown = " ".join(step.made.stdout.split())
    assert "one for each of 8 sequences" in shown
    assert "of weights that 2 devices then keep" in shown
    assert "What stays on the devices" in shown
    assert "of it kept" in shown
    told = json.loads(step.plan.read_text())
    predicted = told["predicted"]
    assert predicted["tokens"] == 8
    assert predicted["first_batch_s"] > predicted["batch_s"]
    assert set(predicted["device_kept_bytes"]) == {"desktop", "laptop"}
    held = [one for one in told["assignments"] if any(one["held_b"])]
    assert {name for one in held for name in one["gemms"]} >= {"layers.0.mlp.fc1", "layers.1.mlp.fc1", "layers.0.attention.q"}
    assert predicted["spared_bytes"] == sum(predicted["device_kept_bytes"].values())  # each kept byte would be sent once a batch
    assert step.command("check").exit_code == 0


def test_a_device_tells_what_it_holds(step: Step) -> None:
    """The pieces of `explain --device`, in JSON and on the terminal, add up to what the plan says that it keeps."""
    kept = json.loads(step.plan.read_text())["predicted"]["device_kept_bytes"]["laptop"]
    (story,) = json.loads(step.command("explain", "--device", "laptop", "--json").stdout)["devices"]
    assert sum(piece["bytes"] * len(piece["products"]) for piece in story["held"]) == kept
    assert "holds of" in step.command("explain", "layers.0.mlp.fc1", "--device", "laptop").stdout


def test_the_same_step_with_nothing_kept(step: Step, tmp_path: Path) -> None:
    """`--without reuse`: every token streams the weights, and takes longer."""
    plan = tmp_path / "plan.json"
    assert cleave("plan", step.model, *SIZES, "--without", "reuse", "--fleet", step.fleet, "-o", plan).exit_code == 0
    streams, keeps = (json.loads(path.read_text())["predicted"] for path in (plan, step.plan))
    assert streams["device_kept_bytes"] == {}
    assert streams["first_batch_s"] == streams["batch_s"] > keeps["batch_s"]
