"""One importer or counter in a process of its own, for :mod:`benchmarks.importing`.

    python -m benchmarks.mac_counters TOOL REPEATS

Reads jobs, a line of JSON each, from standard input, and writes the result of each as a line. The process loads its tool and
nothing else that takes memory, and forks for each file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

DIMS = {"batch": 1, "seq": 128}
"""What open dimensions of files without given input shapes are bound to."""

TOOLS = ("import", "profile", "count")

LIMIT_S = 60
"""Most seconds that a tool may take over one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One file: input shapes (or dimensions) to bind, its right number of multiply-adds where it is known, and the file that
    onnx-tool is given."""

    path: str
    onnx_tool_path: str
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


def counted_by(tool: str) -> Callable[[Job], int]:
    """The multiply-adds of a file by one of ``TOOLS``, which is loaded here; ``count`` is onnx-tool without its printed table."""
    return _importer() if tool == "import" else _onnx_tool(with_table=tool == "profile")


def _importer() -> Callable[[Job], int]:
    from cleave_plan.onnx_io.importer import load_model

    def run(job: Job) -> int:
        return load_model(job.path, shapes=job.shapes, dims=job.dims).workload.gemm_macs

    return run


def _onnx_tool(with_table: bool) -> Callable[[Job], int]:
    import numpy as np
    import onnx
    import onnx_tool

    def run(job: Job) -> int:
        model = onnx_tool.loadmodel(job.onnx_tool_path, {"verbose": False})
        inputs = {value.name: value.type.tensor_type for value in model.mproto.graph.input}
        shapes = job.shapes or {
            name: [dim.dim_value or DIMS[dim.dim_param] for dim in kind.shape.dim]
            for name, kind in inputs.items()
            if any(dim.dim_param for dim in kind.shape.dim)
        }
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
    run = counted_by(tool)
    for line in sys.stdin:
        print(json.dumps(asdict(in_a_fork(run, Job(**json.loads(line)), repeats))), flush=True)


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2]))
