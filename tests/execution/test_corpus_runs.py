"""Models that this project did not write, cut at random and as planned, against what onnxruntime gave for them.

They are read where the folder exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_plan, run_split, shapes_of

from cleave_plan.execution.server import RunResult
from cleave_plan.execution.verification import Comparison
from cleave_plan.fleet.synthetic import generate_fleet
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.plan.verify import verify
from cleave_plan.planning.planner import make_plan

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not (CORPUS / "truth.jsonl").is_file(), reason="the shared corpus is not beside this checkout")

FUSED = "the stored values are of a graph with a fused SkipLayerNormalization, which rounds elsewhere; as written it agrees"
RANDOM = "it draws random numbers"
TRANSFORMERS, TESTS = "ort/onnxruntime/test/python/transformers/test_data/models", "ort/onnxruntime/test/testdata"

EXCEPTIONS = {
    f"{TRANSFORMERS}/gpt2_attention_no_past_add_opt.onnx": FUSED,
    f"{TRANSFORMERS}/gpt2_attention_no_past_opt.onnx": FUSED,
    f"{TRANSFORMERS}/gpt2_attention_opt_no_skiplayernorm.onnx": FUSED,
    f"{TESTS}/transform/fusion/bias_dropout_fusion2.onnx": RANDOM,
    f"{TESTS}/dummy_whisper_with_sequence_input_ids.onnx": "its beam search gives other sequences from run to run",
}
"""Models whose stored outputs cannot be met, with the reason."""

LARGEST_MACS = 500_000_000
"""Models above that take longer than a test may; `make test-long` runs them."""

SAMPLE = 15
"""One model in so many is planned by default, the others by `make test-long`."""


def entries() -> list[dict[str, Any]]:
    """The models with stored inputs and outputs."""
    path = CORPUS / "truth.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [entry for entry in map(json.loads, lines) if (CORPUS / f"{entry['path']}.io.npz").is_file()]


def models(sample: int) -> list[Any]:
    """One in ``sample`` of the models, and the others marked as long; so are the large ones."""
    tried = [entry for entry in entries() if entry["path"] not in EXCEPTIONS]
    is_long = [place % sample > 0 or (entry["gemm_macs"] or 0) > LARGEST_MACS for place, entry in enumerate(tried)]
    marks = [[pytest.mark.long] if long else [] for long in is_long]
    return [pytest.param(entry, id=entry["path"], marks=mark) for entry, mark in zip(tried, marks, strict=True)]


def stored(entry: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and outputs of a model by name."""
    with np.load(CORPUS / f"{entry['path']}.io.npz") as arrays:
        inputs = {name.removeprefix("in__"): arrays[name] for name in arrays.files if name.startswith("in__")}
        outputs = {name.removeprefix("out__"): arrays[name] for name in arrays.files if name.startswith("out__")}
    return inputs, outputs


def assert_agrees(imported: ImportedModel, result: RunResult, outputs: dict[str, np.ndarray]) -> None:
    """Outputs agree within the tolerance of a verified run."""
    comparison = Comparison(imported)
    for name, wanted in outputs.items():
        for row in comparison.compare(name, result.outputs.get(name), wanted):
            assert row.ok, row


@pytest.mark.parametrize("entry", models(sample=1))
def test_cut_at_random(entry: dict[str, Any]) -> None:
    """Every GEMM that devices may compute is cut over six of them."""
    inputs, outputs = stored(entry)
    assert_agrees(*run_split(CORPUS / entry["path"], inputs, seed=3, devices=6, cuts=4), outputs)


@pytest.mark.parametrize("entry", models(SAMPLE))
def test_planned_for_unequal_devices(entry: dict[str, Any]) -> None:
    """Planned for six unequal devices without the server: the plan holds, and run with its tiles it gives the stored outputs."""
    inputs, outputs = stored(entry)
    imported = load_model(CORPUS / entry["path"], shapes=shapes_of(inputs))
    workload, fleet = imported.workload, generate_fleet(6, seed=3)
    plan = make_plan(workload, fleet, without=frozenset({"server"}))
    assert verify(plan, workload, fleet).ok
    result = run_plan(imported, plan, inputs)
    assert result.gemms_on_server == sum(bool(gemm.pinned) for gemm in workload.gemms)
    assert_agrees(imported, result, outputs)


def test_the_exceptions_are_few() -> None:
    """At most one in twenty."""
    assert len(EXCEPTIONS) <= 0.05 * len(entries())
