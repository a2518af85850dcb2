"""Single GEMMs with inner splits: how near the volume bound and the tighter line bound real tilings come.

    python -m benchmarks.inner [GEMM...] [--devices 64,256,1024] [--sizes 2,4] [--budget 60] [--no-line-bound] [--json]

OPT-13B at batch 128 x 1024 on preset ``cleave``, links unlimited, server work left out, ideal cost. ``--sizes``: bytes of a
partial sum. Every tiling is checked box by box for exact cover. Seconds are processor time of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, replace

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.planning.bars import bar_tilings
from cleave_plan.planning.bounds import Links
from cleave_plan.planning.linebound import line_bound
from cleave_plan.planning.terms import terms_of
from cleave_plan.planning.volume import volume_bound
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role

SHAPES = {
    "dW-fc1": (5120, 131072, 20480),
    "dW-q": (5120, 131072, 5120),
    "fc2": (131072, 20480, 5120),
    "fc1": (131072, 5120, 20480),
}
"""(M, K, N) of each GEMM."""

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GEMM over one fleet; seconds of ideal cost, and how far above the volume bound in percent."""

    gemm: str
    devices: int
    partial_bytes: int
    volume_bound_s: float
    line_bound_s: float | None
    reached_s: float
    above_percent: float
    boxes: int
    planning_s: float


def gemm_named(name: str) -> Gemm:
    """The GEMM as a float16 MatMul of two activations."""
    m, k, n = SHAPES[name]
    a, b = (Operand(tensor=f"{name}.{side}", role=Role.ACTIVATION, dtype=DType.FLOAT16) for side in "ab")
    return Gemm(
        name=name, node=name, op="MatMul", shape=GemmShape(1, m, k, n), output=f"{name}.out", level=0, a=a, b=b,
        out_dtype=DType.FLOAT16,
    )  # fmt: skip


def slowest(gemm: Gemm, tiles: Tiles, devices: DeviceColumns, partial_bytes: int) -> float:
    """Ideal seconds of the slowest device, by the cost model; partial sums travel in ``partial_bytes``."""
    own = devices.take(tiles.device)
    costs = price(gemm, tiles, devices)
    if (costs.kept == 3).any():
        return math.inf
    cut = tiles.k_stop - tiles.k_start < gemm.shape.k
    up = costs.up_bytes * np.where(cut, partial_bytes * 8 / gemm.a.dtype.accumulator_bits, 1.0)
    seconds = own.latency + np.maximum(
        np.maximum(costs.down_bytes / own.downlink, costs.flop / own.rate(costs.flop)), up / own.uplink
    )
    return float(np.bincount(tiles.device, seconds, minlength=len(devices)).max())


def measure(name: str, devices: int, partial_bytes: int, budget_s: float, lines: bool) -> Row:
    """Tile one GEMM; raises AssertionError when the boxes do not cover it exactly."""
    gemm = gemm_named(name)
    terms = replace(terms_of(gemm), accumulator_bytes=float(partial_bytes))
    columns = device_columns(generate_fleet(devices).devices, DType.FLOAT16)
    floor_s = volume_bound(terms, columns, FREE)
    start = time.process_time()
    found = [Tiles.of(boxes) for boxes in bar_tilings(terms, columns, np.arange(devices), budget_s=budget_s)]
    planning_s = time.process_time() - start
    for tiles in found:
        flaw = cover_flaw(tiles, gemm.shape)
        if flaw is not None:
            raise AssertionError(f"{name} over {devices} devices is not covered exactly: {flaw}")
    reached_s, boxes = min((slowest(gemm, tiles, columns, partial_bytes), len(tiles)) for tiles in found)
    return Row(
        gemm=name, devices=devices, partial_bytes=partial_bytes, volume_bound_s=floor_s,
        line_bound_s=line_bound(terms, columns, FREE) if lines else None, reached_s=reached_s,
        above_percent=100 * (reached_s / floor_s - 1), boxes=boxes, planning_s=planning_s,
    )  # fmt: skip


HEADER = (
    f"{'GEMM':<8}{'devices':>8}{'partial':>9}{'volume s':>11}{'line s':>10}{'reached s':>11}{'above':>9}{'boxes':>7}{'took s':>8}"
)


def show(row: Row) -> str:
    """The row as a line of the table."""
    line = "-" if row.line_bound_s is None else f"{row.line_bound_s:.4f}"
    return (
        f"{row.gemm:<8}{row.devices:>8}{row.partial_bytes:>7} B{row.volume_bound_s:>11.4f}{line:>10}{row.reached_s:>11.4f}"
        f"{row.above_percent:>7.2f} %{row.boxes:>7}{row.planning_s:>8.2f}"
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inner", description="GEMMs with inner splits against their bounds."
    )
    parser.add_argument("gemms", nargs="*", metavar="GEMM", help=f"any of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--devices", type=_numbers, default=(64, 256, 1024), metavar="N,N")
    parser.add_argument("--sizes", type=_numbers, default=(2, 4), metavar="B,B", help="bytes of a partial sum")
    parser.add_argument("--budget", type=float, default=0.0, metavar="S", help="seconds of further search for each tiling")
    parser.add_argument("--no-line-bound", action="store_true", help="leave the tighter bound out (it takes seconds)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    names = options.gemms or list(SHAPES)
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"no GEMM is called {unknown[0]!r}; there are {', '.join(SHAPES)}")
    if not options.json:
        print(HEADER)
    rows = []
    for size in options.sizes:
        for name in names:
            for devices in options.devices:
                rows.append(measure(name, devices, size, options.budget, not options.no_line_bound))
                if not options.json:
                    print(show(rows[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
