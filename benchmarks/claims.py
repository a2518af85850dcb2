"""The paper's claims beside what this project finds; ``make claims`` writes docs/claims.md with it.

    python -m benchmarks.claims [--models opt-1.3b,...] [--devices 32,...,8192] [--presets cleave,measured-2023]
                                [--results build/claims.jsonl] [--page docs/claims.md]

A *case* is a training step of 128 x 1024 tokens of one model over one preset's fleet of one size, server links unlimited: this
planner's plan, what a failure of 1, 3 and 5 devices costs, and every rival at its best
(:mod:`cleave_plan.simulation.baselines`), within the devices' memory and with it lifted. Each case is a line of the results file
as soon as it is worked out, with the commit that it is of; a run goes on where another stopped, and the page is written from all
lines there are.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.claims_page import Case, page
from benchmarks.rival import fleet_of
from benchmarks.tables import names, numbers, workload
from cleave_plan.api import make_plan
from cleave_plan.atomic import replace_file
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.synthetic import PRESETS
from cleave_plan.report.comparison import row_document
from cleave_plan.simulation.compare import HEARTBEAT_S, MOST_DEVICES, ours, recovery_seconds, rivals
from cleave_plan.simulation.work import plan_work
from cleave_plan.workload.graph import Workload

MODELS = ("opt-13b", "opt-1.3b", "llama-2-7b", "opt-66b", "llama-2-70b")
DEVICES = (32, 64, 128, 256, 512, 1024, 2048, 4096, MOST_DEVICES)
FAILURES = (1, 3, 5)
BATCH, SEQ = 128, 1024
WITHOUT = frozenset({"reuse"})
"""Devices keep nothing in the cases, which is to our disadvantage: recovery and traffic are then the same in every batch."""


def main(arguments: list[str] | None = None) -> None:
    """Work out the cases that are missing, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--devices", type=numbers, default=DEVICES)
    parser.add_argument("--presets", type=names, default=tuple(PRESETS))
    parser.add_argument("--results", type=Path, default=Path("build/claims.jsonl"), help="one line for each case")
    parser.add_argument("--page", type=Path, default=Path("docs/claims.md"))
    asked = parser.parse_args(arguments)
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    commit = checked_out()
    known = {case.key for case in read(asked.results)}
    for devices, model, preset in product(asked.devices, asked.models, asked.presets):
        if (model, preset, devices) in known:
            continue
        found = case_of(workload(model, BATCH, SEQ, True), fleet_of(devices, preset, 1, None))
        line = json.dumps({"model": model, "preset": preset, "devices": devices, "commit": commit, **found})
        with asked.results.open("a") as file:
            file.write(line + "\n")
        print(f"{model}, {preset}, {devices} devices: {found['cpu_s']:.0f} s of processor time", file=sys.stderr, flush=True)
    replace_file(asked.page, page(read(asked.results), DEVICES).encode())


def checked_out() -> str:
    """The commit of this checkout, "-dirty" behind it where files differ from it; "unknown" where there is no git or none."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def read(results: Path) -> list[Case]:
    """The cases of a results file; none where there is no file. A line that an interrupted run cut off is no case, nor is one
    that lacks a figure."""
    lines = results.read_text().splitlines() if results.exists() else []
    cases = []
    for line in lines:
        try:
            cases.append(Case(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return cases


def case_of(work: Workload, fleet: Fleet) -> dict[str, Any]:
    """Rows of all strategies as ``compare --json`` writes them, recovery of ours by number of failures, processor seconds."""
    begun = time.process_time()
    plan = make_plan(work, fleet, without=WITHOUT)
    planned = time.process_time()
    laid = plan_work(plan, work, fleet)
    rows = [ours(work, fleet, plan), *rivals(work, fleet, BATCH)]
    lost = {str(count): HEARTBEAT_S + recovery_seconds(plan, laid, work, count) for count in FAILURES}
    return {
        "rows": [row_document(row) for row in rows],
        "recovery_s": {count: seconds for count, seconds in lost.items() if math.isfinite(seconds)},
        "plan_cpu_s": planned - begun, "cpu_s": time.process_time() - begun,
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
