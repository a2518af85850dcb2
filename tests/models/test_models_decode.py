"""Decoding steps: token by token over a cache they give the logits of the whole sequence, and say how they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator

from models.__main__ import main
from models.registry import ModelRequestError, build

DECODING = ("opt-tiny", "llama-tiny")


def stepped(name: str, ids: np.ndarray) -> np.ndarray:
    """Logits ``[batch, seq, vocabulary]`` of ``ids``, each token a step of its own that starts from an empty cache."""
    step = build(name, decode=True)
    evaluator = ReferenceEvaluator(step)
    sizes = {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in step.graph.input}
    cache = {key: np.zeros((len(ids), heads, 0, size), np.float32) for key, (_, heads, _, size) in sizes_of_cache(sizes).items()}
    rows = []
    for place in range(ids.shape[1]):
        results = evaluator.run(None, {"input_ids": ids[:, place : place + 1], **cache})
        named = dict(zip((info.name for info in step.graph.output), results, strict=True))
        rows.append(named["logits"])
        cache = {key: named[key.replace("past_key_values", "present")] for key in cache}
    return np.concatenate(rows, axis=1)


def sizes_of_cache(sizes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Only the inputs that are a cache."""
    return {name: dims for name, dims in sizes.items() if name.startswith("past_key_values")}


@pytest.mark.parametrize("name", DECODING)
def test_steps_give_the_logits_of_the_whole_sequence(name: str) -> None:
    """The model without a cache, itself checked against NumPy, is the oracle."""
    ids = np.random.default_rng(3).integers(0, 160, (2, 6))
    (whole,) = ReferenceEvaluator(build(name)).run(None, {"input_ids": ids})
    np.testing.assert_allclose(stepped(name, ids), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*DECODING, "llama-2-7b", "opt-13b", "llama-2-70b"])
def test_checker_accepts_and_the_parameters_stay(name: str) -> None:
    """A step has the weights of the model, and shapes that agree."""
    step = build(name, decode=True, batch=2, past=7)
    shape_inference.infer_shapes(step, strict_mode=True, data_prop=True)
    assert {t.name for t in step.graph.initializer} == {t.name for t in build(name).graph.initializer}


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--decode and --past, and what is refused."""
    target = tmp_path / "step.onnx"
    assert main(["opt-tiny", "--decode", "--past", "5", "-o", str(target)]) == 0
    assert [d.dim_value for d in onnx.load(target).graph.input[1].type.tensor_type.shape.dim][2] == 5
    for wrong in (["gpt-tiny", "--decode"], ["opt-tiny", "--past", "5"], ["opt-tiny", "--decode", "--past", "64"]):
        with pytest.raises(SystemExit) as ended:
            main([*wrong, "-o", str(target)])
        assert ended.value.code == 2
    assert "opt-tiny" in capsys.readouterr().err


def test_a_step_has_one_token() -> None:
    """seq is no choice of a decoding step."""
    with pytest.raises(ModelRequestError, match="one token"):
        build("opt-tiny", decode=True, seq=4)
