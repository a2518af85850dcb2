"""Training against training by hand: every optimizer and setting, and runs that are stopped and go on."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from small_models import FLOAT, save, weights
from training_cases import BATCH, gradients_by_hand, initial_values, perceptron, samples, train_here

from cleave_plan.errors import ExecutionError, InputFileError, UsageError
from cleave_plan.onnx_io.trained import write_trained
from cleave_plan.training.run import Duration
from cleave_plan.training.settings import Group, OptimizerKind, Schedule, ScheduleKind, Settings
from models.registry import build

Values = dict[str, np.ndarray]
Rule = Callable[[str, np.ndarray, np.ndarray, dict[str, Any], int], np.ndarray]


def by_hand(rule: Rule, *, steps: int, seed: int = 0, accumulate: int = 1, clip: float | None = None) -> list[float]:
    """Losses of the perceptron in float64; ``rule`` gives a parameter's new values."""
    values, data, state = initial_values(), samples(), {name: {} for name in initial_values()}
    losses = []
    for step in range(1, steps + 1):
        total, loss = {name: np.zeros_like(value) for name, value in values.items()}, 0.0
        for place in range(accumulate):
            batch = (step - 1) * accumulate + place
            epoch, at = divmod(batch, 40 // BATCH)
            chosen = np.random.default_rng([seed, epoch]).permutation(40)[at * BATCH : (at + 1) * BATCH]
            own, gradients = gradients_by_hand(values, data["x"][chosen].astype(float), data["target"][chosen].astype(float))
            loss += own / accumulate
            total = {name: total[name] + gradients[name] / accumulate for name in total}
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in total.values()))
        if clip is not None and norm > clip:
            total = {name: gradient * clip / (norm + 1e-6) for name, gradient in total.items()}
        values = {name: rule(name, values[name], total[name], state[name], step) for name in values}
        losses.append(loss)
    return losses


def sgd(*, rate: float, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0) -> Rule:
    """Stochastic gradient descent, from its definition."""

    def rule(name: str, value: np.ndarray, gradient: np.ndarray, state: dict[str, Any], step: int) -> np.ndarray:
        gradient = gradient + decay * value
        state["b"] = momentum * state.get("b", 0.0) + gradient
        return value - rate * (gradient + momentum * state["b"] if nesterov else state["b"])

    return rule


def adamw(*, rate: Callable[[str, int], float], decay: Mapping[str, float], betas: tuple[float, float], epsilon: float) -> Rule:
    """Adam with decoupled weight decay, from its definition."""

    def rule(name: str, value: np.ndarray, gradient: np.ndarray, state: dict[str, Any], step: int) -> np.ndarray:
        one, two = betas
        state["m"] = one * state.get("m", 0.0) + (1 - one) * gradient
        state["v"] = two * state.get("v", 0.0) + (1 - two) * gradient**2
        down = state["m"] / (1 - one**step) / (np.sqrt(state["v"] / (1 - two**step)) + epsilon)
        return value - rate(name, step) * decay[name] * value - rate(name, step) * down

    return rule


SGD = {"optimizer": OptimizerKind.SGD, "learning_rate": 0.1}
NO_DECAY = dict.fromkeys(("w1", "b1", "w2", "b2"), 0.0)


@pytest.mark.parametrize(
    ("settings", "rule", "extra"),
    [
        (Settings(**SGD), sgd(rate=0.1), {}),
        (Settings(**SGD, momentum=0.9, weight_decay=0.01), sgd(rate=0.1, momentum=0.9, decay=0.01), {}),
        (Settings(**SGD, momentum=0.8, nesterov=True), sgd(rate=0.1, momentum=0.8, nesterov=True), {}),
        (Settings(**SGD, accumulate=3, seed=5), sgd(rate=0.1), {"accumulate": 3, "seed": 5}),
        (Settings(**SGD, clip_norm=0.05), sgd(rate=0.1), {"clip": 0.05}),
        (
            Settings(learning_rate=0.05, betas=(0.8, 0.95), epsilon=1e-6, weight_decay=0.1),
            adamw(rate=lambda name, step: 0.05, decay=dict.fromkeys(NO_DECAY, 0.1), betas=(0.8, 0.95), epsilon=1e-6),
            {},
        ),
        (
            Settings(
                learning_rate=0.02, weight_decay=0.3, schedule=Schedule(kind=ScheduleKind.LINEAR, warmup_steps=4),
                groups=(Group(parameters=("b*",), weight_decay=0.0), Group(parameters=("w2",), learning_rate=0.01)),
            ),
            adamw(
                rate=lambda name, step: (0.01 if name == "w2" else 0.02) * (step / 4 if step <= 4 else 1 - (step - 5) / 8),
                decay={"w1": 0.3, "w2": 0.3, "b1": 0.0, "b2": 0.0}, betas=(0.9, 0.999), epsilon=1e-8,
            ),
            {},
        ),
    ],
    ids=["sgd", "momentum", "nesterov", "accumulate", "clip", "adamw", "groups and schedule"],
)  # fmt: skip
def test_training_is_training_by_hand(settings: Settings, rule: Rule, extra: dict[str, Any], tmp_path: Path) -> None:
    """12 steps, cut at random, give the losses of the textbook's formulas on whole arrays in float64."""
    result = train_here(perceptron(tmp_path / "m.onnx"), samples(), settings, Duration(steps=12))
    assert [report.loss for report in result.steps] == pytest.approx(by_hand(rule, steps=12, **extra), rel=2e-5)


