"""Measuring the machine that this runs on: GEMM over a grid of shapes and element types, memory, memory bandwidth.

The timing happens in a child process (:mod:`cleave_plan.profiles.timing`) whose BLAS is held to a fixed number of
threads, one by default, as workers of the local engine are. NumPy has no float16 arithmetic of its own: its float16
products are emulated and slow, and are measured as they are.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cleave_plan.errors import ExecutionError, UsageError
from cleave_plan.fleet.device import Provenance, Quality
from cleave_plan.fleet.figures import Figure
from cleave_plan.profiles.records import GemmMeasurement, Profile, ProfileKind
from cleave_plan.progress import Progress, silent

Shape = tuple[int, int, int]

DEFAULT_GRID: tuple[Shape, ...] = (
    *((size, size, size) for size in (16, 32, 64, 128, 256, 512, 1024, 2048)),
    (16, 1024, 16), (64, 4096, 64), (256, 4096, 256), (1024, 256, 1024), (32, 1024, 1024),
)  # fmt: skip
"""Shapes ``(m, k, n)``: cubes, and the deep, flat and low tiles that plans cut."""

MEASURABLE = ("float32", "float64", "float16")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_GRACE_S = 30.0
_LARGEST_SIDE = 2**16
_MOST_SHAPES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMeasurement:
    """The measured profile, and the ``(dtype, m, k, n)`` that the time budget did not hold."""

    profile: Profile
    skipped: tuple[tuple[str, int, int, int], ...]


def measure_machine(
    name: str,
    *,
    grid: Sequence[Shape] = DEFAULT_GRID,
    dtypes: Sequence[str] = ("float32", "float64"),
    repeats: int = 7,
    threads: int = 1,
    budget_s: float = 60.0,
    progress: Progress = silent,
) -> MachineMeasurement:
    """Time this machine's GEMM and return it as a profile called ``name``.

    Each shape gives the median and quartiles of ``repeats`` samples after a warm-up. ``budget_s`` is shared equally by
    the element types; a shape that would not fit into what is left is skipped and named. Raises UsageError for
    arguments that cannot be meant, ExecutionError when the timing process fails.
    """
    _check_arguments(grid, dtypes, repeats, threads, budget_s)
    job = {"grid": [list(shape) for shape in grid], "dtypes": list(dtypes), "repeats": repeats, "budget_s": budget_s}
    total, today = len(grid) * len(dtypes) + 1, datetime.date.today().isoformat()
    found = _Found(threads=threads, repeats=repeats, date=today)
    with _timing_process(job, threads, budget_s + _GRACE_S) as messages:
        for message in messages:
            label = found.take(message)
            progress(len(found.gemms) + len(found.skipped) + (found.bandwidth is not None), total, label)
    measured = {"memory": _memory_bytes(), "memory_bandwidth": found.bandwidth}
    mark = Provenance(quality=Quality.MEASURED, source=f"this machine, {processor_name()}", date=today)
    figures = {key: Figure(value=float(value), provenance=mark) for key, value in measured.items() if value is not None}
    profile = Profile(name=name, kind=ProfileKind.MACHINE, title=processor_name(), figures=figures, gemms=tuple(found.gemms))
    return MachineMeasurement(profile=profile, skipped=tuple(found.skipped))


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the child has said so far."""

    threads: int
    repeats: int
    date: str
    library: dict[str, Any] = field(default_factory=dict)
    gemms: list[GemmMeasurement] = field(default_factory=list)
    skipped: list[tuple[str, int, int, int]] = field(default_factory=list)
    bandwidth: float | None = None

    def take(self, message: dict[str, Any]) -> str:
        """Keep one message; returns what it was about, for a progress bar."""
        if "skipped" in message:
            dtype, m, k, n = message["skipped"]
            self.skipped.append((dtype, m, k, n))
            return f"skipped {dtype} {m} x {k} x {n}"
        if "gemm" in message:
            dtype, m, k, n = message.pop("gemm")
            self.gemms.append(GemmMeasurement(
                dtype=dtype, m=m, k=k, n=n, threads=self.threads, repeats=self.repeats, date=self.date, **self.library, **message,
            ))  # fmt: skip
            return f"{dtype} {m} x {k} x {n}"
        if "bandwidth" in message:
            self.bandwidth = message["bandwidth"]
            return "memory bandwidth"
        self.library = message
        return f"NumPy {message['numpy']}, {message['blas']}"


def _check_arguments(grid: Sequence[Shape], dtypes: Sequence[str], repeats: int, threads: int, budget_s: float) -> None:
    if not 1 <= len(grid) <= _MOST_SHAPES or any(not 1 <= side <= _LARGEST_SIDE for shape in grid for side in shape):
        raise UsageError(
            "a grid that cannot be timed", expected=f"1 to {_MOST_SHAPES} shapes (m, k, n) with sides of 1 to {_LARGEST_SIDE}"
        )
    if len(set(grid)) < len(grid) or len(set(dtypes)) < len(dtypes):
        raise UsageError("a shape or element type twice", expected="each once")
    unknown = [dtype for dtype in dtypes if dtype not in MEASURABLE]
    if not dtypes or unknown:
        raise UsageError(
            f"element type {unknown[0]!r}" if unknown else "no element type", expected=f"one or more of {', '.join(MEASURABLE)}",
            remedy="NumPy multiplies no others; import figures that another tool measured",
        )  # fmt: skip
    if repeats < 1 or not 1 <= threads <= 4096 or not 0 < budget_s < float("inf"):
        raise UsageError(f"{repeats} repeats, {threads} threads, {budget_s} s", expected="at least 1, 1 to 4096, and above 0 s")


@contextmanager
def _timing_process(job: dict[str, Any], threads: int, limit_s: float) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the child, hand it the job, give its messages; it is ended after ``limit_s`` seconds or with this block."""
    environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    command = [sys.executable, "-m", "cleave_plan.profiles.timing", json.dumps(job)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment)
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        try:
            yield _messages(process, complaints)
        finally:
            timer.cancel()
            process.kill()
            process.communicate()


def _messages(process: subprocess.Popen[str], complaints: IO[str]) -> Iterator[dict[str, Any]]:
    """The child's messages until it ends; raises ExecutionError with its last words when it did not finish."""
    for line in process.stdout or ():
        if line.endswith("\n"):  # a killed child may leave half a line
            yield json.loads(line)
    if process.wait() != 0:
        complaints.seek(0)
        last = (complaints.read().strip().splitlines() or ["it was killed"])[-1]
        raise ExecutionError(f"the timing process ended early: {last}", remedy="measure a smaller grid or with a larger budget")


def _memory_bytes() -> int | None:
    """Physical memory, or None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def processor_name() -> str:
    """The processor in words: the system's name for it, or the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split()) or platform.machine()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"
