"""Tiles of convolutions by onnxruntime, against the same tiles by NumPy, and in runs against the unsplit model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_models
from hand_plans import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_strategies import exact_tilings, windows
from onnx import helper

from cleave_plan.dtypes import DType
from cleave_plan.errors import UsageError
from cleave_plan.execution.engines import wire
from cleave_plan.execution.engines.local import LocalEngine
from cleave_plan.execution.inputs import random_inputs
from cleave_plan.execution.session import Session
from cleave_plan.kernels.tile import Product
from cleave_plan.onnx_io import conv_kernel
from cleave_plan.onnx_io.conv_kernel import Convolver, takes
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import ConvWindow, GemmShape

pytest.importorskip("onnxruntime", reason="the kernel is onnxruntime's")

WINDOW = ConvWindow(
    images=2, channels=3, input=(6, 5), output=(6, 5), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1)
)  # fmt: skip


def product_of(window: ConvWindow, groups: int, columns: int, dtype: DType = DType.FLOAT32) -> Product:
    """The product of a convolution."""
    depth = window.channels * int(np.prod(window.kernel))
    shape = GemmShape(groups, window.images * window.rows_per_image, depth, columns)
    return Product(shape=shape, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, window=window)


def operands_of(product: Product, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Seeded operands."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (product.a_shape, product.b_shape))
    return a, b


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(1, 4), st.data())
def test_every_tile_is_that_of_numpy(window: tuple[ConvWindow, int], columns: int, data: st.DataObject) -> None:
    """Windows of any rank with groups, strides, dilations and padding, cut anywhere; in place and apart, with the same bytes."""
    product = product_of(*window, columns)
    operands, convolver = operands_of(product), Convolver()
    wanted, found = (np.zeros(product.whole_shape, np.float32) for _ in range(2))
    for box in data.draw(exact_tilings(product.shape, inner=False)):
        nbytes = product.run_into(operands, box, wanted)
        assert convolver.run(product, operands, box, found, in_place=True, kernels="w") == nbytes
        apart = np.zeros(box.result_shape, np.float32)
        convolver.run(product, operands, box, apart, in_place=False, kernels="w")
        np.testing.assert_array_equal(apart, product.fetch(found, box))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_packed_kernels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used longest ago are packed again when they are needed; results do not change."""
    product = product_of(WINDOW, 1, 4)
    monkeypatch.setattr(conv_kernel, "KEPT_BYTES", 2 * 3 * 9 * 4 * 4)
    convolver = Convolver()
    for name in (0, 1, 2, 0):
        operands = operands_of(product, name)
        found, wanted = (np.zeros(product.whole_shape, np.float32) for _ in range(2))
        convolver.run(product, operands, product.whole_box, found, in_place=True, kernels=name)
        product.run_into(operands, product.whole_box, wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert len(convolver._sessions) <= 2


@pytest.mark.parametrize(
    ("changes", "taken"),
    [({}, True), ({"dtype": DType.FLOAT64}, False), ({"dtype": DType.FLOAT16}, False), ({"kernel": (1, 1)}, False)],
)
def test_what_it_takes(changes: dict[str, Any], taken: bool) -> None:
    """float32 with kernels of more than one position."""
    dtype = changes.get("dtype", DType.FLOAT32)
    window = WINDOW if "kernel" not in changes else ConvWindow(
        images=2, channels=3, input=(6, 5), output=(6, 5), kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0)
    )  # fmt: skip
    assert takes(product_of(window, 1, 4, dtype)) is taken


def network(path: Path) -> Path:
    """A 3 x 3 convolution, one of 1 x 1, and one whose kernels are an input and change from batch to batch."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="wide", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="point"),
        helper.make_node("Conv", ["c2", "kernels"], ["y"], name="given", pads=[1, 1, 1, 1]),
    ]
    constants = small_models.weights(1, w1=(32, 16, 3, 3), b1=(32,), w2=(8, 32, 1, 1))
    inputs = {"x": (small_models.FLOAT, [2, 16, 9, 7]), "kernels": (small_models.FLOAT, [6, 8, 3, 3])}
    return small_models.save(path, nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_run_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reproducible: bool) -> None:
    """Only the convolution with constant kernels is prepared, none in a reproducible run; outputs are those of the unsplit model,
    batch after batch, and a note says what NumPy did."""
    jobs: list[wire.Job] = []
    opening = wire.opening
    monkeypatch.setattr(wire, "opening", lambda job: (jobs.append(job), opening(job))[1])
    path = network(tmp_path / "network.onnx")
    imported = load_model(path)
    plan = random_plan(imported.workload, seed=2, keep=0.0)
    with Session(plan, path, engine=LocalEngine(2, convolution="onnxruntime"), reproducible=reproducible) as session:
        for seed in (1, 2, 3):
            inputs = random_inputs(imported, seed=seed)
            result = session.run(inputs)
            wanted = small_models.unsplit(path, inputs)
            np.testing.assert_allclose(result.outputs["y"], wanted["y"], rtol=1e-4, atol=1e-3)
    assert [job.prepared for job in jobs] == [not reproducible, False, False] * 3
    assert len({job.operands[1] for job in jobs if job.prepared}) == (0 if reproducible else 1)
    assert any(f"onnxruntime computes {0 if reproducible else 2} of 3 convolutions" in note for note in result.notes)


def test_other_names_are_refused() -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="no convolution 'cudnn'"):
        LocalEngine(convolution="cudnn")


def test_onnxruntime_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how."""
    monkeypatch.setattr(conv_kernel, "onnxruntime_installed", lambda: False)
    with pytest.raises(UsageError, match=r"cleave-plan\[ort\]"):
        LocalEngine(convolution="onnxruntime")