def test_schedules() -> None:
    """Shares of the learning rate by hand."""
    assert [Schedule().share(step, 10) for step in (0, 9)] == [1, 1]
    cosine = Schedule(kind=ScheduleKind.COSINE, warmup_steps=2, final=0.1)
    assert [cosine.share(step, 6) for step in (0, 1, 2, 4)] == pytest.approx([0.5, 1, 1, 0.55])
    linear = Schedule(kind=ScheduleKind.LINEAR, final=0.2)
    assert [linear.share(step, 4) for step in (0, 1, 2, 3)] == pytest.approx([1, 0.8, 0.6, 0.4])


@pytest.mark.parametrize(
    "fields",
    [
        {"learning_rate": -1.0}, {"learning_rate": math.nan}, {"momentum": 1.0}, {"nesterov": True}, {"betas": (0.9, 1.0)},
        {"epsilon": 0.0}, {"clip_norm": 0.0}, {"accumulate": 0}, {"schedule": Schedule(final=2.0)},
        {"groups": (Group(parameters=()),)},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(fields: dict[str, Any]) -> None:
    """Each is refused with its name."""
    with pytest.raises(UsageError, match=next(iter(fields))):
        Settings(**fields)


class StoppedError(Exception):
    """What ends a run in the middle."""


def stop_after(step: int) -> Callable[[int], None]:
    """An observer that ends the run when ``step`` is done."""

    def observe(done: int) -> None:
        if done == step:
            raise StoppedError

    return observe


ADAMW = Settings(learning_rate=0.01, weight_decay=0.1, seed=4, schedule=Schedule(kind=ScheduleKind.COSINE, warmup_steps=3))


@pytest.mark.parametrize("stopped", [1, 4, 7])
def test_a_resumed_run_is_the_undisturbed_one(stopped: int, tmp_path: Path) -> None:
    """Stopped at any step, under another plan afterwards: losses, weights and metrics are those of one run, to the bit."""
    model, data = perceptron(tmp_path / "m.onnx"), samples()
    whole = train_here(model, data, ADAMW, Duration(steps=10, metrics=tmp_path / "whole.jsonl"))
    duration = Duration(steps=10, metrics=tmp_path / "parts.jsonl", checkpoints=tmp_path / "run", checkpoint_every=2)
    with pytest.raises(StoppedError):
        train_here(model, data, ADAMW, duration, observe=stop_after(stopped))
    resumed = Duration(steps=10, metrics=duration.metrics, checkpoints=duration.checkpoints, checkpoint_every=2, resume=True)
    result = train_here(model, data, ADAMW, resumed, plan_seed=9)
    assert result.first_step == (stopped - 1) // 2 * 2 + 1
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("whole.jsonl", "parts.jsonl")
    )
    assert [(line["step"], line["loss"], line["gradient_norm"]) for line in first] == [
        (line["step"], line["loss"], line["gradient_norm"]) for line in second
    ]
    for name, value in whole.values.items():
        assert np.array_equal(value, result.values[name])


def test_what_would_not_go_on_as_it_began(tmp_path: Path) -> None:
    """Changed settings, data, model or steps of a schedule are refused by name; so is a folder that is not asked for."""
    model, data = perceptron(tmp_path / "m.onnx"), samples()
    begun = Duration(steps=4, checkpoints=tmp_path / "run")
    train_here(model, data, ADAMW, begun)
    with pytest.raises(UsageError, match="--resume"):
        train_here(model, data, ADAMW, begun)
    again = Duration(steps=4, checkpoints=tmp_path / "run", resume=True)
    assert train_here(model, data, ADAMW, again).steps == ()
    cases: list[tuple[str, Any, Any, Settings, int]] = [
        ("learning_rate was 0.01", model, data, Settings(learning_rate=0.02, schedule=ADAMW.schedule), 4),
        ("seed was 4", model, data, Settings(learning_rate=0.01, weight_decay=0.1, schedule=ADAMW.schedule), 4),
        ("steps was 4", model, data, ADAMW, 5),
        ("data was", model, samples(48), ADAMW, 4),
        ("model_sha256 was", perceptron(tmp_path / "other.onnx", seed=9), data, ADAMW, 4),
    ]
    for text, other_model, other_data, settings, steps in cases:
        with pytest.raises(UsageError, match=text):
            train_here(other_model, other_data, settings, Duration(steps=steps, checkpoints=tmp_path / "run", resume=True))


def test_a_plan_that_may_change_the_bits_is_said(tmp_path: Path) -> None:
    """Without reproducible products a run that is resumed under another plan goes on, with a note."""
    model, data, settings = perceptron(tmp_path / "m.onnx"), samples(), Settings(reproducible=False)
    train_here(model, data, settings, Duration(steps=2, checkpoints=tmp_path / "run"))
    again = Duration(steps=3, checkpoints=tmp_path / "run", resume=True)
    assert train_here(model, data, settings, again).notes == ()
    other = Duration(steps=4, checkpoints=tmp_path / "run", resume=True)
    (note,) = train_here(model, data, settings, other, plan_seed=9).notes
    assert note == "resumed with another plan: the bits may differ from those of an undisturbed run"


def test_blocks_and_threads_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters updated five elements at a time by several threads are those updated whole, to the bit."""
    model, data = perceptron(tmp_path / "m.onnx"), samples()
    whole = train_here(model, data, ADAMW, Duration(steps=4))
    monkeypatch.setattr("cleave_plan.training.holding.BLOCK_ELEMENTS", 5)
    monkeypatch.setattr("cleave_plan.training.holding._WORTH_THREADS", 0)
    pieces = train_here(model, data, ADAMW, Duration(steps=4))
    for name, value in whole.values.items():
        assert np.array_equal(value, pieces.values[name])


def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path) -> None:
    """The one before it is used; the run ends as it would have; when none is whole, that is said."""
    model, data = perceptron(tmp_path / "m.onnx"), samples()
    folder = tmp_path / "run"
    train_here(model, data, Settings(), Duration(steps=6, checkpoints=folder, checkpoint_every=3))
    newest = folder / "step-00000006.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    result = train_here(model, data, Settings(), Duration(steps=8, checkpoints=folder, checkpoint_every=3, resume=True))
    assert result.first_step == 4
    assert any("step-00000006.npz" in note and "truncated" in note for note in result.notes)
    whole = train_here(model, data, Settings(), Duration(steps=8))
    assert [report.loss for report in result.steps] == [report.loss for report in whole.steps[3:]]
    for path in folder.iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(InputFileError, match="no checkpoint is whole"):
        train_here(model, data, Settings(), Duration(steps=9, checkpoints=folder, resume=True))


def test_a_run_that_diverges_ends(tmp_path: Path) -> None:
    """An infinite loss ends the run with its step; what was written before is there."""
    model = perceptron(tmp_path / "m.onnx")
    settings = Settings(optimizer=OptimizerKind.SGD, learning_rate=1e30)
    with pytest.raises(ExecutionError, match=r"step \d: (the loss is|the gradients hold)"):
        train_here(model, samples(), settings, Duration(steps=9, checkpoints=tmp_path / "run", checkpoint_every=1))
    assert list((tmp_path / "run").glob("step-*.npz"))


def test_values_that_are_computed_again_are_the_same(tmp_path: Path) -> None:
    """Three steps of a small GPT under tiles, with all forward values kept and with some computed again: the same losses, but for
    what onnxruntime rounds otherwise when it fuses operators whose results nobody else reads.
    """
    model, rng = tmp_path / "gpt.onnx", np.random.default_rng(2)
    model.write_bytes(build("gpt-tiny").SerializeToString())
    data = {name: rng.integers(0, 64, (6, 16)) for name in ("input_ids", "target")}
    kept, again = (
        train_here(
            model, data, Settings(), Duration(steps=3), loss="cross-entropy", dims={"batch": 2, "seq": 16}, recompute=asked
        )
        for asked in (False, True)
    )
    assert [report.loss for report in again.steps] == pytest.approx([report.loss for report in kept.steps], rel=1e-6)
    assert any("are computed again: at most" in note for note in again.notes)


def test_groups_that_match_nothing_are_refused(tmp_path: Path) -> None:
    """A pattern may be misspelt."""
    settings = Settings(groups=(Group(parameters=("biass",)),))
    with pytest.raises(UsageError, match="no parameter matches 'biass'"):
        train_here(perceptron(tmp_path / "m.onnx"), samples(), settings, Duration(steps=1))


def test_running_statistics_are_carried(tmp_path: Path) -> None:
    """Batch norms: after each step running = 0.9 running + 0.1 (the batch's), and they come out with the weights."""
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "o", "mean", "var"], ["n"], momentum=0.9),
             helper.make_node("MatMul", ["n", "w"], ["y"], name="w")]  # fmt: skip
    constants = {**weights(1, s=(6,), o=(6,), w=(6, 3)), "mean": np.zeros(6, np.float32), "var": np.ones(6, np.float32)}
    model = save(tmp_path / "bn.onnx", nodes, {"x": (FLOAT, [BATCH, 6])}, ["y"], constants)
    data, settings = samples(), Settings(shuffle=False)
    result = train_here(model, data, settings, Duration(steps=3), batch_norm="batch")
    mean, var = np.zeros(6), np.ones(6)
    for step in range(3):
        batch = data["x"][step * BATCH : (step + 1) * BATCH].astype(float)
        mean, var = 0.9 * mean + 0.1 * batch.mean(0), 0.9 * var + 0.1 * batch.var(0)
    assert result.values["mean"] == pytest.approx(mean, abs=1e-6)
    assert result.values["var"] == pytest.approx(var, rel=1e-5)


