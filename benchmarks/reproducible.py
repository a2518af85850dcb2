"""What reproducible runs cost, and whether they are: one model under several plans, each run both ways.

    python -m benchmarks.reproducible [MODEL...] [--repeat N] [--json]

Plans of the same model for fleets of 3, 8 and 13 devices, the last with every GEMM cut apart (``--without shared,chains``).
Ordinary and reproducible runs of the plan for 8 take turns; seconds are medians. Exits with 1 when two plans give other bits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.execute import medians
from benchmarks.model_runs import MODELS
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.planning.planner import make_plan
from models.registry import build

PLANS = {3: ("server",), 8: ("server",), 13: ("server", "shared", "chains")}
"""Devices of each plan, and what it is made without."""

TIMED = 8


def compare(name: str, folder: Path, repeat: int) -> dict[str, Any]:
    """Median seconds of both kinds of run, their ratio, and whether all plans gave the same bits."""
    path = folder / f"{name}.onnx"
    path.write_bytes(build(name, weights="seeded").SerializeToString())
    imported = load_model(path, dims=MODELS[name].dims)
    inputs = random_inputs(imported)
    plans = {
        count: make_plan(imported.workload, generate_fleet(count, preset="cleave", seed=count), without=frozenset(without))
        for count, without in PLANS.items()
    }

    def bits(session: Session) -> dict[str, bytes]:
        return {output: np.asarray(value).tobytes() for output, value in session.run(inputs).outputs.items()}

    found = []
    for plan in plans.values():
        with Session(plan, path, engine=LocalEngine(), reproducible=True) as session:
            found.append(bits(session))
    with ExitStack() as open_sessions:
        ordinary, reproducible = (
            open_sessions.enter_context(Session(plans[TIMED], path, engine=LocalEngine(), reproducible=how))
            for how in (False, True)
        )
        taken = medians({"ordinary": lambda: ordinary.run(inputs), "reproducible": lambda: reproducible.run(inputs)}, repeat)
    return {"model": name, **taken, "ratio": taken["reproducible"] / taken["ordinary"], "same": all(f == found[0] for f in found)}


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproducible", description="The cost of reproducible runs.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="measured turns (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or list(MODELS):
            row = compare(name, Path(folder), options.repeat)
            rows.append(row)
            if not options.json:
                bits = f"{len(PLANS)} plans, {'the same bits' if row['same'] else 'OTHER BITS'}"
                print(f"{name:<12}{row['ordinary']:8.3f} s{row['reproducible']:8.3f} s{row['ratio']:6.2f} x   {bits}", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    return 0 if all(row["same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
