"""Models that this project did not write, cut at random, against what onnxruntime gave for them; read where the folder exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_split

from cleave_plan.execution.verification import Comparison

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


def models() -> list[Any]:
    """The models with stored inputs and outputs; the large ones are marked."""
    path = CORPUS / "truth.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [
        pytest.param(entry, id=entry["path"], marks=[pytest.mark.long] if (entry["gemm_macs"] or 0) > LARGEST_MACS else [])
        for entry in entries
        if (CORPUS / f"{entry['path']}.io.npz").is_file() and entry["path"] not in EXCEPTIONS
    ]


@pytest.mark.parametrize("entry", models())
def test_split_run_gives_the_stored_outputs(entry: dict[str, Any]) -> None:
    """Every GEMM that devices may compute is cut over six of them; outputs agree within the tolerance of a verified run."""
    path = CORPUS / entry["path"]
    with np.load(f"{path}.io.npz") as stored:
        inputs = {name.removeprefix("in__"): stored[name] for name in stored.files if name.startswith("in__")}
        outputs = {name.removeprefix("out__"): stored[name] for name in stored.files if name.startswith("out__")}
    imported, result = run_split(path, inputs, seed=3, devices=6, cuts=4)
    comparison = Comparison(imported)
    for name, wanted in outputs.items():
        for row in comparison.compare(name, result.outputs.get(name), wanted):
            assert row.ok, row


def test_the_exceptions_are_few() -> None:
    """At most one in twenty."""
    assert len(EXCEPTIONS) <= 0.05 * (len(models()) + len(EXCEPTIONS))
