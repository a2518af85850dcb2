"""Importing against a widely used MAC counter: process time and peak memory over many files.

    python -m benchmarks.importing [FILE...] [--corpus FOLDER] [--models opt-13b,llama-2-70b] [--repeats 3] [--json]

Each tool has one process that loads it, and a fork of that for each file; a file's time is the best of the repeats, without
loading the tool. The tools take turns, file by file. ``profile`` is onnx-tool's own call, which ends with its printed table;
``count`` leaves the table out. FOLDER holds ``truth.jsonl`` with the path, input shapes and right MACs of each model. Other files
come with ``batch=1, seq=128``, and so do the models of this project, which are built without weights; what onnx-tool is given in
their place, :mod:`benchmarks.weights_as_inputs` says. onnx-tool is in the extra ``bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from benchmarks.mac_counters import DIMS, TOOLS, Job, Result
from benchmarks.tables import names
from benchmarks.weights_as_inputs import weights_as_inputs
from models.registry import build

MODELS = ("opt-13b", "llama-2-70b")
"""What is built and measured beside the files."""


class Worker:
    """A process that has ``tool`` loaded, from bytecode as an installed package is."""

    def __init__(self, tool: str, repeats: int) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.mac_counters", tool, str(repeats)]
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


def corpus_jobs(folder: Path) -> list[Job]:
    """The models of ``folder``'s ``truth.jsonl``."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
    return [
        Job(path=path, onnx_tool_path=path, dims={}, shapes=entry["input_shapes"], macs=entry["gemm_macs"])
        for entry in entries
        for path in [str(folder / entry["path"])]
    ]


def file_job(path: Path, scratch: Path) -> Job:
    """A file with the dimensions batch and seq; where its weights lie elsewhere, onnx-tool gets a copy without them."""
    model = onnx.load_model(path, load_external_data=False)
    copy = path
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        copy = scratch / f"{path.stem}.weights-as-inputs.onnx"
        onnx.save_model(weights_as_inputs(model), copy)
    return Job(path=str(path), onnx_tool_path=str(copy), dims=DIMS, shapes={}, macs=None)


def built(name: str, scratch: Path) -> Path:
    """The file of one of this project's models, without weights."""
    path = scratch / f"{name}.onnx"
    onnx.save_model(build(name, weights="none"), path)
    return path


def summary(jobs: list[Job], results: dict[str, list[Result]], places: Sequence[int]) -> dict[str, dict[str, float]]:
    """Totals of each tool over the jobs at ``places``: times and memory over those that every tool counts."""
    both = [place for place in places if all(found[place].macs is not None for found in results.values())]
    table = {}
    for tool, found in results.items():
        truths = [(jobs[place].macs, found[place].macs) for place in places]
        table[tool] = {
            "counted": sum(found[place].macs is not None for place in places),
            "files": len(places),
            "off_by_more_than_1_percent": sum(
                right is not None and got is not None and abs(got - right) > 0.01 * right for right, got in truths
            ),
            "common_files": len(both),
            "seconds": sum(found[place].seconds for place in both),
            "largest_peak_bytes": max((found[place].peak_bytes for place in both), default=0),
            "mean_peak_bytes": sum(found[place].peak_bytes for place in both) / max(1, len(both)),
        }
    return table


def print_table(title: str, table: dict[str, dict[str, float]]) -> None:
    """One group of files: a line for each tool, and how the times compare."""
    print(f"\n{title}")
    print(f"{'tool':<9}{'counts':>12}{'>1 % off':>10}{'common':>8}{'seconds':>9}{'peak MB':>9}{'mean MB':>9}")
    for tool, row in table.items():
        print(
            f"{tool:<9}{row['counted']:>7.0f}/{row['files']:<4.0f}{row['off_by_more_than_1_percent']:>10.0f}"
            f"{row['common_files']:>8.0f}{row['seconds']:>9.3f}{row['largest_peak_bytes'] / 1e6:>9.1f}"
            f"{row['mean_peak_bytes'] / 1e6:>9.1f}"
        )
    if table["import"]["common_files"]:
        print(f"import is {table['profile']['seconds'] / table['import']['seconds']:.2f} times as fast as profile")


def main(arguments: list[str] | None = None) -> int:
    """Measure every tool over the same files and print the totals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing", description="Importing against a MAC counter.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="further models with the dimensions batch and seq")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="folder with truth.jsonl")
    parser.add_argument(
        "--models", type=names, default=MODELS, metavar="NAME,...", help=f"models to build (default: {','.join(MODELS)})"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each file (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        corpus = corpus_jobs(options.corpus) if options.corpus else []
        files = [*options.files, *(built(name, scratch) for name in options.models)]
        jobs = [*corpus, *(file_job(path, scratch) for path in files)]
        results = measured(jobs, options.repeats)
    groups = {"corpus": range(len(corpus)), "large models": range(len(corpus), len(jobs)), "all": range(len(jobs))}
    tables = {title: summary(jobs, results, places) for title, places in groups.items() if places}
    if options.json:
        print(json.dumps(tables, indent=2))
        return 0
    for title, table in tables.items():
        print_table(title, table)
    for place in groups["large models"]:
        lines = [f"{tool} {found[place].error or _figures(found[place])}" for tool, found in results.items()]
        print(f"{Path(jobs[place].path).name}: {'; '.join(lines)}")
    return 0


def _figures(result: Result) -> str:
    return f"{result.seconds:.3f} s, {result.peak_bytes / 1e6:.0f} MB, {result.macs:,} multiply-adds"


if __name__ == "__main__":
    sys.exit(main())
