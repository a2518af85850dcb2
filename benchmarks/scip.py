"""The rival's program given to SCIP as it is, beside our tilings: objectives, bounds, whether pieces tile, and times.

    python -m benchmarks.scip [GEMM...] [--devices 2,4,8,12] [--limit 600] [--gap 0] [--real] [--json]      (extra `bench`)

For one GEMM of OPT-13B (128 x 1024 tokens, float16) over a fleet of preset ``cleave``: whole r_i, q_i >= 0 and z_i in {0, 1},

    minimise T     T >= (r_i + q_i)*K*b/d_i     T >= r_i*q_i*b/u_i     T >= 2*r_i*q_i*K/F_i     r_i <= M*z_i     q_i <= N*z_i
                   sum_i r_i*q_i = M*N

It knows no memory, and nothing makes its pieces tile the output: whether they do (:func:`tiles`, by exhaustion), and whether
they fit the devices' memory, is found out afterwards, from the whole numbers that it answered. Ours is the best tiling that
the planner offers without inner splits, its memory rule kept, checked for exact cover; its bound is the area bound. One
thread each, processor time on both sides; a solve that its limit ended counts with the limit. SCIP's presolving is off: with
it SCIP 10.0 calls answers "optimal" that are 40 % above others of the same program (fc1 over 2 devices), because products of
whole numbers of this size meet its tolerances. ``--real`` lets r_i and q_i be real: SCIP then needs a tenth of a second, and
its optimum is the area bound, which nothing tiles.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.inner import SHAPES, gemm_named
from benchmarks.tables import numbers
from cleave_plan.cost.efficiency import DeviceColumns, device_columns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.dtypes import DType
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.cover import cover_flaw
from cleave_plan.planning.bounds import Links, gemm_bound
from cleave_plan.planning.option import Part
from cleave_plan.planning.options import options_for
from cleave_plan.planning.terms import terms_of
from cleave_plan.workload.gemm import Gemm

FREE = Links(egress=math.inf, ingress=math.inf, flop_per_s=0.0)
SIZE = 2
"""Bytes of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """SCIP's incumbent (priced from its pieces) and dual bound in seconds, its pieces as (rows, columns), its seconds."""

    status: str
    objective_s: float
    bound_s: float
    pieces: tuple[tuple[int, int], ...]
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GEMM over one fleet, both ways; None where SCIP has no incumbent."""

    gemm: str
    devices: int
    scip_status: str
    scip_s: float | None
    scip_bound_s: float
    scip_covers: bool
    scip_tiles: bool
    scip_fits: bool
    scip_took_s: float
    ours_s: float
    ours_bound_s: float
    ours_took_s: float

    @property
    def comparable(self) -> bool:
        """Whether SCIP's answer is a plan at all: it tiles and fits memory."""
        return self.scip_tiles and self.scip_fits


