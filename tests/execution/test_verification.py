"""The comparison with the unsplit model: what it accepts, what it does not, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models
from hand_plans import hand_plan
from onnx import TensorProto, helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import InputFileError
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.verification import Comparison, OutputCheck, Verification, verify_run
from cleave_plan.onnx_io.importer import ImportedModel, load_model

pytest.importorskip("onnxruntime", reason="the oracle of these tests is onnxruntime")


@pytest.fixture
def block(tmp_path: Path) -> ImportedModel:
    """The transformer block: float32, 4 levels."""
    return load_model(small_models.transformer_block(tmp_path / "block.onnx"))


@pytest.fixture
def relu(tmp_path: Path) -> ImportedModel:
    """A model without GEMMs."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return load_model(small_models.save(tmp_path / "relu.onnx", nodes, {"x": (TensorProto.FLOAT, [4])}, ["y"]))


def verify_changed(model: ImportedModel, **changed: Any) -> Verification:
    """Verify the right outputs with some of them changed by the given functions."""
    inputs = random_inputs(model)
    outputs = small_models.unsplit(model.path, inputs)
    outputs |= {name: change(outputs[name].copy()) for name, change in changed.items()}
    return verify_run(hand_plan(model.workload, {}), model.path, inputs, outputs)


def put(place: Any, value: Any) -> Any:
    """A function that sets one element."""

    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


def test_equal_outputs_agree(block: ImportedModel) -> None:
    """The same numbers have no error, in both runtimes; the tolerance is 1e-4 * sqrt(1 + 4 levels)."""
    inputs = random_inputs(block)
    outputs = small_models.unsplit(block.path, inputs)
    for runtime in ("onnxruntime", "reference"):
        verification = verify_run(hand_plan(block.workload, {}), block.path, inputs, outputs, runtime=runtime)
        assert verification.ok
        assert [(row.name, row.tolerance) for row in verification.rows] == [
            ("logits", pytest.approx(1e-4 * 5**0.5)), ("token", None),
        ]  # fmt: skip
        assert verification.runtime.startswith("onnx")
        assert verification.rows[0].max_relative_error < 1e-5


@pytest.mark.parametrize(
    ("change", "different"), [(lambda a: a * (1 + 1e-5), 0), (lambda a: a * 1.01, None), (put((0, 0), 1e3), 1)]
)
def test_errors_are_measured_against_the_size_of_the_output(block: ImportedModel, change: Any, different: int | None) -> None:
    """A part in 100 000 is rounding, a hundredth is not, and a single wrong element is found."""
    row = verify_changed(block, logits=change).rows[0]
    assert row.ok == (different == 0)
    if different is not None:
        assert row.different == different


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_must_stand_where_they_stood(block: ImportedModel, value: float) -> None:
    """They are never within tolerance of a number."""
    row = verify_changed(block, logits=put((1, 1), value)).rows[0]
    assert (row.ok, row.different, row.note) == (False, 1, "NaN or infinities stand elsewhere")


def test_special_values_that_agree(relu: ImportedModel) -> None:
    """NaN beside NaN and the same infinity are equal; opposite infinities are not."""
    comparison = Comparison(relu)
    wanted = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert only(comparison.compare("y", wanted.copy(), wanted)).ok
    assert only(comparison.compare("y", wanted * np.array([1, -1, 1, 1], np.float32), wanted)).different == 1


def only(rows: Any) -> OutputCheck:
    """The single row."""
    (row,) = rows
    return row


def test_shapes_and_types_must_agree(block: ImportedModel) -> None:
    """Another shape or type is told in words."""
    assert "the shape is [11, 10]" in verify_changed(block, logits=np.transpose).rows[0].note
    assert "the type is float64" in verify_changed(block, logits=lambda a: a.astype(float)).rows[0].note
    missing = verify_run(hand_plan(block.workload, {}), block.path, random_inputs(block), {})
    assert [row.note for row in missing.rows] == ["only one of them is present"] * 2


def test_a_choice_of_a_lower_score_is_wrong(block: ImportedModel) -> None:
    """ArgMax's answer must be exact where the scores differ."""
    inputs = random_inputs(block)
    logits = small_models.unsplit(block.path, inputs)["logits"]
    verification = verify_changed(block, token=put(3, int(logits[3].argmin())))
    assert not verification.ok
    assert (verification.rows[1].different, verification.rows[1].ties) == (1, 0)


