"""One decoding step with weights kept on the devices: time per token, cold and steady, beside what streams and what stays home.

    python -m benchmarks.decode [--models opt-13b,llama-2-7b] [--batches 1,8,32] [--devices 64,256] [--presets cleave]
                                [--past 1023] [--without CHOICE]... [--json]

Reference server with 100 Gbit/s each way; the cache of keys and values comes from the server, as the ONNX model says. Seconds
by executed cost, ``bound`` and ``gap`` by ideal cost of the levels; ``streams`` is the same without reuse.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from benchmarks.tables import names, numbers
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.planning.planner import make_plan
from cleave_plan.workload.graph import Workload
from models.registry import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of a step: seconds of a token in a later batch (levels, operators) and in the first, without reuse, and on the
    server alone; gap; bytes that devices keep, copies of the weights that is, devices in use, processor time of planning."""

    model: str
    preset: str
    devices: int
    batch: int
    token_s: float
    levels_s: float
    operators_s: float
    first_s: float
    bound_s: float
    gap: float
    streams_s: float
    server_only_s: float
    kept_bytes: float
    copies: float
    devices_used: int
    planning_s: float


@cache
def step(model: str, batch: int, past: int) -> Workload:
    """The work of one decoding step of a model of the registry."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        path.write_bytes(build(model, decode=True).SerializeToString())
        return load_model(path, dims={"batch": batch, "past": past}).workload


def measure(model: str, preset: str, devices: int, batch: int, past: int, without: frozenset[str]) -> Row:
    """Plan the step with and without reuse."""
    work, fleet = step(model, batch, past), generate_fleet(devices, preset=preset)
    start = time.process_time()
    told = make_plan(work, fleet, without=without).predicted
    planning_s = time.process_time() - start
    streams = make_plan(work, fleet, without=without | {"reuse"}).predicted
    weights = sum(gemm.b_bytes for gemm in work.gemms if gemm.b.tensor in work.parameters)
    kept = sum(told.device_kept_bytes.values())
    return Row(
        model=model, preset=preset, devices=devices, batch=batch, token_s=told.batch_s, levels_s=told.levels_s,
        operators_s=told.server_operators_s, first_s=told.first_batch_s, bound_s=told.bound_s, gap=told.gap,
        streams_s=streams.batch_s, server_only_s=told.server_only_s or 0.0, kept_bytes=kept, copies=kept / max(weights, 1),
        devices_used=told.devices_used, planning_s=planning_s,
    )  # fmt: skip


HEADER = (
    f"{'model':<12}{'preset':<14}{'devices':>8}{'batch':>6}{'token ms':>10}{'levels':>9}{'operators':>10}{'first s':>9}"
    f"{'bound ms':>9}{'gap %':>7}{'streams ms':>11}{'server ms':>10}{'kept GB':>8}{'copies':>7}{'used':>5}{'took s':>7}"
)


def show(row: Row) -> str:
    """The row as a line of the table."""
    return (
        f"{row.model:<12}{row.preset:<14}{row.devices:>8}{row.batch:>6}{1e3 * row.token_s:>10.1f}{1e3 * row.levels_s:>9.1f}"
        f"{1e3 * row.operators_s:>10.1f}{row.first_s:>9.2f}{1e3 * row.bound_s:>9.1f}{100 * row.gap:>7.1f}"
        f"{1e3 * row.streams_s:>11.1f}{1e3 * row.server_only_s:>10.1f}{row.kept_bytes / 1e9:>8.1f}{row.copies:>7.2f}"
        f"{row.devices_used:>5}{row.planning_s:>7.1f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print one line for each model, preset, number of devices and batch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description="Decoding with weights on the devices.")
    parser.add_argument("--models", type=names, default=("opt-13b", "llama-2-7b"))
    parser.add_argument("--batches", type=numbers, default=(1, 8, 32))
    parser.add_argument("--devices", type=numbers, default=(64, 256))
    parser.add_argument("--presets", type=names, default=("cleave",))
    parser.add_argument("--past", type=int, default=1023, help="tokens in the cache")
    parser.add_argument("--without", action="append", default=[], metavar="CHOICE", help="switch a choice of the planner off")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    rows = []
    if not options.json:
        print(HEADER)
    for model in options.models:
        for preset in options.presets:
            for devices in options.devices:
                for batch in options.batches:
                    rows.append(measure(model, preset, devices, batch, options.past, frozenset(options.without)))
                    if not options.json:
                        print(show(rows[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
