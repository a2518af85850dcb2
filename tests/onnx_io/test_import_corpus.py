"""Models that this project did not write, beside the work that really flowed in them; read where the folder exists."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cleave_plan.errors import CleaveError, InputFileError
from cleave_plan.onnx_io.importer import load_model

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"

# Mixtures of experts that look up which tokens go to which expert: the sizes of their products are not in the file.
DATA_DECIDES = frozenset({"export/mixtral_tiny_eager_legacy_dyn/model.onnx", "export/qwen2moe_tiny_eager_legacy_dyn/model.onnx"})

# Models whose truth is missing for an operator that turns out to hold none.
WITHOUT_MATRIX_WORK = frozenset(
    f"ort/onnxruntime/test/testdata/{name}.onnx" for name in ("function_with_variadics", "test_dangling_input_segment_ids")
)

pytestmark = pytest.mark.skipif(not (CORPUS / "truth.jsonl").is_file(), reason="the shared corpus is not beside this checkout")


def truth() -> list[dict[str, Any]]:
    """The lines of the answer file; empty where it is absent."""
    path = CORPUS / "truth.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def shapes(entry: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What to bind."""
    return {name: tuple(sizes) for name, sizes in entry["input_shapes"].items()}


@pytest.mark.parametrize(
    "entry", [entry for entry in truth() if entry["path"] not in DATA_DECIDES], ids=lambda entry: entry["path"]
)
def test_every_product_is_counted(entry: dict[str, Any]) -> None:
    """Each node has the MACs that flowed in it, and no operator is left without a rule."""
    workload = load_model(CORPUS / entry["path"], shapes=shapes(entry)).workload
    if entry["gemm_macs"] is None:  # the truth counts no fused operators, functions and subgraphs
        assert workload.unrecognised or workload.gemms or entry["path"] in WITHOUT_MATRIX_WORK
        return
    per_node = entry["per_node"] or []
    names = {name for name, _, _ in per_node}
    counted: Counter[tuple[str, str]] = Counter()
    for gemm in workload.gemms:
        counted[gemm.node if gemm.node in names else "", gemm.op] += gemm.macs  # nodes without a name or a first output
    assert counted == Counter({(name, op): macs for name, op, macs in per_node})
    assert workload.gemm_macs == entry["gemm_macs"]


@pytest.mark.parametrize("entry", [entry for entry in truth() if entry["path"] in DATA_DECIDES], ids=lambda entry: entry["path"])
def test_sizes_that_the_data_decides_can_be_bound(entry: dict[str, Any]) -> None:
    """Without them the products are listed as unknown, with the options; bound to what flowed, every product is right."""
    path = CORPUS / entry["path"]
    unbound = load_model(path, shapes=shapes(entry)).workload
    names = [gemm.name for gemm in unbound.gemms] + [item.name for item in unbound.unknown]
    assert sorted(names) == sorted(name for name, *_ in entry["per_node"])
    assert all("(NonZero)" in item.reason for item in unbound.unknown)
    names = list(dict.fromkeys(part.split("'")[1] for item in unbound.unknown for part in item.reason.split("--dim ")[1:]))
    assert names
    guess = load_model(path, shapes=shapes(entry), dims=dict.fromkeys(names, 1))
    flowed = {name: macs for name, _, macs in entry["per_node"]}
    rows = {gemm.name: flowed[gemm.name] // gemm.macs for gemm in guess.workload.gemms}
    sizes = {}
    for place, name in enumerate(names):
        probe = load_model(path, shapes=shapes(entry), dims=dict.fromkeys(names, 1) | {name: 2})
        moved = {gemm.name: gemm.macs for gemm in probe.workload.gemms}
        found = {rows[gemm.name] for gemm in guess.workload.gemms if moved[gemm.name] != gemm.macs}
        assert len(found) == 1, (place, name)
        sizes[name] = max(found.pop(), 1)
    workload = load_model(path, shapes=shapes(entry), dims=sizes).workload
    assert {gemm.name: gemm.macs for gemm in workload.gemms} == flowed


def test_no_file_makes_a_traceback() -> None:
    """Every file of the corpus imports or ends with an error for the user, without any binding."""
    for path in sorted(CORPUS.rglob("*.onnx")):
        try:
            load_model(path)
        except CleaveError as error:
            message = str(error)
            assert path.name in message or str(path.parent) in message


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("tool60_conv_bias", 294912), ("tool_group_conv", 9216), ("onnx6991_bf16", 24), ("slim210_gemm_bias", 60),
        ("onnx4367_ir3", 60), ("ort3449_init_as_input", 24), ("big", 32768**2), ("ext/m", 8192),
    ],
)  # fmt: skip
def test_reported_cases(name: str, macs: int) -> None:
    """Files from public fault reports have their right answers."""
    workload = load_model(CORPUS / "reports" / f"{name}.onnx").workload
    assert workload.gemm_macs == macs
    assert workload.weights_present == (name != "big")


def test_reported_refusal() -> None:
    """External data outside the model's folder is refused."""
    with pytest.raises(InputFileError, match="outside the model's folder"):
        load_model(CORPUS / "reports" / "ext" / "sub" / "escape.onnx")
