"""What a training step costs over local workers, beside the same gradient graph in onnxruntime on the same two cores.

    python -m benchmarks.training [--model gpt-small] [--batch 8] [--seq 128] [--repeat N] [--servers N] [--reproducible] [--json]

Both are fed the same parameters and batch and take turns; figures are medians of the steps after the first few, in which memory
grows (the first one's time is shown too). With several servers the parameters that products read are striped over them evenly.
The profile says where a step's time goes: levels (waiting for tiles), the server's segments between them, the optimizer.
Processor time is that of all processes: the better figure on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from cleave_plan.api.models import gradient_request
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.plan.plan import Plan
from cleave_plan.planning.planner import make_plan
from cleave_plan.training.ownership import shards_of
from cleave_plan.training.parameters import Parameters, elements_of
from cleave_plan.training.settings import Settings
from cleave_plan.training.step import TrainingStep, outputs_of, training_step
from models.registry import build

WORKERS = 4
WARM = 3
"""Steps that are not counted: the memory that steps share grows to its size in them, page by page."""
BAR = 2.0
LEAST_SHARE = 0.8


def share_on_devices(plan: Plan, step: TrainingStep) -> float:
    """The share of the GEMM FLOP that the plan's devices compute."""
    macs = {gemm.name: gemm.macs for gemm in step.imported.workload.gemms}
    away = 0.0
    for assignment in plan.assignments:
        total = sum(macs[name] for name in assignment.gemms)
        volumes = _volumes(assignment.tiles).astype(float)
        on_devices = volumes[assignment.tiles.device < len(plan.device_names)].sum()
        away += total * (on_devices / volumes.sum() if len(volumes) else 0.0)
    return away / sum(macs.values())


def striped(plan: Plan, servers: int) -> Plan:
    """``plan`` with the parameters of each product on so many servers, the same share on each."""
    names = tuple(f"server-{number + 1}" for number in range(servers))
    shares = tuple(1 / servers for _ in names)
    assignments = tuple(replace(each, servers=names, shares=shares) for each in plan.assignments)
    return replace(plan, server_names=names, assignments=assignments)


def _volumes(tiles: Any) -> np.ndarray:
    sides = [tiles.column(f"{axis}_stop") - tiles.column(f"{axis}_start") for axis in ("m", "n", "k", "batch")]
    return np.prod(np.stack(sides), axis=0)


def whole_step(step: TrainingStep, threads: int) -> onnxruntime.InferenceSession:
    """The gradient graph in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # that parameters are inputs is what is wanted
    return onnxruntime.InferenceSession(
        step.gradient.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )  # fmt: skip


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures of one model."""
    path = folder / "model.onnx"
    path.write_bytes(build(options.model, batch=options.batch, seq=options.seq, weights="seeded").SerializeToString())
    step = training_step(path, *gradient_request(loss="cross-entropy"))
    plan = make_plan(step.imported.workload, generate_fleet(WORKERS, preset="cleave"), without=frozenset({"server"}))
    plan = striped(plan, options.servers)
    inputs = random_inputs(step.imported)
    whole = whole_step(step, 2)
    names = [value.name for value in whole.get_outputs()]
    initial, statistics_ = step.initial()
    engine = LocalEngine(WORKERS)
    with Session(plan, step.imported, engine=engine, reproducible=options.reproducible) as session:
        shards = shards_of(plan, step.imported.workload, elements_of(initial))
        parameters = Parameters(initial, statistics_, shards, Settings(), servers=plan.server_names, room=session.memory)
        turns = []
        for _ in range(WARM + options.repeat):
            given = inputs | parameters.feeds
            expected, figures = timed("onnxruntime", whole.run, names, given)
            result, taken = timed("step", session.run, given, processes=engine.processes)
            check(result.outputs, dict(zip(names, expected, strict=True)))
            figures |= taken | {"levels_s": sum(timing.seconds for timing in result.timings)}
            figures |= {"devices_busy_s": sum(result.device_s.values())}
            gradients = outputs_of(step.gradient.names.gradients, result.outputs)
            turns.append(figures | timed("optimizer", parameters.step, gradients, step=1, share=0.0)[1])
            counts = {"tiles": result.tiles_run, "levels": len(result.timings)}
            # A trainer keeps no step's gradients: kept here, they would have each step write to pages that it must first get.
            del given, expected, result, gradients
        held = [memory.parameter_bytes + memory.optimizer_bytes for memory in parameters.memory.values()]
        parameters.close()
    median = {name: statistics.median(turn[name] for turn in turns[WARM:]) for name in turns[0]}
    return {
        "model": options.model, "batch": options.batch, "seq": options.seq, "reproducible": options.reproducible,
        "servers": options.servers, "held_by_servers": held, "share_on_devices": share_on_devices(plan, step), **counts,
        "first_step_s": turns[0]["step_s"], "onnxruntime_s": median["onnxruntime_s"], "step_s": median["step_s"],
        "levels_s": median["levels_s"], "segments_s": median["step_s"] - median["levels_s"],
        "devices_busy_s": median["devices_busy_s"], "optimizer_s": median["optimizer_s"],
        "ratio": median["step_s"] / median["onnxruntime_s"],
        "ratio_with_optimizer": (median["step_s"] + median["optimizer_s"]) / median["onnxruntime_s"],
        "cpu_onnxruntime_s": median["cpu_onnxruntime_s"], "cpu_step_s": median["cpu_step_s"],
        "cpu_ratio": median["cpu_step_s"] / median["cpu_onnxruntime_s"],
    }  # fmt: skip


def timed(
    name: str, work: Callable[..., Any], *given: Any, processes: Sequence[int] = (), **named: Any
) -> tuple[Any, dict[str, float]]:
    """What ``work`` gives, and what it took: seconds, and seconds of processor time here and in ``processes``."""
    start, begun = time.perf_counter(), time.process_time() + cpu_seconds(processes)
    result = work(*given, **named)
    seconds = time.perf_counter() - start
    return result, {f"{name}_s": seconds, f"cpu_{name}_s": time.process_time() + cpu_seconds(processes) - begun}


def cpu_seconds(processes: Sequence[int]) -> float:
    """Processor time that other processes have had: it tells on a busy machine too what is done."""
    fields = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes]
    return sum(int(row[11]) + int(row[12]) for row in fields) / os.sysconf("SC_CLK_TCK")


def check(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise AssertionError when the gradients differ: a fast wrong answer is no figure."""
    for name, array in wanted.items():
        if not np.linalg.norm(got[name] - array) <= 1e-4 * max(1e-3, float(np.linalg.norm(array))):
            raise AssertionError(f"{name} is not what onnxruntime gives")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; exit code 1 when the bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description="A training step over local workers.")
    parser.add_argument("--model", default="gpt-small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--reproducible", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>20}  {value:.4g}" if isinstance(value, float) else f"{name:>20}  {value}")
    holds = found["ratio"] <= BAR and found["share_on_devices"] >= LEAST_SHARE
    return 0 if holds or options.reproducible else 1


if __name__ == "__main__":
    sys.exit(main())