@pytest.mark.parametrize("operator", ["ArgMax", "TopK"])
def test_a_tie_is_reported_and_accepted(tmp_path: Path, operator: str) -> None:
    """Two scores that differ by rounding may be chosen either way; a third one may not."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"])]
    if operator == "ArgMax":
        nodes.append(helper.make_node("ArgMax", ["scores"], ["place"], axis=-1, keepdims=1))
    else:
        nodes.append(helper.make_node("TopK", ["scores", "one"], ["value", "place"], axis=-1))
    weights = {"w": np.array([[1, 1 + 1e-7, 0.5]], np.float32), "one": np.array([1])}
    model = load_model(small_models.save(tmp_path / "tie.onnx", nodes, {"x": (TensorProto.FLOAT, [2, 1])}, ["place"], weights))
    inputs = {"x": np.ones((2, 1), np.float32)}
    plan = hand_plan(model.workload, {})
    wanted = small_models.unsplit(model.path, inputs)["place"]
    other = 1 - wanted
    row = verify_run(plan, model.path, inputs, {"place": other}).rows[0]
    assert (row.ok, row.different, row.ties) == (True, 0, 2)
    assert row.note == "2 choices differ between scores that are equal within tolerance"
    for wrong in (2, 99):
        row = verify_run(plan, model.path, inputs, {"place": np.full_like(wanted, wrong)}).rows[0]
        assert (row.ok, row.different) == (False, 2)


def test_sequences_and_maps_are_compared_by_member(block: ImportedModel) -> None:
    """A row for each member; other lengths and keys are differences."""
    comparison = Comparison(block)
    one, two = np.ones(2, np.float32), np.zeros(2, np.float32)
    rows = list(comparison.compare("s", [one, one], [one, two]))
    assert [(row.name, row.ok) for row in rows] == [("s/0", True), ("s/1", False)]
    assert only(comparison.compare("s", [one], [one, two])).note == "the sequence has another length"
    assert only(comparison.compare("m", {"a": 1.0}, {"a": 1.0})).ok
    assert only(comparison.compare("m", {"b": 1.0}, {"a": 1.0})).note == "the map has other keys"
    assert only(comparison.compare("o", None, None)).ok
    assert not only(comparison.compare("t", np.array(["a"]), np.array(["b"], object))).ok


DOUBLE, SINGLE, HALF = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16


@pytest.mark.parametrize(("kinds", "unit"), [([DOUBLE], 1e-9), ([SINGLE], 1e-4), ([DOUBLE, HALF, DOUBLE], 1e-2)])
def test_tolerances_follow_the_coarsest_type(tmp_path: Path, kinds: list[int], unit: float) -> None:
    """A float64 output that went through float16 is no better than float16."""
    nodes = [helper.make_node("Cast", [f"t{i}"], [f"t{i + 1}"], to=kind) for i, kind in enumerate(kinds)]
    path = small_models.save(tmp_path / "casts.onnx", nodes, {"t0": (kinds[0], [4])}, [f"t{len(kinds)}"])
    assert Comparison(load_model(path)).tolerance(DType.FLOAT64)[0] == pytest.approx(unit)


def test_random_models_are_said_to_be_random(tmp_path: Path) -> None:
    """Two runs of a model that draws numbers differ, and the note says why."""
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])]
    model = load_model(small_models.save(tmp_path / "random.onnx", nodes, {"x": (TensorProto.FLOAT, [4])}, ["y"]))
    assert "random numbers" in verify_changed(model).notes[0]


def test_what_onnxruntime_refuses_is_compared_with_the_reference(tmp_path: Path) -> None:
    """A bfloat16 input cannot be handed to onnxruntime."""
    import ml_dtypes

    path = tmp_path / "bf16.onnx"
    w = np.eye(3).astype(ml_dtypes.bfloat16)
    model = load_model(
        small_models.save(
            path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (TensorProto.BFLOAT16, [2, 3])}, ["y"], {"w": w}
        )
    )
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    verification = verify_run(hand_plan(model.workload, {}), path, {"x": x}, {"y": x})
    assert verification.ok
    assert verification.rows[0].dtype == "bfloat16"


def test_missing_weights_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    """They are not taken for a refusal of the runtime."""
    import onnx

    path = small_models.transformer_block(tmp_path / "block.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="block.data", size_threshold=0)
    imported = load_model(path)
    (tmp_path / "block.data").unlink()
    with pytest.raises(InputFileError, match=r"block\.data is absent.*a plan needs no weights, but a run does"):
        verify_run(hand_plan(imported.workload, {}), path, random_inputs(imported), {})
