"""How long a change of the fleet takes to answer, in processor time.

    python -m benchmarks.replanning [--model opt-13b] [--devices 1000] [--losses 50]

For a training step of 128 x 1024 tokens on preset `cleave`, links unlimited (so that all take part): the lost tiles
of the running level, for each kind of level and several devices lost alone (median and worst; bar 50 ms), and the rest of the
plan for one of them (bar 2 s).
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from benchmarks.rival import fleet_of
from benchmarks.tables import verdict, workload
from cleave_plan.api import make_plan
from cleave_plan.plan.objective import products_of
from cleave_plan.planning.recut import recut
from cleave_plan.planning.replan import replan
from cleave_plan.simulation.work import plan_work

LEVEL_S, PLAN_S = 0.05, 2.0


def main(arguments: list[str] | None = None) -> None:
    """Print both times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replanning", description=__doc__)
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--losses", type=int, default=50)
    asked = parser.parse_args(arguments)
    work, fleet = workload(asked.model, 128, 1024, True), fleet_of(asked.devices, "cleave", 1, None)
    plan = make_plan(work, fleet)
    laid = plan_work(plan, work, fleet)
    view, assignments = products_of(work, plan.assignments)
    owner = {name: assignment for assignment in assignments for name in assignment.gemms}
    products = {gemm.name: gemm for gemm in view.workload.gemms}
    took = []
    for lost in np.random.default_rng(0).integers(0, asked.devices, asked.losses).tolist():
        for kind in laid.kinds:
            if lost not in kind.active:
                continue
            begun = time.process_time()
            busy = kind.load.executed_s.copy()
            busy[lost] = np.inf
            for name, columns in zip(kind.gemms, kind.columns, strict=True):
                tiles = owner[name].tiles
                busy = recut(products[name], tiles.select(tiles.device == lost), columns, busy).busy_s
            took.append(time.process_time() - begun)
    worst = max(took)
    print(f"lost tiles of a level, one of {asked.devices} devices: median {np.median(took):.4f} s, worst {worst:.4f} s")
    print(f"    {verdict(worst, LEVEL_S)}")
    begun = time.process_time()
    found = replan(plan, work, fleet, [fleet.devices[asked.devices // 2].name])
    whole = time.process_time() - begun
    print(f"rest of the plan: {found.tiles} tiles in {found.pieces} pieces, {whole:.2f} s, {verdict(whole, PLAN_S)}")


if __name__ == "__main__":
    main(sys.argv[1:])
