"""How planning grows with the fleet: seconds, memory, gap, the plan file, and the second opinion.

    python -m benchmarks.scale [--devices 256,1024,10000,100000] [--without CHOICE]... [--links unlimited] [--json]

A training step of OPT-13B (128 x 1024 tokens, no weights), preset ``cleave``, one reference server. Each fleet is planned in a
process of its own, so that its peak memory is its own; seconds are processor time of one thread. ``file``: size of the plan's
file, ``load``: reading it with every check of the format, ``check``: the second opinion on all of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rival import fleet_of, links_of
from benchmarks.tables import numbers, verdict, workload
from cleave_plan.plan.planfile import load_plan, save_plan
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import SWITCHES, make_plan

PLANNING_BARS = {256: 5.0, 1024: 12.0, 10_000: 40.0, 100_000: 90.0}
"""Most seconds of planning."""

GAP_BARS = {256: 0.06, 1024: 0.06}
"""Largest certified gap, reuse between levels switched off."""

FILE_BARS, LOAD_BARS, MEMORY_BARS = {10_000: 50.0}, {10_000: 1.0}, {100_000: 4000.0}
"""Most MB of the file, seconds to load it, and MB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fleet: seconds of processor time, megabytes (10^6 bytes), seconds of the plan's levels and their gap."""

    devices: int
    without: str
    planning_s: float
    peak_mb: float
    ideal_s: float
    gap: float
    tiles: int
    file_mb: float
    load_s: float
    check_s: float
    findings: int


def measure(devices: int, gbit_per_s: float | None, without: frozenset[str]) -> Row:
    """Plan, save, load and check one fleet."""
    work, fleet = workload("opt-13b", 128, 1024, training=True), fleet_of(devices, "cleave", 1, gbit_per_s)
    start = time.process_time()
    plan = make_plan(work, fleet, without=without)
    planning_s = time.process_time() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        save_plan(plan, path)
        file_mb = path.stat().st_size / 1e6
        start = time.process_time()
        read = load_plan(path)
        load_s = time.process_time() - start
    start = time.process_time()
    verdict_of = verify(read, work, fleet)
    check_s = time.process_time() - start
    return Row(
        devices=devices, without=",".join(sorted(without)), planning_s=planning_s, peak_mb=peak_mb,
        ideal_s=plan.predicted.ideal_levels_s, gap=plan.predicted.gap, tiles=verdict_of.tiles, file_mb=file_mb, load_s=load_s,
        check_s=check_s, findings=len(verdict_of.findings),
    )  # fmt: skip


HEADER = (
    f"{'devices':>8}{'planning s':>12}{'peak MB':>9}{'levels s':>10}{'gap %':>7}{'tiles':>9}{'file MB':>9}{'load s':>8}"
    f"{'check s':>9}{'findings':>10}  without"
)


def show(row: Row) -> str:
    """The row as a line of the table, and which bars it keeps."""
    line = (
        f"{row.devices:>8}{row.planning_s:>12.2f}{row.peak_mb:>9.0f}{row.ideal_s:>10.2f}{100 * row.gap:>7.2f}{row.tiles:>9}"
        f"{row.file_mb:>9.2f}{row.load_s:>8.2f}{row.check_s:>9.2f}{row.findings:>10}  {row.without or '-'}"
    )
    judged = {"planning": (row.planning_s, PLANNING_BARS), "memory": (row.peak_mb, MEMORY_BARS)}
    judged |= {"file": (row.file_mb, FILE_BARS), "load": (row.load_s, LOAD_BARS)}
    if "reuse" in row.without:
        judged["gap"] = (row.gap, GAP_BARS)
    told = [f"{name} {verdict(value, bars[row.devices])}" for name, (value, bars) in judged.items() if row.devices in bars]
    return line + (f"\n{'':<10}{'; '.join(told)}" if told else "")


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Planning, file and check of large fleets.")
    parser.add_argument("--devices", type=numbers, default=tuple(PLANNING_BARS), metavar="N,N")
    parser.add_argument("--links", type=links_of, default=None, metavar="L", help="links of the server, Gbit/s or unlimited")
    parser.add_argument(
        "--without", action="append", default=[], choices=sorted(SWITCHES), help="switch a choice off; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if not options.json:
        print(HEADER)
    rows = []
    for devices in options.devices:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (devices, options.links, frozenset(options.without))))
        if not options.json:
            print(show(rows[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
