"""Images in blocks of channels: the same tiles as of images as models have them, by NumPy and by onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_strategies import exact_tilings, windows

from cleave_plan.dtypes import DType
from cleave_plan.kernels.channel_blocks import Blocks, in_blocks, opened, plain
from cleave_plan.kernels.epilogue import NOTHING_MORE, RELU, Epilogue
from cleave_plan.kernels.quantised import NOTHING
from cleave_plan.kernels.tile import Product, whole_of
from cleave_plan.onnx_io import blocked_conv
from cleave_plan.onnx_io.blocked_conv import block_size
from cleave_plan.onnx_io.conv_kernel import Convolver
from cleave_plan.workload.gemm import GemmShape

Operands = tuple[np.ndarray | None, ...]


def test_the_order_of_blocks() -> None:
    """By hand: four channels of two positions in blocks of two."""
    images = np.arange(8).reshape(1, 4, 2)
    blocked = in_blocks(images, 2)
    assert blocked.shape == images.shape
    assert blocked.ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    np.testing.assert_array_equal(plain(opened(blocked, 2)), images)


@st.composite
def cases(draw: st.DrawFn, size: int) -> tuple[Product, Product, Operands]:
    """A convolution of images, once with and once without some arrays in blocks of ``size``, and its plain operands."""
    window, _ = draw(windows().filter(lambda found: len(found[0].kernel) == 2))
    a, addend, out = (draw(st.booleans()) for _ in range(3))
    window = replace(window, channels=draw(st.sampled_from((size, 2 * size) if a else (1, 3, size))))
    assume(a or window.channels < size or window.channels % size == 0)
    columns = draw(st.sampled_from((size, 3 * size) if out or addend else (1, size - 1, size + 1, 2 * size)))
    beside = Epilogue(parts=((size, RELU), (columns, Epilogue(low=-0.5, high=1.5)))) if columns > size else RELU
    epilogue = draw(st.sampled_from((NOTHING_MORE, RELU, Epilogue(low=-0.5, high=1.5), Epilogue(high=0.25), beside)))
    shape = GemmShape(1, window.images * window.rows_per_image, window.channels * int(np.prod(window.kernel)), columns)
    float32 = DType.FLOAT32
    product = Product(shape=shape, a_dtype=float32, b_dtype=float32, out_dtype=float32, window=window, epilogue=epilogue)
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (product.a_shape, product.b_shape)]
    bias = rng.standard_normal((1, columns)).astype(np.float32) if draw(st.booleans()) else None
    added = rng.standard_normal(product.whole_shape).astype(np.float32) if addend or draw(st.booleans()) else None
    return product, replace(product, blocks=Blocks(size, a, addend, out)), (*arrays, *NOTHING, bias, added)


def blocked(product: Product, operands: Operands) -> Operands:
    """The operands as ``product`` has them."""
    size, a, addend, _ = product.blocks
    first, last = operands[0], operands[-1]
    assert first is not None
    last = in_blocks(last, size) if addend and last is not None else last
    return (in_blocks(first, size) if a else first, *operands[1:-1], last)


def unblocked(product: Product, whole: np.ndarray) -> np.ndarray:
    """The whole result as the model has it."""
    return plain(opened(whole, product.blocks.size)) if product.blocks.out else whole


@settings(deadline=None, max_examples=60)
@given(cases(4), st.data())
def test_tiles_by_numpy(case: tuple[Product, Product, Operands], data: st.DataObject) -> None:
    """In place, apart, and put into the whole: cut anywhere, the same numbers and bytes as without blocks."""
    product, other, operands = case
    wanted, given = whole_of(product, operands), blocked(other, operands)
    in_place, placed = (np.zeros(other.whole_shape, np.float32) for _ in range(2))
    for box in data.draw(exact_tilings(product.shape, inner=False)):
        nbytes, apart = other.run(given, box)
        assert other.run_into(given, box, in_place) == nbytes == product.run(operands, box)[0]
        other.place(placed, box, apart)
        np.testing.assert_array_equal(other.fetch(placed, box), apart)
    np.testing.assert_array_equal(in_place, placed)
    np.testing.assert_allclose(unblocked(other, in_place), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not block_size(), reason="this onnxruntime computes nothing in blocks")
@settings(deadline=None, max_examples=100)
@given(cases(block_size() or 2), st.data())
def test_tiles_by_onnxruntime(case: tuple[Product, Product, Operands], data: st.DataObject) -> None:
    """Cut anywhere, within blocks too; each tile leaves the others' results as they are."""
    product, other, operands = case
    wanted, given = whole_of(product, operands), blocked(other, operands)
    found, convolver = np.full(other.whole_shape, np.nan, np.float32), Convolver()
    for box in data.draw(exact_tilings(product.shape, inner=False)):
        assert convolver.run_into(other, given, box, found, kernels="w") == product.run(operands, box)[0]
    np.testing.assert_allclose(unblocked(other, found), wanted, rtol=1e-4, atol=1e-4)


def test_columns_of_a_joined_product() -> None:
    """A range of whole blocks of channels of the whole is itself an array in blocks, without a copy."""
    whole = np.arange(2 * 12 * 3, dtype=np.float32).reshape(2, 12, 3)
    lying = in_blocks(whole, 4)
    part = lying[:, 4:12]
    np.testing.assert_array_equal(plain(opened(part, 4)), whole[:, 4:12])


def test_an_onnxruntime_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the operators are unknown or wrong: nothing lies in blocks."""
    monkeypatch.setattr(blocked_conv, "DOMAIN", "nobody.knows")
    assert block_size.__wrapped__() == 0
    monkeypatch.undo()
    monkeypatch.setattr(blocked_conv, "_confirmed", lambda size: False)
    assert block_size.__wrapped__() == 0
