"""What the tests of training share: a small perceptron, its data, runs without processes, and training by hand in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hand_plans import random_plan
from in_process import InProcess
from onnx import helper
from small_models import FLOAT, save, weights

from cleave_plan.api.models import gradient_request
from cleave_plan.execution.engines.base import Engine
from cleave_plan.execution.session import Session
from cleave_plan.plan.plan import Plan
from cleave_plan.progress import silent
from cleave_plan.training.data import Data, batches_of
from cleave_plan.training.run import Duration, TrainingResult
from cleave_plan.training.settings import Settings
from cleave_plan.training.step import training_step
from cleave_plan.training.trainer import Trainer

BATCH, INPUTS, HIDDEN, CLASSES = 8, 6, 7, 3


def perceptron(path: Path, *, seed: int = 3) -> Path:
    """``x [8, 6]`` -> Relu(x W1 + b1) W2 + b2 -> ``y [8, 3]``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p1"], name="first"),
        helper.make_node("Add", ["p1", "b1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["p2"], name="second"),
        helper.make_node("Add", ["p2", "b2"], ["y"]),
    ]
    values = weights(seed, w1=(INPUTS, HIDDEN), b1=(HIDDEN,), w2=(HIDDEN, CLASSES), b2=(CLASSES,))
    return save(path, nodes, {"x": (FLOAT, [BATCH, INPUTS])}, ["y"], values, opset=18)


def samples(rows: int = 40, *, seed: int = 0) -> dict[str, np.ndarray]:
    """``x`` and ``target`` for regression."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
    return {"x": x, "target": np.tanh(x[:, :CLASSES] - x[:, CLASSES:]).astype(np.float32)}


def train_here(
    model: Path, data: Data, settings: Settings, duration: Duration, *, loss: str = "mse", plan_seed: int = 1,
    observe: Callable[[int], None] = lambda step: None, engine: Engine | None = None,
    replan: Callable[[Plan], Plan] = lambda plan: plan, **differentiation: Any,
) -> TrainingResult:  # fmt: skip
    """A run under random tiles, in this process unless on another ``engine``; ``observe`` is told of each step, and may raise;
    ``replan`` changes the plan.
    """
    step = training_step(model, *gradient_request(loss=loss, **differentiation))
    plan = replan(random_plan(step.imported.workload, seed=plan_seed, keep=0.0))
    batches = batches_of(data, step.inputs, seed=settings.seed, shuffle=settings.shuffle)
    progress = silent if observe is None else lambda done, total, label: observe(done)
    with Session(plan, step.imported, engine=engine or InProcess(), reproducible=settings.reproducible) as session:
        return Trainer(step, plan, session, batches, settings).run(duration, progress)


def striped(*shares: float) -> Callable[[Plan], Plan]:
    """A change of plans: servers "a", "b", ... with ``shares`` of the weights of each product."""
    names = tuple("abcdefgh"[: len(shares)])

    def change(plan: Plan) -> Plan:
        assignments = tuple(replace(each, servers=names, shares=shares) for each in plan.assignments)
        return replace(plan, server_names=names, assignments=assignments)

    return change


def gradients_by_hand(values: Mapping[str, np.ndarray], x: np.ndarray, target: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """Mean squared error of the perceptron and its gradients, written out in float64."""
    before = x @ values["w1"] + values["b1"]
    hidden = np.maximum(before, 0)
    apart = hidden @ values["w2"] + values["b2"] - target
    dy = 2 * apart / apart.size
    dh = dy @ values["w2"].T * (before > 0)
    return float((apart**2).mean()), {"w1": x.T @ dh, "b1": dh.sum(0), "w2": hidden.T @ dy, "b2": dy.sum(0)}


def initial_values(*, seed: int = 3) -> dict[str, np.ndarray]:
    """The perceptron's parameters in float64."""
    values = weights(seed, w1=(INPUTS, HIDDEN), b1=(HIDDEN,), w2=(HIDDEN, CLASSES), b2=(CLASSES,))
    return {name: array.astype(np.float64) for name, array in values.items()}
