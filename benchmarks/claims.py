"""The paper's claims beside what this project finds, as Markdown tables.

    python -m benchmarks.claims [--models opt-13b] [--devices 64,256,1024] [--presets cleave,measured-2023]
                                [--links unlimited|GBIT/S] [--batch 128] [--seq 1024]

For each model, preset and number of devices, one training step: this planner's levels and operators (ideal and executed cost),
each rival at its best (:mod:`cleave_plan.simulation.baselines`) within the devices' memory and with it lifted, the paper's
own formulation bounded from below, traffic and recovery. ``make claims`` prints what docs/claims.md holds.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator

from benchmarks.rival import fleet_of, links_of
from benchmarks.tables import names, numbers, workload
from cleave_plan.api import make_plan
from cleave_plan.fleet.device import Fleet
from cleave_plan.fleet.synthetic import PRESETS
from cleave_plan.simulation.compare import DEVICE_RIVALS, HEARTBEAT_S, OURS, Comparison, Row, compare, recovery_seconds
from cleave_plan.simulation.work import plan_work
from cleave_plan.units import Unit, format_value
from cleave_plan.workload.graph import Workload

FAILURES = (1, 3, 5)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--models", type=names, default=("opt-13b",))
    parser.add_argument("--devices", type=numbers, default=(64, 256, 1024))
    parser.add_argument("--presets", type=names, default=tuple(PRESETS))
    parser.add_argument(
        "--links", type=links_of, default=None, metavar="GBIT/S", help="of the server each way (default: unlimited)"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seq", type=int, default=1024)
    asked = parser.parse_args(arguments)
    said = "unlimited" if asked.links is None else f"{asked.links:g} Gbit/s"
    for model in asked.models:
        work = workload(model, asked.batch, asked.seq, True)
        for preset in asked.presets:
            print(f"### {model}, {asked.batch} x {asked.seq}, preset `{preset}`, server links {said}\n")
            for line in tables(work, preset, asked.devices, asked.links, asked.batch):
                print(line, flush=True)


def tables(work: Workload, preset: str, counts: tuple[int, ...], links: float | None, batch: int) -> Iterator[str]:
    """Lines of Markdown: batch times, then traffic and recovery of ours."""
    begun = time.perf_counter()
    found = compare(work, lambda count: fleet_of(count, preset, 1, links), counts, batch, make_plan)
    rivals = [*DEVICE_RIVALS, "2-D per GEMM", "single server", "A100 80 GB", "H100 80 GB"]
    yield "| devices | " + " | ".join([f"{OURS} (executed)", *rivals]) + " |"
    yield "|---" * (len(rivals) + 2) + "|"
    for count in counts:
        mine = next(row for row in found.rows if row.devices == count and row.outcome.name == OURS)
        ours = f"{_s(mine.outcome.batch_s)} ({_s(mine.executed_s or math.inf)})"
        yield f"| {count} | {ours} | " + " | ".join(_cell(found, count, name) for name in rivals) + " |"
    yield ""
    yield "| devices | down a device | up a device | memory a device | " + " | ".join(f"{n} lost" for n in FAILURES) + " |"
    yield "|---" * (4 + len(FAILURES)) + "|"
    for count in counts:
        mine = next(row for row in found.rows if row.devices == count and row.outcome.name == OURS)
        sizes = (mine.outcome.down_bytes, mine.outcome.up_bytes, mine.outcome.memory_bytes)
        times = _recoveries(work, fleet_of(count, preset, 1, links))
        yield f"| {count} | " + " | ".join(format_value(size, Unit.BYTES) for size in sizes) + " | " + " | ".join(times) + " |"
    yield f"\n({time.perf_counter() - begun:.0f} s to work out. In rivals' cells: within memory / memory lifted.)\n"


def _recoveries(work: Workload, fleet: Fleet) -> list[str]:
    plan = make_plan(work, fleet)
    laid = plan_work(plan, work, fleet)
    return [_s(HEARTBEAT_S + recovery_seconds(plan, laid, work, failures)) for failures in FAILURES]


def _cell(found: Comparison, count: int, name: str) -> str:
    rows: list[Row] = [row for row in found.rows if row.devices == count and row.outcome.name == name]
    return " / ".join(_s(row.outcome.batch_s) for row in sorted(rows, key=lambda row: not row.memory))


def _s(value: float) -> str:
    return format_value(value, Unit.SECONDS) if math.isfinite(value) else "no fit"


if __name__ == "__main__":
    main(sys.argv[1:])
