"""Importing against a widely used MAC counter: process time and peak memory over many files.

    python -m benchmarks.importing [FILE...] [--corpus FOLDER] [--repeats 3] [--json]

Each tool has one process that loads it, and a fork of that for each file; a file's time is the best of the repeats, without
loading the tool. The tools take turns, file by file. ``profile`` is onnx-tool's own call, which ends with its printed table;
``count`` leaves the table out. FOLDER holds ``truth.jsonl`` with the path, input shapes and right MACs of each model. Files
without a folder come with ``batch=1, seq=128``. onnx-tool is in the extra ``bench``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 60
"""Most seconds that a tool may take over one file."""

DIMS = {"batch": 1, "seq": 128}
TOOLS = ("import", "profile", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One file: input shapes (or dimensions) to bind, and its right number of multiply-adds where it is known."""

    path: str
    dims: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    macs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a tool made of one file: ``seconds`` of process time, ``peak_bytes`` of its process, or why it gave no number."""

    macs: int | None
    error: str
    seconds: float
    peak_bytes: int


def importer() -> Callable[[Job], int]:
    """Our import."""
    from cleave_plan.onnx_io.importer import load_model

    def run(job: Job) -> int:
        return load_model(job.path, shapes=job.shapes, dims=job.dims).workload.gemm_macs

    return run


def counter(with_table: bool) -> Callable[[Job], int]:
    """onnx-tool's profile, with or without its table."""
    import numpy as np
    import onnx
    import onnx_tool

    def run(job: Job) -> int:
        model = onnx_tool.loadmodel(job.path, {"verbose": False})
        inputs = {value.name: value.type.tensor_type for value in model.mproto.graph.input}
        shapes = job.shapes or dict.fromkeys(inputs, (DIMS["batch"], DIMS["seq"]))
        feeds = {
            name: np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(inputs[name].elem_type)) for name, shape in shapes.items()
        }
        model.graph.graph_reorder_nodes()
        model.graph.shape_infer(feeds)
        model.graph.profile()
        if with_table:
            model.graph.print_node_map()
        return round(model.graph.macs[0])

    return run


def in_a_fork(run: Callable[[Job], int], job: Job, repeats: int) -> Result:
    """The best of ``repeats`` runs in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(LIMIT_S)
        macs, error, best = None, "", float("inf")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for _ in range(repeats):
                start = time.process_time()
                try:
                    macs = run(job)
                except Exception as failure:  # a counter may raise whatever it likes
                    error = f"{type(failure).__name__}: {failure}"[:200]
                best = min(best, time.process_time() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        os.write(write, json.dumps([macs, error, best, peak]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return Result(macs=None, error=f"no answer in {LIMIT_S} s", seconds=float(LIMIT_S), peak_bytes=0)
    macs, error, seconds, peak = json.loads(text)
    return Result(macs=macs, error=error, seconds=seconds, peak_bytes=peak)


def worker(tool: str, repeats: int) -> None:
    """Read jobs, a line of JSON each, from standard input; write the result of each as a line."""
    run = importer() if tool == "import" else counter(with_table=tool == "profile")
    for line in sys.stdin:
        print(json.dumps(asdict(in_a_fork(run, Job(**json.loads(line)), repeats))), flush=True)


class Worker:
    """A process that has ``tool`` loaded, from bytecode as an installed package is."""

    def __init__(self, tool: str, repeats: int) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.importing", "--worker", tool, "--repeats", str(repeats)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, check=True)  # writes the bytecode
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )

    def result(self, job: Job) -> Result:
        """What the tool makes of one file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(job)), file=self._process.stdin, flush=True)
        return Result(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measured(jobs: list[Job], repeats: int) -> dict[str, list[Result]]:
    """All jobs by every tool: each file by one tool after the other, so that what else the machine does falls on all alike."""
    workers = {tool: Worker(tool, repeats) for tool in TOOLS}
    rows = [{tool: worker.result(job) for tool, worker in workers.items()} for job in jobs]
    for process in workers.values():
        process.close()
    return {tool: [row[tool] for row in rows] for tool in TOOLS}


def jobs_of(folder: Path | None, files: list[Path]) -> list[Job]:
    """The models of the corpus, then ``files``."""
    lines = (folder / "truth.jsonl").read_text().splitlines() if folder is not None else []
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    jobs = [
        Job(path=str(folder / entry["path"]), dims={}, shapes=entry["input_shapes"], macs=entry["gemm_macs"])
        for entry in entries
        if folder is not None
    ]
    return [*jobs, *(Job(path=str(path), dims=DIMS, shapes={}, macs=None) for path in files)]


def summary(jobs: list[Job], results: dict[str, list[Result]]) -> dict[str, dict[str, float]]:
    """Totals of each tool, over the files that every tool counts."""
    both = [place for place in range(len(jobs)) if all(found[place].macs is not None for found in results.values())]
    table = {}
    for tool, found in results.items():
        truths = [(job.macs, result.macs) for job, result in zip(jobs, found, strict=True) if job.macs is not None]
        table[tool] = {
            "counted": sum(result.macs is not None for result in found),
            "files": len(jobs),
            "off_by_more_than_1_percent": sum(got is not None and abs(got - right) > 0.01 * right for right, got in truths),
            "common_files": len(both),
            "seconds": sum(found[place].seconds for place in both),
            "largest_peak_bytes": max((found[place].peak_bytes for place in both), default=0),
            "mean_peak_bytes": sum(found[place].peak_bytes for place in both) / max(1, len(both)),
        }
    return table


def main(arguments: list[str] | None = None) -> int:
    """Measure every tool over the same files and print the totals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing", description="Importing against a MAC counter.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="further models with the dimensions batch and seq")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="folder with truth.jsonl")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each file (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--worker", choices=TOOLS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.worker, options.repeats)
        return 0
    jobs = jobs_of(options.corpus, options.files)
    results = measured(jobs, options.repeats)
    table = summary(jobs, results)
    if options.json:
        print(json.dumps(table, indent=2))
        return 0
    print(f"{'tool':<9}{'counts':>12}{'>1 % off':>10}{'common':>8}{'seconds':>9}{'peak MB':>9}{'mean MB':>9}")
    for tool, row in table.items():
        print(
            f"{tool:<9}{row['counted']:>7.0f}/{row['files']:<4.0f}{row['off_by_more_than_1_percent']:>10.0f}"
            f"{row['common_files']:>8.0f}{row['seconds']:>9.3f}{row['largest_peak_bytes'] / 1e6:>9.1f}"
            f"{row['mean_peak_bytes'] / 1e6:>9.1f}"
        )
    for place in range(len(jobs) - len(options.files), len(jobs)):
        ours, theirs = results["import"][place], results["profile"][place]
        print(
            f"{Path(jobs[place].path).name}: imported in {ours.seconds:.2f} s, {ours.peak_bytes / 1e6:.0f} MB; "
            f"onnx-tool: {theirs.error or theirs.macs}"
        )
    if table["import"]["common_files"]:
        print(f"import is {table['profile']['seconds'] / table['import']['seconds']:.2f} times as fast as profile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
