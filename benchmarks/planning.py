"""How long planning takes and how near the bound each level comes.

    python -m benchmarks.planning [CASE...] [--devices 64,256,1024] [--without server] [--json]

Times of levels are ideal cost, as the certificate is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cases import CASES, Case
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import LevelReport, Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.graph import Workload
from models.registry import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One level (or ``count`` identical ones): ideal seconds, bound, and how far above it in percent."""

    gemms: str
    count: int
    time_s: float
    bound_s: float
    above_percent: float
    binds: str
    modes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One planning run, in seconds: ``import_s`` to read the model, ``planning_s`` to plan it."""

    case: str
    devices: int
    import_s: float
    planning_s: float
    batch_s: float
    gap: float
    rows: tuple[Row, ...]


def measure(name: str, case: Case, workload: Workload, import_s: float, devices: int, without: frozenset[str]) -> Measured:
    """Plan ``workload`` over ``devices`` devices and tell each level."""
    fleet = generate_fleet(devices, preset=case.preset)
    start = time.perf_counter()
    plan = make_plan(workload, fleet, without=without)
    planning_s = time.perf_counter() - start
    return Measured(
        case=name,
        devices=devices,
        import_s=import_s,
        planning_s=planning_s,
        batch_s=plan.predicted.batch_s,
        gap=plan.predicted.gap,
        rows=tuple(_row(level, plan) for level in plan.predicted.levels if level.gemms),  # chains leave levels empty
    )


def _row(level: LevelReport, plan: Plan) -> Row:
    modes = {a.mode.value for a in plan.assignments if set(a.gemms) & set(level.gemms)}
    return Row(
        gemms=", ".join(name.removeprefix("layers.0.") for name in level.gemms),
        count=level.count,
        time_s=level.ideal_s,
        bound_s=level.bound_s,
        above_percent=100 * (level.ideal_s / level.bound_s - 1) if level.bound_s else 0.0,
        binds=level.binds,
        modes=", ".join(sorted(modes)),
    )


def read(case: Case) -> tuple[Workload, float]:
    """Build the model in a temporary folder and import it; the seconds that the import took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.model}.onnx"
        path.write_bytes(build(case.model).SerializeToString())
        start = time.perf_counter()
        workload = load_model(path, dims=case.dims).workload
        return workload, time.perf_counter() - start


def show(result: Measured) -> str:
    """The run as text: one line a level, then the totals."""
    lines = [
        f"{result.case}, {result.devices} devices: imported in {result.import_s:.2f} s, planned in {result.planning_s:.2f} s; "
        f"batch {result.batch_s:.1f} s, gap {100 * result.gap:.2f} %",
        f"  {'GEMMs of the level':<64} {'x':>3} {'time s':>9} {'bound s':>9} {'above':>8}  binds, modes",
    ]
    lines += [
        f"  {row.gemms:<64} {row.count:>3} {row.time_s:>9.4f} {row.bound_s:>9.4f} {row.above_percent:>6.2f} %  "
        f"{row.binds}, {row.modes}"
        for row in result.rows
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the named cases (default opt-13b) and print what was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planning", description="Planning time and distance from the bound."
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)} (default: opt-13b)")
    parser.add_argument("--devices", type=lambda text: tuple(int(part) for part in text.split(",")), metavar="N,N")
    parser.add_argument("--without", action="append", default=[], metavar="CHOICE", help="switch a choice of the planner off")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    names = options.cases or ["opt-13b"]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}; there are {', '.join(CASES)}")
    results = []
    for name in names:
        workload, import_s = read(CASES[name])
        for devices in options.devices or CASES[name].devices:
            results.append(measure(name, CASES[name], workload, import_s, devices, frozenset(options.without)))
            if not options.json:
                print(show(results[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
