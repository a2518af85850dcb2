"""Two-dimensional tilings: how far each GEMM of a training step is above its lower bound, over many fleets.

    python -m benchmarks.tilings [--models opt-13b,llama-2-70b,bert-base] [--presets cleave,measured-2023]
                                 [--devices 16,32,64,128,256,1024] [--all] [--json]

Every GEMM of the step (forward, dX, dW), those of one shape once; K whole, links unlimited, nothing on the server, ideal
cost by the cost model. Only what the bars speak of is judged: M*N/devices >= 100,000, heads up to 256 devices; ``--all``
prints the others too. A batched GEMM (attention by heads) counts as heads.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.tables import names, numbers, verdict, workload
from cleave_plan.cost.efficiency import device_columns
from cleave_plan.fleet.synthetic import PRESETS, generate_fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.planning.bounds import Links, gemm_bound
from cleave_plan.planning.option import Part
from cleave_plan.planning.options import options_for
from cleave_plan.planning.terms import terms_of
from cleave_plan.workload.gemm import Gemm

TOKENS = {"opt-13b": (128, 1024), "llama-2-70b": (128, 1024), "bert-base": (128, 512)}
"""Batch and sequence of each model."""

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)

LEAST_AREA = 100_000
"""Elements of C for each device from which the bars hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GEMM over one fleet: seconds by ideal cost, percent above the bound, the bar in percent (None: none holds)."""

    model: str
    preset: str
    devices: int
    gemm: str
    shape: tuple[int, ...]
    bound_s: float
    reached_s: float
    above_percent: float
    bar_percent: float | None
    planning_s: float


def bar_of(gemm: Gemm, devices: int) -> float | None:
    """Percent above the bound that the issue allows; None where it only asks for a report."""
    batch, m, _, n = gemm.shape
    if batch > 1:
        return 5.0 if devices <= 256 else None
    if devices < 16 or m * n / devices < LEAST_AREA:
        return None
    return 1.0 if devices >= 128 else 2.0 if devices >= 64 else 4.0


def gemms_of(model: str) -> list[Gemm]:
    """One GEMM of each shape and number of batch items."""
    batch, seq = TOKENS[model]
    found: dict[tuple[int, ...], Gemm] = {}
    for gemm in workload(model, batch, seq, training=True).gemms:
        if gemm.macs > 0:
            found.setdefault(tuple(gemm.shape), gemm)
    return list(found.values())


def measure(model: str, preset: str, devices: int, gemm: Gemm) -> Row:
    """Tile one GEMM; raises AssertionError when the best tiling does not cover it exactly."""
    columns = device_columns(generate_fleet(devices, preset=preset).devices, gemm.dtype)
    bound_s = gemm_bound(terms_of(gemm), columns, FREE)
    start = time.process_time()
    options = options_for(Part(gemm=gemm, copies=1), columns, FREE, None)
    planning_s = time.process_time() - start
    best = min(options, key=lambda option: option.seconds(FREE))
    if (flaw := cover_flaw(best.tiles[0], gemm.shape)) is not None:
        raise AssertionError(f"{gemm.name} over {devices} devices is not covered exactly: {flaw}")
    reached_s = best.seconds(FREE)
    return Row(
        model=model, preset=preset, devices=devices, gemm=re.sub(r"^layers\.\d+\.", "", gemm.name),
        shape=tuple(gemm.shape), bound_s=bound_s, reached_s=reached_s, above_percent=100 * (reached_s / bound_s - 1),
        bar_percent=bar_of(gemm, devices), planning_s=planning_s,
    )  # fmt: skip


def rows(models: tuple[str, ...], presets: tuple[str, ...], fleets: tuple[int, ...], everything: bool) -> Iterator[Row]:
    """Each GEMM of each model over each fleet; without ``everything`` only those that a bar speaks of."""
    for model in models:
        for preset in presets:
            for devices in fleets:
                for gemm in gemms_of(model):
                    if everything or bar_of(gemm, devices) is not None:
                        yield measure(model, preset, devices, gemm)


HEADER = (
    f"{'model':<12} {'preset':<14}{'devices':>8}  {'GEMM':<24} {'batch x M x K x N':<28}{'bound s':>11}{'reached s':>11}"
    f"{'above %':>9}{'took s':>8}"
)


def show(row: Row) -> str:
    """The row as a line of the table."""
    shape = " x ".join(str(size) for size in row.shape)
    return (
        f"{row.model:<12} {row.preset:<14}{row.devices:>8}  {row.gemm:<24} {shape:<28}{row.bound_s:>11.4f}{row.reached_s:>11.4f}"
        f"{row.above_percent:>9.2f}{row.planning_s:>8.2f}  {verdict(row.above_percent, row.bar_percent)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table and how many rows keep their bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tilings", description="Two-dimensional tilings and their bound.")
    parser.add_argument("--models", type=names, default=tuple(TOKENS), metavar="A,B", help=f"any of {', '.join(TOKENS)}")
    parser.add_argument("--presets", type=names, default=tuple(PRESETS), metavar="A,B", help=f"any of {', '.join(PRESETS)}")
    parser.add_argument("--devices", type=numbers, default=(16, 32, 64, 128, 256, 1024), metavar="N,N")
    parser.add_argument("--all", action="store_true", help="also what no bar speaks of")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.models if name not in TOKENS]:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(TOKENS)}")
    if not options.json:
        print(HEADER)
    found = []
    for row in rows(options.models, options.presets, options.devices, options.all):
        found.append(row)
        if not options.json:
            print(show(row), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return 0
    judged = [row for row in found if row.bar_percent is not None]
    kept = sum(row.above_percent <= (row.bar_percent or 0.0) for row in judged)
    print(f"{kept} of {len(judged)} rows that a bar speaks of keep it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
