"""What the tests of the command line share: how a command is called, and the files that most of them need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from cleave_plan.cli.main import cleave_plan

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

PLAIN = [part for switch in ("chains", "inner", "level-joint", "reuse", "shared") for part in ("--without", switch)]
"""Options of ``plan`` that make it quick, for tests that ask for a plan but not how good it is."""


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