def solve(gemm: Gemm, devices: DeviceColumns, limit_s: float, gap: float, real: bool) -> Answer:
    """SCIP on the program above; sides are scaled to shares x, y, areas to M*N/D and T to the area bound, all near 1."""
    from pyscipopt import SCIP_PARAMSETTING, Model, quicksum

    _, m, k, n = gemm.shape
    count, unit_s = len(devices), gemm_bound(terms_of(gemm), devices, FREE)
    model = Model("2-D per GEMM")
    model.hideOutput()
    model.setParam("timing/clocktype", 1)  # processor time, as ours: other work on the machine takes nothing from it
    model.setParam("limits/time", limit_s)
    model.setParam("limits/gap", gap)
    model.setParam("parallel/maxnthreads", 1)
    model.setPresolve(SCIP_PARAMSETTING.OFF)
    kind = "C" if real else "I"
    longest = model.addVar("T", lb=0.0)
    rows = [model.addVar(f"r{i}", vtype=kind, lb=0, ub=m) for i in range(count)]
    columns = [model.addVar(f"q{i}", vtype=kind, lb=0, ub=n) for i in range(count)]
    used = [model.addVar(f"z{i}", vtype="B") for i in range(count)]
    tall = [model.addVar(f"x{i}", lb=0.0, ub=1.0) for i in range(count)]
    wide = [model.addVar(f"y{i}", lb=0.0, ub=1.0) for i in range(count)]
    area = [model.addVar(f"a{i}", lb=0.0, ub=count) for i in range(count)]
    for i in range(count):
        model.addCons(rows[i] == m * tall[i])
        model.addCons(columns[i] == n * wide[i])
        model.addCons(area[i] == count * tall[i] * wide[i])
        model.addCons(tall[i] <= used[i])
        model.addCons(wide[i] <= used[i])
        model.addCons(longest >= (m * tall[i] + n * wide[i]) * (k * SIZE / devices.downlink[i] / unit_s))
        per_area = max(SIZE / devices.uplink[i], 2 * k / devices.flop_per_s[i])
        model.addCons(longest >= area[i] * (m * n / count * per_area / unit_s))
    model.addCons(quicksum(area) == count)
    model.setObjective(longest, "minimize")
    start = time.process_time()
    model.optimize()
    took_s = time.process_time() - start
    pieces: tuple[tuple[int, int], ...] = ()
    if model.getNSols() > 0:
        best = model.getBestSol()
        pieces = tuple((round(best[r]), round(best[q])) for r, q in zip(rows, columns, strict=True))
    return Answer(
        status=str(model.getStatus()), objective_s=seconds(gemm, pieces, devices) if pieces else math.inf,
        bound_s=model.getDualbound() * unit_s, pieces=pieces, took_s=took_s,
    )  # fmt: skip


def seconds(gemm: Gemm, pieces: tuple[tuple[int, int], ...], devices: DeviceColumns) -> float:
    """What the whole numbers take, whatever the solver's tolerances let it call them."""
    k = gemm.shape.k
    figures = zip(pieces, devices.downlink.tolist(), devices.uplink.tolist(), devices.flop_per_s.tolist(), strict=True)
    return max(max((r + q) * k * SIZE / down, r * q * SIZE / up, 2 * r * q * k / flop) for (r, q), down, up, flop in figures)


def tiles(pieces: tuple[tuple[int, int], ...], m: int, n: int) -> bool:
    """Can ``pieces`` (rows, columns) be laid out to cover m x n exactly, unturned? By exhaustion, for a dozen of them.

    The skyline's lowest, leftmost notch must be filled by some piece from its left corner on: try each.
    """
    real = sorted(((r, q) for r, q in pieces if r * q > 0), reverse=True)
    if sum(r * q for r, q in real) != m * n:
        return False

    def fill(skyline: tuple[tuple[int, int], ...], left: tuple[tuple[int, int], ...]) -> bool:
        """``skyline``: (height, width) from left to right, equal neighbours joined."""
        if not left:
            return all(height == m for height, _ in skyline)
        low = min(range(len(skyline)), key=lambda i: skyline[i][0])
        height, width = skyline[low]
        for place, (r, q) in enumerate(left):
            if (place and left[place - 1] == (r, q)) or q > width or height + r > m:
                continue
            notch = [(height + r, q)] + ([(height, width - q)] if q < width else [])
            if fill(_joined((*skyline[:low], *notch, *skyline[low + 1 :])), left[:place] + left[place + 1 :]):
                return True
        return False

    return fill(((0, n),), tuple(real))


