"""The child process that times this machine: it is started with BLAS held to a number of threads, and says what it finds.

Run as ``python -m cleave_plan.profiles.timing JOB`` by :mod:`cleave_plan.profiles.machine`; the environment has to be set
before NumPy is loaded, which is why this is a process of its own. JOB is JSON, and so is every line of stdout: first
``{"numpy", "blas"}``, then ``{"gemm"}`` or ``{"skipped"}`` per shape, then ``{"bandwidth"}``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHORTEST_SAMPLE_S = 1e-3
"""Products that take less are repeated inside a sample, so that the clock's grain and jitter do not show."""

COPY_BYTES = 2**26


def say(**message: Any) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def sample(action: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of one ``action``, ``repeats`` times, after two that only warm up."""
    action()
    began = time.perf_counter()
    action()
    once = max(time.perf_counter() - began, 1e-9)
    inside = max(1, math.ceil(SHORTEST_SAMPLE_S / once))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inside):
            action()
        seconds.append((time.perf_counter() - began) / inside)
    return seconds


def time_gemm(dtype: str, m: int, k: int, n: int, repeats: int) -> list[float]:
    """Seconds of ``(m, k) @ (k, n)`` in ``dtype``, into an output that is already there."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    out = np.empty((m, n), dtype)
    return sample(lambda: np.matmul(a, b, out=out), repeats)


def time_copy(repeats: int) -> float:
    """Bytes read and written per second by a copy that no cache holds, at the median."""
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    return 2 * COPY_BYTES / float(np.median(sample(lambda: np.copyto(target, source), repeats)))


def time_dtype(dtype: str, grid: list[list[int]], repeats: int, budget_s: float) -> None:
    """Time every shape of ``grid``, the smallest first, leaving out those that the budget will not hold."""
    deadline = time.monotonic() + budget_s
    rate = math.inf
    for m, k, n in sorted(grid, key=math.prod):
        expected_s = 2 * m * k * n / rate * (repeats + 2)
        if time.monotonic() + expected_s > deadline:
            say(skipped=[dtype, m, k, n])
            continue
        seconds = time_gemm(dtype, m, k, n, repeats)
        lower, median, upper = (float(value) for value in np.percentile(seconds, [25, 50, 75]))
        rate = 2 * m * k * n / median
        say(gemm=[dtype, m, k, n], median_s=median, lower_quartile_s=lower, upper_quartile_s=upper)


def blas_name() -> str:
    """The BLAS that NumPy was built with, by name and version."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {}) if isinstance(config, dict) else {}
    return f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()


def main() -> None:
    """Do the job that the command line holds as JSON."""
    job = json.loads(sys.argv[1])
    say(numpy=np.__version__, blas=blas_name())
    for dtype in job["dtypes"]:
        time_dtype(dtype, job["grid"], job["repeats"], job["budget_s"] / len(job["dtypes"]))
    say(bandwidth=time_copy(job["repeats"]))


if __name__ == "__main__":
    main()
