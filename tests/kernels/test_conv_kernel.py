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
from cleave_plan.kernels.epilogue import NOTHING_MORE, RELU, Epilogue
from cleave_plan.kernels.quantised import NOTHING
from cleave_plan.kernels.tile import Product, whole_of
from cleave_plan.onnx_io import conv_kernel
from cleave_plan.onnx_io.conv_kernel import Convolver, takes
from cleave_plan.onnx_io.importer import load_model
from cleave_plan.workload.gemm import ConvWindow, GemmShape

pytest.importorskip("onnxruntime", reason="the kernel is onnxruntime's")

WINDOW = ConvWindow(
    images=2, channels=3, input=(6, 5), output=(6, 5), kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1)
)  # fmt: skip


def product_of(
    window: ConvWindow, groups: int, columns: int, dtype: DType = DType.FLOAT32, epilogue: Epilogue | None = None
) -> Product:
    """The product of a convolution."""
    depth = window.channels * int(np.prod(window.kernel))
    shape = GemmShape(groups, window.images * window.rows_per_image, depth, columns)
    return Product(shape=shape, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, window=window, epilogue=epilogue)


def operands_of(product: Product, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Seeded operands."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (product.a_shape, product.b_shape))
    return a, b


BOUNDS = (NOTHING_MORE, RELU, Epilogue(low=-0.5, high=1.5), Epilogue(high=0.25))


def ended(data: st.DataObject, window: tuple[ConvWindow, int], columns: int) -> tuple[Product, tuple[np.ndarray | None, ...]]:
    """A product with any epilogue or none, and its operands."""
    middle = data.draw(st.integers(1, columns))
    beside = Epilogue(parts=((middle, RELU), (columns, Epilogue(high=0.25)))) if middle < columns else RELU
    epilogue = data.draw(st.sampled_from((None, *BOUNDS, beside)))
    product = product_of(*window, columns, epilogue=epilogue)
    if epilogue is None:
        return product, operands_of(product)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((window[1], columns)).astype(np.float32) if data.draw(st.booleans()) else None
    addend = rng.standard_normal(product.whole_shape).astype(np.float32) if data.draw(st.booleans()) else None
    return product, (*operands_of(product), *NOTHING, bias, addend)


@settings(deadline=None, max_examples=40)
@given(windows(), st.integers(1, 4), st.data())
def test_epilogues(window: tuple[ConvWindow, int], columns: int, data: st.DataObject) -> None:
    """Tiles by NumPy, in place and apart, are those of the plain product after what its epilogue says, and no more bytes."""
    product, operands = ended(data, window, columns)
    plain = product_of(*window, columns)
    wanted = whole_of(plain, operands[:2])
    if product.epilogue is not None:
        bias, addend = operands[-2:]
        wanted = wanted + (0 if bias is None else bias.reshape(-1, 1)) + (0 if addend is None else addend)
        by_column = wanted.reshape(window[0].images, window[1], columns, -1)
        begin = 0
        for stop, part in product.epilogue.parts or ((columns, product.epilogue),):
            by_column[:, :, begin:stop] = np.clip(by_column[:, :, begin:stop], part.low, part.high)
            begin = stop
    found = np.zeros_like(wanted)
    for box in data.draw(exact_tilings(product.shape, inner=False)):
        nbytes, apart = product.run(operands, box)
        assert product.run_into(operands, box, found) == nbytes == plain.run(operands[:2], box)[0]
        np.testing.assert_array_equal(apart, product.fetch(found, box))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(1, 4), st.data())
def test_every_tile_is_that_of_numpy(window: tuple[ConvWindow, int], columns: int, data: st.DataObject) -> None:
    """Windows of any rank with groups, strides, dilations and padding, cut anywhere, with any epilogue; with the same
    bytes."""
    product, operands = ended(data, window, columns)
    convolver = Convolver()
    wanted, found = (np.zeros(product.whole_shape, np.float32) for _ in range(2))
    for box in data.draw(exact_tilings(product.shape, inner=False)):
        nbytes = product.run_into(operands, box, wanted)
        assert convolver.run_into(product, operands, box, found, kernels="w") == nbytes
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_packed_kernels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used longest ago are packed again when they are needed; results do not change."""
    product = product_of(WINDOW, 1, 4)
    monkeypatch.setattr(conv_kernel, "KEPT_BYTES", 2 * 3 * 9 * 4 * 4)
    convolver = Convolver()
    for name in (0, 1, 2, 0):
        operands = operands_of(product, name)
        found, wanted = (np.zeros(product.whole_shape, np.float32) for _ in range(2))
        convolver.run_into(product, operands, product.whole_box, found, kernels=name)
        product.run_into(operands, product.whole_box, wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert len(convolver._kept) <= 2


@pytest.mark.parametrize(
    ("changes", "taken"),
    [({}, True), ({"dtype": DType.FLOAT64}, False), ({"dtype": DType.FLOAT16}, False), ({"kernel": (1, 1)}, True)],
)
def test_what_it_takes(changes: dict[str, Any], taken: bool) -> None:
    """float32, whatever the kernels."""
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
    constants = small_models.weights(1, w1=(32, 16, 3, 3), b1=(32,), w2=(40, 32, 1, 1))
    inputs = {"x": (small_models.FLOAT, [2, 16, 9, 7]), "kernels": (small_models.FLOAT, [6, 40, 3, 3])}
    return small_models.save(path, nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_run_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reproducible: bool) -> None:
    """Only convolutions with constant kernels are prepared, none in a reproducible run, which a note says; outputs are those of
    the unsplit model, batch after batch."""
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
    assert [job.prepared for job in jobs] == [not reproducible, not reproducible, False] * 3
    assert len({job.operands[1] for job in jobs if job.prepared}) == (0 if reproducible else 2)
    assert any("onnxruntime computes 0 of 3" in note for note in result.notes) is reproducible


def test_other_names_are_refused() -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="no convolution 'cudnn'"):
        LocalEngine(convolution="cudnn")


def test_onnxruntime_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how."""
    monkeypatch.setattr(conv_kernel, "onnxruntime_installed", lambda: False)
    with pytest.raises(UsageError, match=r"cleave-plan\[ort\]"):
        LocalEngine(convolution="onnxruntime")
