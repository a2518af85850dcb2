"""Built models through the importer: their GEMM tables against closed formulas and literals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import Role
from cleave_plan.workload.graph import Workload
from models.registry import MODELS, build, parameter_count

BATCH, SEQ = 128, 1024

Import = Callable[[str], Workload]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Import:
    """Import a model by name, once per run, at the paper's batch and sequence (or the longest that it takes)."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def load(name: str) -> Workload:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(build(name).SerializeToString())
        longest = MODELS[name].max_seq
        dims = {"batch": BATCH} if longest is None else {"batch": BATCH, "seq": min(SEQ, longest)}
        return load_model(path, dims=dims).workload

    return load


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_missed(name: str, imported: Import) -> None:
    """Every model is read without its weights: the parameters are all there and no matrix work is left uncounted."""
    workload = imported(name)
    assert workload.parameter_elements == parameter_count(build(name, weights="none"))
    assert workload.weights_present == MODELS[name].seeded
    assert not workload.unrecognised
    assert not workload.notes


def test_opt_13b_at_the_reference_setting(imported: Import) -> None:
    """Forward GEMMs of a batch of 128 x 1024: 40 layers of 8, a head, six kinds; 2 FLOP each multiply-add."""
    workload = imported("opt-13b")
    rows, width = BATCH * SEQ, 5120
    per_layer = rows * (4 * width**2 + 2 * width * 20480) + 2 * BATCH * SEQ * SEQ * width
    assert len(workload.gemms) == 40 * 8 + 1
    assert len(workload.levels) == 40 * 6 + 1  # q, k and v share one level
    assert len(workload.classes()) == 6
    assert workload.gemm_macs == 40 * per_layer + rows * width * 50272 == 1_737_979_991_162_880
    assert workload.gemm_flop == 2 * workload.gemm_macs


def test_llama_70b_sends_a_key_head_once_for_eight_query_heads(imported: Import) -> None:
    """Grouped queries are rows of one product: 128 x 8 products of 8 * 1024 rows."""
    gemms = {gemm.name: gemm for gemm in imported("llama-2-70b").gemms}
    assert gemms["layers.0.attention.scores"].shape == (BATCH * 8, 8 * SEQ, 128, SEQ)
    assert gemms["layers.0.attention.context"].shape == (BATCH * 8, 8 * SEQ, SEQ, 128)


@pytest.mark.parametrize("name", ["opt-125m", "gpt2"])
def test_the_tied_head_is_a_parameter(name: str, imported: Import) -> None:
    """It multiplies by the embedding table, transposed, and stores nothing twice."""
    head = imported(name).gemms[-1]
    vocabulary = {"opt-125m": 50272, "gpt2": 50257}[name]
    assert head.shape == (1, BATCH * SEQ, 768, vocabulary)
    assert head.b.role is Role.PARAMETER
