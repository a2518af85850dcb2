"""A tiny model, a fleet of three devices and a plan of the one over the other, made once by the commands themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cleave_plan.cli.main import cleave_plan
from models.registry import build

FLEET = """\
schema: 1
name: three
servers:
  - {name: home, flops: 200 MFLOP/s, memory: 8 GB, memory_bandwidth: 5 GB/s, egress: 2 Gbit/s, ingress: 2 Gbit/s}
devices:
  - {name: laptop, flops: 2 GFLOP/s, downlink: 800 Mbit/s, uplink: 400 Mbit/s, latency: 0.1 ms, memory: 2 GB}
  - {name: phone, flops: 1 GFLOP/s, downlink: 400 Mbit/s, uplink: 100 Mbit/s, latency: 0.2 ms, memory: 1 GB}
  - {name: board, flops: 500 MFLOP/s, downlink: 200 Mbit/s, uplink: 200 Mbit/s, latency: 0.1 ms, memory: 512 MB}
"""


def cleave(*arguments: str | Path) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(cleave_plan, [str(argument) for argument in arguments], prog_name="cleave-plan")


@dataclass(frozen=True)
class Files:
    """Paths of the files that most tests need; ``folder`` is theirs and must not be written to."""

    folder: Path
    model: Path
    other_model: Path
    fleet: Path
    plan: Path


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An MLP with a symbolic batch, bound to 64."""
    folder = tmp_path_factory.mktemp("cli")
    made = Files(folder, folder / "mlp.onnx", folder / "other.onnx", folder / "fleet.yaml", folder / "plan.json")
    made.model.write_bytes(build("mlp", seed=1).SerializeToString())
    made.other_model.write_bytes(build("mlp", seed=2).SerializeToString())
    made.fleet.write_text(FLEET)
    result = cleave("plan", made.model, "--dim", "batch=64", "--fleet", made.fleet, "-o", made.plan)
    assert result.exit_code == 0, result.output
    return made