@pytest.mark.parametrize("beside", [False, True])
def test_trained_weights_run_elsewhere(beside: bool, tmp_path: Path) -> None:
    """onnxruntime on the written file gives what the trained values give by hand, embedded or beside the file; an untied head
    follows its table; what was not trained stays.
    """
    model, data = perceptron(tmp_path / "m.onnx"), samples()
    proto = onnx.load(model)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 7), np.float32), "copy"))
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3, dtype=np.float32), "kept"))
    onnx.save(proto, model)
    result = train_here(model, data, ADAMW, Duration(steps=5), freeze=["kept"], parameters=["w*", "b*"])
    out = tmp_path / "out.onnx"
    write_trained(model, result.values, {"copy": "w2"}, out, embedded_bytes=0 if beside else 1 << 30)
    assert (tmp_path / "out.onnx.data").exists() == beside
    written = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer}
    assert np.array_equal(written["copy"], result.values["w2"].T)
    assert np.array_equal(written["kept"], [0, 1, 2])
    onnx.checker.check_model(out, full_check=True)
    x = data["x"][:BATCH]
    values = result.values
    expected = np.maximum(x @ values["w1"] + values["b1"], 0) @ values["w2"] + values["b2"]
    assert onnxruntime.InferenceSession(out).run(None, {"x": x})[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_cannot_be_written_lies_elsewhere(beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is there no more: the error says where the trained model is now, or that it is nowhere."""
    model, out, spare = perceptron(tmp_path / "m.onnx"), tmp_path / "gone" / "out.onnx", tmp_path / "spare"
    values = {"w2": np.full(numpy_helper.to_array(initialiser(model, "w2")).shape, 3, np.float32)}
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    with pytest.raises(ExecutionError, match="a run with --checkpoint goes on"):
        write_trained(model, values, {}, out, embedded_bytes=0 if beside else 1 << 30)
    spare.mkdir()
    with pytest.raises(ExecutionError, match=r"it lies in .*out\.onnx instead"):
        write_trained(model, values, {}, out, embedded_bytes=0 if beside else 1 << 30)
    (found,) = spare.glob("*/out.onnx")
    assert np.array_equal(numpy_helper.to_array(initialiser(found, "w2"), str(found.parent)), values["w2"])


def initialiser(path: Path, name: str) -> onnx.TensorProto:
    """The tensor of that name in the file, its data where they are."""
    (found,) = (tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer if tensor.name == name)
    return found


def test_sixteen_bits_have_a_master_copy(tmp_path: Path) -> None:
    """Steps too small for float16 add up: 1 + 100 x 1e-4 is 1.01, where float16 alone would stay at 1."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="w")]
    half = onnx.TensorProto.FLOAT16
    model = save(tmp_path / "h.onnx", nodes, {"x": (half, [4, 1])}, ["y"], {"w": np.ones((1, 1), np.float16)})
    data = {"x": np.ones((4, 1), np.float16), "target": np.full((4, 1), 2, np.float16)}
    settings = Settings(learning_rate=1e-4, betas=(0.0, 0.0))
    result = train_here(model, data, settings, Duration(steps=100))
    assert result.values["w"].dtype == np.float16
    assert float(result.values["w"][0, 0]) == pytest.approx(1.01, abs=1e-3)
    (server,) = result.servers
    assert (server.parameter_bytes, server.optimizer_bytes) == (2 + 4, 8)
