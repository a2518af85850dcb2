"""Small fleets: our tilings against an independent exhaustive method, K whole.

    python -m benchmarks.small [--fleets 200] [--seed 0] [--json]

First random fleets of 2-8 devices on M, N <= 64, then products of OPT-13B (128 x 1024 tokens) on 8 devices of each preset. The
exhaustive method (``tests/planning/shape_oracle.py``: subset dynamic programming over shape curves, in whole rows and columns)
shares no code with the planner and says whether any nested straight cuts end by a time. ``beaten``: they end before ours.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device
from cleave_plan.fleet.synthetic import PRESETS, generate_fleet
from cleave_plan.planning.bounds import Links, gemm_bound
from cleave_plan.planning.option import Part
from cleave_plan.planning.options import options_for
from cleave_plan.planning.terms import terms_of
from cleave_plan.workload.gemm import Gemm, GemmShape, Operand, Role
from tests.planning.shape_oracle import Case, covers, may_take_part

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)

TOKENS = 128 * 1024
OPT_13B = {
    "fc1": (TOKENS, 5120, 20480), "fc2": (TOKENS, 20480, 5120), "q": (TOKENS, 5120, 5120), "dW-fc1": (5120, TOKENS, 20480),
    "dW-q": (5120, TOKENS, 5120),
}  # fmt: skip
"""(M, K, N) of each product."""

NEAR = 1e-3
"""How much faster than ours the exhaustive method may be on the products of OPT-13B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One product over one fleet: seconds by ideal cost, and whether straight cuts are faster by more than ``slack``."""

    case: str
    devices: int
    reached_s: float
    bound_s: float
    above_percent: float
    slack: float
    beaten: bool
    took_s: float


def measure(name: str, sizes: tuple[int, int, int], devices: list[Device], slack: float) -> Row:
    """Tile one product and ask the exhaustive method."""
    m, k, n = sizes
    a, b = (Operand(tensor=side, role=Role.ACTIVATION, dtype=DType.FLOAT16) for side in "ab")
    gemm = Gemm(
        name=name, node=name, op="MatMul", shape=GemmShape(1, m, k, n), output="c", level=0, a=a, b=b, out_dtype=DType.FLOAT16
    )
    columns = device_columns(devices, DType.FLOAT16)
    start = time.process_time()
    reached_s = min(option.seconds(FREE) for option in options_for(Part(gemm=gemm, copies=1), columns, FREE, None))
    took_s = time.process_time() - start
    bound_s = gemm_bound(terms_of(gemm), columns, FREE)
    faster_s = reached_s * (1 - slack)
    plain = [one if "any" in one.flop_per_s else _one_rate(one) for one in devices]
    return Row(
        case=name, devices=len(devices), reached_s=reached_s, bound_s=bound_s, above_percent=100 * (reached_s / bound_s - 1),
        slack=slack, beaten=bound_s < faster_s and covers(Case(m, n, k), plain, faster_s), took_s=took_s,
    )  # fmt: skip


def _one_rate(device: Device) -> Device:
    return Device(
        name=device.name, flop_per_s={"any": device.rate(DType.FLOAT16)}, downlink_bytes_per_s=device.downlink_bytes_per_s,
        uplink_bytes_per_s=device.uplink_bytes_per_s, latency_s=device.latency_s, memory_bytes=device.memory_bytes,
    )  # fmt: skip


def random_case(rng: np.random.Generator) -> tuple[tuple[int, int, int], list[Device]]:
    """Sides up to 64, any K, 2-8 devices whose figures lie up to a hundredfold apart; in some fleets latency or memory binds."""
    while True:
        m, n, k = int(rng.integers(1, 65)), int(rng.integers(1, 65)), int(np.exp(rng.uniform(0, math.log(2000))))
        latency_s, tight = rng.choice([0.0, 1e-3, 0.3]), rng.random() < 0.4
        memory = 10 * (4 * k + (0 if tight else 4 * m * n + k * (m + n)))
        devices = [
            Device(
                name=f"d{place}", flop_per_s={"any": float(np.exp(rng.uniform(math.log(1e3), math.log(1e5))))},
                downlink_bytes_per_s=float(np.exp(rng.uniform(math.log(50), math.log(5000)))),
                uplink_bytes_per_s=float(np.exp(rng.uniform(math.log(5), math.log(500)))),
                latency_s=latency_s * rng.uniform(), memory_bytes=memory * float(np.exp(rng.uniform(0, math.log(8)))),
            )
            for place in range(int(rng.integers(2, 9)))
        ]  # fmt: skip
        if any(may_take_part(Case(m, n, k), one) for one in devices):
            return (m, k, n), devices


def main(arguments: list[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small", description="Small fleets and an exhaustive method.")
    parser.add_argument("--fleets", type=int, default=200, metavar="N", help="random fleets to try (default 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    random = [measure(f"random-{number}", *random_case(rng), 1e-8) for number in range(options.fleets)]
    known = [
        measure(f"{name} {preset}", sizes, list(generate_fleet(8, preset=preset).devices), NEAR)
        for preset in PRESETS
        for name, sizes in OPT_13B.items()
    ]
    if options.json:
        print(json.dumps([asdict(row) for row in (*random, *known)], indent=2))
        return 0
    beaten = [row.case for row in random if row.beaten]
    above = sorted(row.above_percent for row in random)
    print(f"{len(random)} random fleets of 2-8 devices, M, N <= 64: straight cuts are faster in {len(beaten)} {' '.join(beaten)}")
    if above:
        print(f"above the area bound: median {above[len(above) // 2]:.2f} %, most {above[-1]:.2f} %")
    print(f"{'8 devices':<24}{'reached s':>11}{'bound s':>10}{'above %':>9}{'0.1 % less by straight cuts':>29}{'took s':>8}")
    for row in known:
        said = "possible" if row.beaten else "impossible"
        print(f"{row.case:<24}{row.reached_s:>11.4f}{row.bound_s:>10.4f}{row.above_percent:>9.2f}{said:>29}{row.took_s:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
