"""How long the simulation of one training batch takes, in processor time.

    python -m benchmarks.simulating [--model opt-13b] [--devices 1000] [--links unlimited|GBIT/S] [--preset cleave]

A batch of 128 x 1024 tokens is planned (without the keeping of operands), laid out, and played with planned pacing and with the
servers' links shared. Bars: 5 s at 1,000 devices, 60 s at 10,000.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.rival import fleet_of, links_of
from benchmarks.tables import verdict, workload
from cleave_plan.api import make_plan
from cleave_plan.fleet.synthetic import PRESETS
from cleave_plan.simulation.run import Pacing, simulate

BARS = {1000: 5.0, 10_000: 60.0}


def main(arguments: list[str] | None = None) -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulating", description=__doc__)
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--links", type=links_of, default=None, metavar="GBIT/S", help="of the server (default: unlimited)")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="cleave")
    asked = parser.parse_args(arguments)
    work, fleet = workload(asked.model, 128, 1024, True), fleet_of(asked.devices, asked.preset, 1, asked.links)
    begun = time.process_time()
    plan = make_plan(work, fleet, without=frozenset({"reuse"}))
    tiles = sum(len(one.tiles) * len(one.products()) for one in plan.assignments)
    print(f"{asked.model} over {asked.devices} devices: planned in {time.process_time() - begun:.1f} s, {tiles} tiles a batch")
    for pacing in Pacing:
        begun = time.process_time()
        done = simulate(plan, work, fleet, pacing=pacing)
        took = time.process_time() - begun
        longer = float(done.batch_s[0]) / done.planned_batch_s - 1
        print(
            f"    {pacing.value} pacing: {took:.2f} s {verdict(took, BARS.get(asked.devices))}, {longer:.1%} longer than planned"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
