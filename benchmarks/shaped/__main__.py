"""Predicted against measured times of levels: over links that the kernel shapes, and in emulation.

    python -m benchmarks.shaped [links] [emulation] [--fleets N] [--devices N] [--repeat N] [--models NAME,NAME] [--json]

For each fleet: hosts in network namespaces behind links of 20 to 200 Mbit/s down and 5 to 50 up; ``profile agent`` and
``profile measure`` give its profile, ``plan`` the plan; batches run over TLS sockets, and each level's time (the median of the
batches) stands beside the plan's. ``emulation`` does the same with ``run --emulate`` on the same plans' fleets. Exit code 1
when the median error of a level misses its bar. Needs Linux, iproute2 and the right to make network namespaces; nothing
outside of them is touched.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.shaped.hosts import Hosts, enclosed, missing
from benchmarks.shaped.steps import Laboratory, drawn_links
from cleave_plan.execution.emulation import emulate
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.execution.truth import Comparison
from cleave_plan.fleet.device import Fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.plan.plan import Plan
from models.registry import build

BARS = {"links": 0.10, "emulation": 0.05}
"""The most that the median error of a level's time may be."""

MODELS = {"gpt-small": ("batch=4", "seq=128"), "mlp": ("batch=1024",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fleet and model: seconds of all levels as predicted and measured, errors of levels without sign, and the bar."""

    how: str
    fleet: str
    model: str
    levels: int
    predicted_s: float
    measured_s: float
    median_error: float
    worst_error: float
    bar: float


def row_of(how: str, fleet: str, model: str, runs: Sequence[Comparison]) -> Row:
    """The median over the runs, level by level, and what that makes."""
    levels = runs[0].levels
    measured = [statistics.median(run.levels[place].measured_s for run in runs) for place in range(len(levels))]
    errors = [abs(seconds / level.predicted_s - 1) for seconds, level in zip(measured, levels, strict=True)]
    return Row(
        how=how, fleet=fleet, model=model, levels=len(levels), predicted_s=runs[0].predicted_s, measured_s=sum(measured),
        median_error=statistics.median(errors), worst_error=max(errors), bar=BARS[how],
    )  # fmt: skip


def explain(runs: Sequence[Comparison]) -> str:
    """Milliseconds of each level and of its devices, as predicted and as each run measured."""
    lines = []
    for place, level in enumerate(runs[0].levels):
        each = ", ".join(f"{1e3 * run.levels[place].measured_s:.0f}" for run in runs)
        lines.append(f"  level {level.index} {level.gemms[0]}: predicted {1e3 * level.predicted_s:.0f} ms, measured {each}")
        for name, own in sorted(level.devices.items()):
            each = ", ".join(f"{1e3 * run.levels[place].devices[name].measured_s:.0f}" for run in runs)
            lines.append(f"    {name}: predicted {1e3 * own.predicted_s:.0f} ms, measured {each}")
    return "\n".join(lines)


def emulated(plan: Plan, model: Path, fleet: Fleet, repeat: int) -> list[Comparison]:
    """Batches at the pace of the fleet on this machine alone."""
    inputs = random_inputs(load_model(model, dims=plan.dims))
    found = []
    for _ in range(repeat):
        with Session(plan, model) as session:
            found.append(emulate(session, plan, fleet, inputs).comparison)
    return found


def fleet_rows(options: argparse.Namespace, seed: int, models: Sequence[str]) -> list[Row]:
    """Everything about one fleet."""
    links = drawn_links(options.devices, seed)
    name = f"{options.devices} devices, seed {seed}"
    rows = []
    with tempfile.TemporaryDirectory(prefix="shaped-") as place, Hosts(links) as hosts:
        folder = Path(place)
        laboratory = Laboratory(hosts, folder, say=lambda text: print(text, file=sys.stderr, flush=True))
        fleet = laboratory.measured_fleet(options.budget)
        for model in models:
            path = folder / f"{model}.onnx"
            path.write_bytes(build(model).SerializeToString())
            plan = laboratory.plan(path, MODELS[model])
            for how in options.how:
                way = laboratory.runs if how == "links" else emulated
                runs = way(plan, path, fleet, options.repeat)
                rows.append(row_of(how, name, model, runs))
                if options.levels:
                    print(f"{name}, {model}, {how}\n{explain(runs)}", file=sys.stderr, flush=True)
    return rows


def show(row: Row) -> str:
    """The row as a line of the table."""
    verdict = "holds" if row.median_error <= row.bar else "MISSED"
    return (
        f"{row.how:<10}{row.fleet:<20}{row.model:<12}{row.levels:>4} levels, predicted {row.predicted_s:7.3f} s, measured "
        f"{row.measured_s:7.3f} s; error of a level: median {row.median_error:6.1%} (bar {row.bar:.0%}: {verdict}), "
        f"worst {row.worst_error:6.1%}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; exit code 1 when a bar is missed, 2 where links cannot be shaped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shaped", description="Predicted against measured times.")
    parser.add_argument("how", nargs="*", metavar="HOW", help=f"any of {', '.join(BARS)} (default: both)")
    parser.add_argument("--fleets", type=int, default=3, metavar="N", help="fleets, of seeds 1, 2, ... (default: 3)")
    parser.add_argument("--devices", type=int, default=5, metavar="N", help="devices of each (default: 5)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="batches, of which the median counts (default: 3)")
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,NAME", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--budget", type=float, default=8.0, metavar="S", help="seconds to measure each link for (default: 8)")
    parser.add_argument("--levels", action="store_true", help="say every level and device on stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    options.how = options.how or list(BARS)
    models = options.models.split(",")
    for given, known in ((options.how, BARS), (models, MODELS)):
        if unknown := [each for each in given if each not in known]:
            parser.error(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    if why := missing():
        print(f"links cannot be shaped here: {why}", file=sys.stderr)
        return 2
    code = enclosed("benchmarks.shaped", sys.argv[1:] if arguments is None else arguments)
    if code is not None:
        return code
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[Row] = []
    try:
        for seed in range(1, options.fleets + 1):
            found = fleet_rows(options, seed, models)
            rows += found
            if not options.json:
                print("\n".join(map(show, found)), flush=True)
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 1 if any(row.median_error > row.bar for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
