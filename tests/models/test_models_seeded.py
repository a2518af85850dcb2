"""Small seeded models: the same bytes every time, and the numbers of an independent NumPy version in two runtimes."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import numpy_models as oracle
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from models.registry import DTYPES, MODELS, build

SEEDED = [name for name, entry in MODELS.items() if entry.seeded]
BATCH, SEQ = 2, 9

ORACLES: dict[str, Any] = {
    "mlp": partial(oracle.mlp, hidden=2),
    "cnn": partial(oracle.cnn, blocks=2, groups=4),
    "cnn-1d": partial(oracle.cnn, blocks=2, groups=4),
    "gpt-small": partial(oracle.gpt2, layers=6, heads=8),
    "gpt-tiny": partial(oracle.gpt2, layers=2, heads=4),
    "opt-tiny": partial(oracle.opt, layers=2, heads=4),
    "llama-tiny": partial(oracle.llama, layers=2, heads=8, kv_heads=2),
    "bert-tiny": partial(oracle.bert, layers=2, heads=4),
    "vit-tiny": partial(oracle.vit, layers=2, heads=4, patch=8),
}


@cache
def seeded(name: str) -> onnx.ModelProto:
    """Built once per run, in float32."""
    return build(name)


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Seeded inputs: tokens below 160, types and a padding mask of 0 and 1, pixels from a normal distribution."""
    rng = np.random.default_rng(7)
    values = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [{"batch": BATCH, "seq": SEQ}.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
        if tensor.elem_type == onnx.TensorProto.INT64:
            values[info.name] = rng.integers(0, 160 if info.name == "input_ids" else 2, shape)
        else:
            values[info.name] = rng.standard_normal(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if "attention_mask" in values:
        values["attention_mask"][:, 0] = 1
    return values


def by_oracle(name: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, one example at a time in float64."""
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in seeded(name).graph.initializer}
    answers = [ORACLES[name](weights, *example) for example in zip(*inputs.values(), strict=True)]
    if isinstance(answers[0], tuple):
        return [np.stack(parts) for parts in zip(*answers, strict=True)]
    return [np.stack(answers)]


@pytest.mark.parametrize("name", SEEDED)
def test_onnxruntime_gives_the_numbers_of_numpy(name: str) -> None:
    """The graph computes what the architecture's description says."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'cleave-plan[ort]'")
    inputs = inputs_of(seeded(name))
    session = ort.InferenceSession(seeded(name).SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(session.run(None, inputs), by_oracle(name, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", [name for name in SEEDED if name != "gpt-small"])
def test_onnx_reference_gives_the_numbers_of_numpy(name: str) -> None:
    """The pure-Python runtime agrees as well."""
    inputs = inputs_of(seeded(name))
    for got, expected in zip(ReferenceEvaluator(seeded(name)).run(None, inputs), by_oracle(name, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", [name for name in SEEDED if name != "gpt-small"])
def test_float16_is_near(name: str) -> None:
    """The same draw rounded to float16 gives the same answers to about three digits, and no infinity."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'cleave-plan[ort]'")
    model = build(name, dtype="float16")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(session.run(None, inputs_of(model)), by_oracle(name, inputs_of(seeded(name))), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0.02, atol=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SEEDED)
def test_checker_accepts_with_shape_inference(name: str, dtype: str) -> None:
    """Well-formed, and every inferred shape agrees with the declared ones."""
    onnx.checker.check_model(build(name, dtype=dtype), full_check=True)


@pytest.mark.parametrize("name", SEEDED)
def test_same_seed_same_bytes(name: str) -> None:
    """Two builds are equal byte for byte, and another seed changes the weights."""
    first = build(name, seed=3).SerializeToString(deterministic=True)
    assert build(name, seed=3).SerializeToString(deterministic=True) == first
    assert build(name, seed=4).SerializeToString(deterministic=True) != first


def test_later_positions_do_not_reach_earlier_ones() -> None:
    """Changing the last token changes only the last row of logits (causal mask)."""
    for name in ("gpt-tiny", "opt-tiny", "llama-tiny"):
        evaluator = ReferenceEvaluator(seeded(name))
        ids = np.arange(8)[None]
        other = ids.copy()
        other[0, -1] = 99
        (before,), (after,) = (evaluator.run(None, {"input_ids": tokens}) for tokens in (ids, other))
        np.testing.assert_allclose(before[:, :-1], after[:, :-1], atol=1e-5)
        assert np.abs(before[:, -1] - after[:, -1]).max() > 0.01


def test_small_ones_can_be_weightless_and_published_ones_drawn() -> None:
    """`weights` overrides the entry's own choice."""
    assert all(t.external_data for t in build("gpt-tiny", weights="none").graph.initializer)
    drawn = build("vit-base", weights="seeded", dtype="float16")
    assert sum(len(t.raw_data) for t in drawn.graph.initializer) == 2 * 86_567_656
