"""The rival: one bilinear program per GEMM ("2-D per GEMM", the formulation in the authors' public code), bounded from below.

    python -m benchmarks.rival [--devices 64,256,1024,4096] [--preset cleave] [--links unlimited|GBIT/S] [--servers 1] [--json]

For each GEMM apart it minimises max_i c_i with c_i >= (r_i + q_i)*K*b/d_i, r_i*q_i*b/u_i, 2*r_i*q_i*K/F_i and sum r_i*q_i = M*N:
no memory, no latency, K never cut, nothing joined, no chains. No answer of it is below the area bound of
:mod:`cleave_plan.planning.bounds` on devices without latency and with unlimited memory, nothing on the server, which is what
stands for it wherever its program is too large to solve. GEMMs follow one another; attention is GEMM by GEMM.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace

from benchmarks.tables import numbers, workload
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.synthetic import PRESETS, generate_fleet
from cleave_plan.simulation.baselines.server_centred import rival_gemm_s
from cleave_plan.workload.gemm import Gemm
from cleave_plan.workload.graph import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Seconds that the rival takes at least for one batch, by kind of GEMM."""

    linear_s: float
    attention_s: float
    head_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.linear_s + self.attention_s + self.head_s


def kind_of(gemm: Gemm) -> str:
    """ "head", "attention" (a product for each head, or a chain of them) or "linear"."""
    if gemm.name.startswith("head"):
        return "head"
    return "attention" if gemm.shape.batch > 1 or gemm.chain is not None else "linear"


def rival_of(work: Workload, fleet: Fleet) -> Rival:
    """The rival's bound for all GEMMs of ``work``, one after the other."""
    seconds = {"linear": 0.0, "attention": 0.0, "head": 0.0}
    for members in work.classes().values():
        if members[0].macs > 0:
            seconds[kind_of(members[0])] += len(members) * rival_gemm_s(members[0], fleet)
    return Rival(linear_s=seconds["linear"], attention_s=seconds["attention"], head_s=seconds["head"])


def fleet_of(devices: int, preset: str, servers: int, gbit_per_s: float | None) -> Fleet:
    """A generated fleet whose servers have links of ``gbit_per_s`` each way (None: no limit on links and memory)."""
    fleet = generate_fleet(devices, preset=preset, servers=servers, unlimited_servers=gbit_per_s is None)
    if gbit_per_s is None:
        return fleet
    rate = gbit_per_s * 1e9 / 8
    return replace(fleet, servers=tuple(replace(s, egress_bytes_per_s=rate, ingress_bytes_per_s=rate) for s in fleet.servers))


def links_of(text: str) -> float | None:
    """``unlimited`` or Gbit/s."""
    return None if text == "unlimited" else float(text)


def main(arguments: list[str] | None = None) -> int:
    """Print the bound for an OPT-13B training step over each fleet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rival", description="The rival's closed lower bound.")
    parser.add_argument("--devices", type=numbers, default=(64, 256, 1024, 4096), metavar="N,N")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="cleave")
    parser.add_argument(
        "--links", type=links_of, default=None, metavar="GBIT/S", help="of each server each way (default: unlimited)"
    )
    parser.add_argument("--servers", type=int, default=1, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    work = workload("opt-13b", 128, 1024, training=True)
    found = {n: rival_of(work, fleet_of(n, options.preset, options.servers, options.links)) for n in options.devices}
    if options.json:
        print(json.dumps([{"devices": n, "total_s": rival.total_s} | asdict(rival) for n, rival in found.items()], indent=2))
        return 0
    print(f"{'devices':>8}{'linear s':>12}{'attention s':>13}{'head s':>10}{'all s':>11}   OPT-13B, 128 x 1024, {options.preset}")
    for devices, rival in found.items():
        print(f"{devices:>8}{rival.linear_s:>12.1f}{rival.attention_s:>13.1f}{rival.head_s:>10.1f}{rival.total_s:>11.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