def _joined(skyline: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for height, width in skyline:
        if found and found[-1][0] == height:
            found[-1] = (height, found[-1][1] + width)
        else:
            found.append((height, width))
    return tuple(found)


def fits(gemm: Gemm, pieces: tuple[tuple[int, int], ...], devices: DeviceColumns) -> bool:
    """Whether each piece keeps the memory rule of planning.md section 1 on its device, in one pass."""
    k, wide = gemm.shape.k, gemm.a.dtype.accumulator_bits / 8
    for (r, q), memory in zip(pieces, devices.memory.tolist(), strict=True):
        kept = min(r * k * SIZE, q * k * SIZE, r * q * wide)
        if r * q > 0 and (2 * k * SIZE > STREAM_SHARE * memory or kept > (1 - STREAM_SHARE) * memory):
            return False
    return True


def measure(name: str, devices: int, limit_s: float, gap: float, real: bool) -> Row:
    """Both answers; raises AssertionError when our tiling does not cover exactly."""
    gemm = gemm_named(name)
    columns = device_columns(generate_fleet(devices).devices, DType.FLOAT16)
    start = time.process_time()
    options = options_for(Part(gemm=gemm, copies=1), columns, FREE, None)
    bound_s = gemm_bound(terms_of(gemm), columns, FREE)
    took_s = time.process_time() - start
    best = min(options, key=lambda option: option.seconds(FREE))
    if (flaw := cover_flaw(best.tiles[0], gemm.shape)) is not None:
        raise AssertionError(f"{name} over {devices} devices is not covered exactly: {flaw}")
    answer = solve(gemm, columns, limit_s, gap, real)
    _, m, _, n = gemm.shape
    return Row(
        gemm=name, devices=devices, scip_status=answer.status, scip_bound_s=answer.bound_s,
        scip_s=answer.objective_s if math.isfinite(answer.objective_s) else None,
        scip_covers=sum(r * q for r, q in answer.pieces) == m * n, scip_tiles=tiles(answer.pieces, m, n),
        scip_fits=bool(answer.pieces) and fits(gemm, answer.pieces, columns),
        scip_took_s=limit_s if answer.status == "timelimit" else answer.took_s, ours_s=best.seconds(FREE), ours_bound_s=bound_s,
        ours_took_s=took_s,
    )  # fmt: skip


HEADER = (
    f"{'GEMM':<8}{'devices':>8} | {'SCIP s':>10}{'its bound':>11}{'status':>10}{'area M*N':>9}{'tiles':>6}{'fits':>5}"
    f"{'took s':>9} | {'ours s':>10}{'bound s':>10}{'gap %':>7}{'took s':>8}"
)


def show(row: Row) -> str:
    """The row as a line of the table."""
    said = {True: "yes", False: "no"}
    scip = "-" if row.scip_s is None else f"{row.scip_s:.4f}"
    worse = "  ABOVE SCIP" if row.comparable and row.scip_s is not None and row.ours_s > row.scip_s * (1 + 1e-9) else ""
    return (
        f"{row.gemm:<8}{row.devices:>8} | {scip:>10}{row.scip_bound_s:>11.4f}{row.scip_status:>10}{said[row.scip_covers]:>9}"
        f"{said[row.scip_tiles]:>6}{said[row.scip_fits]:>5}{row.scip_took_s:>9.2f} | {row.ours_s:>10.4f}{row.ours_bound_s:>10.4f}"
        f"{100 * (1 - row.ours_bound_s / row.ours_s):>7.2f}{row.ours_took_s:>8.3f}{worse}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table, both totals and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scip", description="The rival's program in SCIP, and ours.")
    parser.add_argument("gemms", nargs="*", metavar="GEMM", help=f"any of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--devices", type=numbers, default=(2, 4, 8, 12), metavar="N,N")
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="S", help="processor seconds of each solve by SCIP (default 600)"
    )
    parser.add_argument("--gap", type=float, default=0.0, metavar="G", help="relative gap at which SCIP may stop (default 0)")
    parser.add_argument("--real", action="store_true", help="sides need not be whole numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    names = options.gemms or list(SHAPES)
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"no GEMM is called {unknown[0]!r}; there are {', '.join(SHAPES)}")
    try:
        import pyscipopt  # noqa: F401
    except ImportError:
        parser.error("this benchmark needs SCIP: pip install 'cleave-plan[bench]'")
    if not options.json:
        print(HEADER)
    found = []
    for name in names:
        for devices in options.devices:
            found.append(measure(name, devices, options.limit, options.gap, options.real))
            if not options.json:
                print(show(found[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return 0
    scip_s, ours_s = sum(row.scip_took_s for row in found), sum(row.ours_took_s for row in found)
    print(f"SCIP {scip_s:.1f} s, ours {ours_s:.2f} s: {scip_s / ours_s:.0f} times faster")
    return 0


if __name__ == "__main__":
    sys.exit(main())
