"""A whole training step of OPT-13B against the rival: time of all levels, gap, and what each feature is worth.

    python -m benchmarks.batch [--devices 256,1024] [--presets cleave] [--links unlimited,100] [--servers 1,2,4,8,16]
                               [--without CHOICE]... [--worth] [--json]

128 x 1024 tokens, forward, dX and dW of every GEMM, attention and the output head included. Levels by ideal cost (``ideal``)
are what is compared with the rival's bound (:mod:`benchmarks.rival`, the same servers' links); ``executed`` is the plan's
prediction of the same levels; operators of the server take the same time on both sides and are left out of the ratios.
Every case is planned without reuse (the bar on the gap is for that) and with.
``--servers`` counts where links are limited. ``--worth`` plans again with each choice of the planner switched off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.rival import fleet_of, kind_of, links_of, rival_of
from benchmarks.tables import names, numbers, verdict, workload
from cleave_plan.fleet.synthetic import PRESETS
from cleave_plan.plan.plan import LevelReport
from cleave_plan.planning.planner import SWITCHES, make_plan
from cleave_plan.workload.graph import Workload

BARS = {256: (0.44, 0.51), 1024: (0.39, 0.42)}
"""Most of the rival's time that all levels, and those of linear layers, may take on preset cleave with links unlimited."""

GAP_BAR = 0.06
"""Certified gap at 256 and 1024 devices, nothing kept on devices (with reuse the bound is that of coupled levels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan; seconds, ratios to the rival's bound of the same GEMMs, bars (None: none holds)."""

    preset: str
    devices: int
    servers: int
    gbit_per_s: float | None
    without: str
    ideal_s: float
    bound_s: float
    gap: float
    executed_s: float
    operators_s: float
    rival_s: float
    ratio: float
    linear_s: float
    linear_ratio: float
    devices_used: int
    planning_s: float
    ratio_bar: float | None
    linear_bar: float | None
    gap_bar: float | None


def linear(level: LevelReport, work: Workload) -> bool:
    """Whether the level holds nothing but linear layers."""
    kinds = {gemm.name: kind_of(gemm) for gemm in work.gemms}
    return {kinds[name] for name in level.gemms} == {"linear"}


def measure(preset: str, devices: int, servers: int, gbit_per_s: float | None, without: frozenset[str]) -> Row:
    """Plan one step, and price the rival on the same fleet."""
    work, fleet = workload("opt-13b", 128, 1024, training=True), fleet_of(devices, preset, servers, gbit_per_s)
    start = time.process_time()
    plan = make_plan(work, fleet, without=without)
    planning_s = time.process_time() - start
    rival, told = rival_of(work, fleet), plan.predicted
    linear_s = sum(level.count * level.ideal_s for level in told.levels if level.gemms and linear(level, work))
    judged = preset == "cleave" and gbit_per_s is None and without <= {"reuse"}
    bars = BARS.get(devices, (None, None)) if judged else (None, None)
    return Row(
        preset=preset, devices=devices, servers=servers, gbit_per_s=gbit_per_s, without=",".join(sorted(without)),
        ideal_s=told.ideal_levels_s, bound_s=told.bound_s, gap=told.gap, executed_s=told.levels_s,
        operators_s=told.server_operators_s, rival_s=rival.total_s, ratio=told.ideal_levels_s / rival.total_s,
        linear_s=linear_s, linear_ratio=linear_s / rival.linear_s, devices_used=told.devices_used, planning_s=planning_s,
        ratio_bar=bars[0], linear_bar=bars[1], gap_bar=GAP_BAR if judged and devices in BARS and "reuse" in without else None,
    )  # fmt: skip


def cases(options: argparse.Namespace) -> Iterator[tuple[str, int, int, float | None, frozenset[str]]]:
    """Preset, devices, servers, their links and what is switched off, for each plan."""
    switched = [frozenset({*options.without, "reuse"}), frozenset(options.without)]
    if options.worth:
        switched += [frozenset({*options.without, choice}) for choice in sorted(SWITCHES - {*options.without, "reuse"})]
        switched.append(SWITCHES - {"server"} | set(options.without))
    for preset in options.presets:
        for devices in options.devices:
            for gbit_per_s in options.links:
                for servers in (1,) if gbit_per_s is None else options.servers:
                    for without in switched:
                        yield preset, devices, servers, gbit_per_s, without


HEADER = (
    f"{'preset':<14}{'devices':>8}{'servers':>14}  {'ideal s':>9}{'bound s':>9}{'gap %':>7}{'executed s':>11}{'operators s':>12}"
    f"{'rival s':>9}{'ratio':>7}{'linear':>8}{'used':>6}{'took s':>8}  without"
)


def show(row: Row) -> str:
    """The row as a line of the table, and which bars it keeps."""
    links = "unlimited" if row.gbit_per_s is None else f"{row.gbit_per_s:g} Gbit/s"
    line = (
        f"{row.preset:<14}{row.devices:>8}{row.servers:>3} {links:>10}  {row.ideal_s:>9.1f}{row.bound_s:>9.1f}"
        f"{100 * row.gap:>7.2f}{row.executed_s:>11.1f}{row.operators_s:>12.1f}{row.rival_s:>9.1f}{row.ratio:>7.3f}"
        f"{row.linear_ratio:>8.3f}{row.devices_used:>6}{row.planning_s:>8.1f}  {row.without or '-'}"
    )
    bars = {"ratio": (row.ratio, row.ratio_bar), "linear": (row.linear_ratio, row.linear_bar), "gap": (row.gap, row.gap_bar)}
    told = [f"{name} {verdict(value, bar)}" for name, (value, bar) in bars.items() if bar is not None]
    return line + (f"\n{'':<22}{'; '.join(told)}" if told else "")


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch", description="A training step of OPT-13B and the rival.")
    parser.add_argument("--devices", type=numbers, default=(256, 1024), metavar="N,N")
    parser.add_argument("--presets", type=names, default=("cleave",), metavar="A,B", help=f"any of {', '.join(PRESETS)}")
    parser.add_argument(
        "--links", type=lambda text: tuple(links_of(part) for part in text.split(",")), default=(None,), metavar="L,L",
        help="links of each server each way, Gbit/s or unlimited",
    )  # fmt: skip
    parser.add_argument("--servers", type=numbers, default=(1,), metavar="N,N", help="servers, where links are limited")
    parser.add_argument(
        "--without", action="append", default=[], choices=sorted(SWITCHES), help="switch a choice off; repeatable"
    )
    parser.add_argument("--worth", action="store_true", help="switch each choice off in turn, then all but the server")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if not options.json:
        print(HEADER)
    found = []
    for case in cases(options):
        found.append(measure(*case))
        if not options.json:
            print(show(found[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
