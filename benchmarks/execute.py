"""How fast plans run on this machine: a large product, many small tiles, memory, and whole models beside onnxruntime.

    python -m benchmarks.execute [gemm] [tiles] [memory] [gpt2] [resnet-50] [--repeat N] [--without ray,dask] [--json]

Everything is measured in one run, the compared tools in turn, and the figure is the median: a machine that is busy with other
things slows both sides alike. The bars are those that the project sets itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.memory import PeakMemory
from benchmarks.model_runs import MODELS, model_rows
from benchmarks.tile_runners import RIVALS, Ours, Runner, boxes_of
from cleave_plan.kernels.arrays import Array

WORKERS = 4
MB = 1e6


REST_S = 0.05
"""Seconds before each measured action: threads of the tool before spin for a while, and take a core from whoever comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: ``value`` in ``unit`` (lower is better), and the ``bar`` that it must not exceed, if it has one."""

    case: str
    what: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it holds."""
        if self.bar is None:
            return ""
        return f"<= {self.bar:g}: {'holds' if self.value <= self.bar else 'MISSED'}"


def medians(actions: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Median seconds of each action; the actions take turns, with a rest before each, after one unmeasured turn each."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeat + 1):
        for name, action in actions.items():
            time.sleep(REST_S)
            start = time.perf_counter()
            action()
            if turn:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def rivals(without: Sequence[str], workers: int) -> list[Runner]:
    """The other tools that are installed; those that are not are said on stderr."""
    found: list[Runner] = []
    for name, make in RIVALS.items():
        if name in without:
            continue
        try:
            found.append(make(workers))
        except ImportError:
            print(f"{name} is not installed, so it is not compared (extra `bench`)", file=sys.stderr)
    return found


def drawn(m: int, n: int, k: int) -> tuple[Array, Array]:
    """Seeded float32 operands."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((m, k), dtype=np.float32), generator.standard_normal((k, n), dtype=np.float32)


def check(runner: Runner, got: Array, wanted: Array) -> None:
    """Raise AssertionError when a tool's result is not the product: a fast wrong answer is no figure."""
    if not np.allclose(got, wanted, rtol=1e-4, atol=1e-3):
        raise AssertionError(f"{runner.name} does not give the product")


def compare(
    case: str, sizes: tuple[int, int, int], grid: tuple[int, int], repeat: int, without: Sequence[str]
) -> dict[str, float]:
    """Median seconds of one product by each tool's name, and by NumPy; ``+`` marks ours with operands in place."""
    a, b = drawn(*sizes)
    boxes = boxes_of(*sizes, *grid)
    wanted = a @ b
    with ExitStack() as running:
        ours = running.enter_context(Ours(WORKERS))
        shared = ours.engine.share(a), ours.engine.share(b)
        tools: list[Runner] = [ours, *(running.enter_context(rival) for rival in rivals(without, WORKERS))]
        for tool in tools:
            check(tool, tool.run(a, b, boxes), wanted)
        actions: dict[str, Callable[[], object]] = {"NumPy": lambda: a @ b, "+": lambda: ours.run(*shared, boxes)}
        actions |= {tool.name: (lambda tool=tool: tool.run(a, b, boxes)) for tool in tools}
        return medians(actions, repeat)


def gemm_rows(size: int, repeat: int, without: Sequence[str]) -> list[Row]:
    """One square product as 16 tiles over four workers, beside NumPy with as many threads as there are cores."""
    case = f"{size}^3 float32, 16 tiles, {WORKERS} workers"
    taken = compare(case, (size, size, size), (4, 4), repeat, without)
    numpy_s, in_place_s, ours_s = taken.pop("NumPy"), taken.pop("+"), taken.pop("cleave-plan")
    rows = [
        Row(case=case, what="NumPy, all cores", value=numpy_s, unit="s"),
        Row(case=case, what="cleave-plan", value=ours_s, unit="s"),
        Row(case=case, what="cleave-plan / NumPy", value=ours_s / numpy_s, unit="x", bar=1.15),
        Row(case=case, what="same, operands in place / NumPy", value=in_place_s / numpy_s, unit="x"),
    ]
    return rows + [Row(case=case, what=f"cleave-plan / {name}", value=ours_s / s, unit="x", bar=1.0) for name, s in taken.items()]


def tile_rows(tiles: int, repeat: int, without: Sequence[str]) -> list[Row]:
    """Many tiles of 64 x 64 with an inner axis of 64: what each costs beside its arithmetic."""
    case = f"{tiles} tiles of 64 x 64 x 64"
    taken = compare(case, (64 * 25, 64 * (tiles // 25), 64), (25, tiles // 25), repeat, without)
    ours_s = taken.pop("cleave-plan")
    del taken["+"], taken["NumPy"]
    rows = [Row(case=case, what="cleave-plan, each", value=1e6 * ours_s / tiles, unit="us", bar=100)]
    return rows + [Row(case=case, what=f"cleave-plan / {name}", value=ours_s / s, unit="x", bar=1.0) for name, s in taken.items()]


def memory_rows(size: int) -> list[Row]:
    """Peak memory of the product above, over the server and its workers, shared pages counted once (PSS).

    It is measured in a process of its own: this one may hold what other cases left.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(_memory_rows, size).result()


def _memory_rows(size: int) -> list[Row]:
    case = f"memory, {size}^3 float32, {WORKERS} workers"
    a, b = drawn(size, size, size)
    with Ours(WORKERS) as ours, PeakMemory() as peak:
        for _ in range(3):
            result = ours.run(a, b, boxes_of(size, size, size, 4, 4))
            peak.look()
    arrays = a.nbytes + b.nbytes + result.nbytes
    allowed = arrays + WORKERS * 64 * MB + 250 * MB
    return [
        Row(case=case, what="operands and result", value=arrays / MB, unit="MB"),
        Row(case=case, what="peak", value=peak.bytes / MB, unit="MB", bar=round(allowed / MB, 1)),
    ]


def show(row: Row) -> str:
    """The row as a line of the table."""
    return f"{row.case:<42}{row.what:<58}{row.value:>10.4g} {row.unit:<4}{row.verdict}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; exit code 1 when a bar is missed."""
    cases = ("gemm", "tiles", "memory", *MODELS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute", description="How fast plans run on this machine.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(cases)} (default: all)")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="measured turns of each tool (default: 5)")
    parser.add_argument("--size", type=int, default=4096, metavar="N", help="edge of the large product (default: 4096)")
    parser.add_argument("--tiles", type=int, default=1000, metavar="N", help="small tiles, a multiple of 25 (default: 1000)")
    parser.add_argument("--without", default="", metavar="TOOL,TOOL", help=f"do not compare with these of {', '.join(RIVALS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in cases]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(cases)}")
    without = options.without.split(",")
    rows: list[Row] = []
    for case in options.cases or cases:
        if case == "gemm":
            found = gemm_rows(options.size, options.repeat, without)
        elif case == "tiles":
            found = tile_rows(options.tiles, options.repeat, without)
        elif case == "memory":
            found = memory_rows(options.size)
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = [Row(**row) for row in model_rows(case, Path(folder), options.repeat, medians)]
        rows += found
        if not options.json:
            print("\n".join(map(show, found)), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 1 if any(row.verdict.endswith("MISSED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
