"""What the drivers share: models as workloads, lists of numbers on the command line, and whether a bar is met."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.backward import training_workload
from cleave_plan.workload.graph import Workload
from models.registry import build


@cache
def workload(model: str, batch: int, seq: int, training: bool) -> Workload:
    """The work of one batch of a model of the registry that has these two dimensions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        path.write_bytes(build(model).SerializeToString())
        forward = load_model(path, dims={"batch": batch, "seq": seq}).workload
    return training_workload(forward) if training else forward


def numbers(text: str) -> tuple[int, ...]:
    """``64,256`` as (64, 256)."""
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """``a,b`` as ("a", "b")."""
    return tuple(part.strip() for part in text.split(","))


def verdict(value: float, bar: float | None) -> str:
    """Whether ``value`` keeps its bar; empty where there is none."""
    if bar is None:
        return ""
    return f"<= {bar:g} met" if value <= bar else f"<= {bar:g} MISSED"
