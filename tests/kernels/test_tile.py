"""Tiles against the whole product, computed the dumb way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_strategies import exact_tilings, gemm_of, product_of, windows

from cleave_plan.cost.efficiency import device_columns
from cleave_plan.cost.tile import Tiles, price
from cleave_plan.dtypes import DType
from cleave_plan.fleet.device import Device
from cleave_plan.kernels.arrays import accumulator, numpy_dtype
from cleave_plan.kernels.multiply import multiply
from cleave_plan.kernels.tile import Box, Product, cut
from cleave_plan.workload.gemm import ConvWindow, Gemm, GemmShape

DEVICE = Device(
    name="d", flop_per_s={"any": 1e9}, downlink_bytes_per_s=1e6, uplink_bytes_per_s=1e6, latency_s=0.0, memory_bytes=1e9
)

FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16]


def assemble(product: Product, a: np.ndarray, b: np.ndarray, boxes: list[Box]) -> np.ndarray:
    """Every tile added into a float64 or int64 array."""
    total = np.zeros((product.shape.batch, product.shape.m, product.shape.n), np.float64)
    for box in boxes:
        total[box.batch, box.rows, box.columns] += multiply(product, cut(product, a, b, box), box)
    return total


def naive_convolution(window: ConvWindow, images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[groups, images * positions, columns] by a loop over output positions and kernel taps."""
    groups, _, columns = weights.shape
    taps = weights.reshape(groups, window.channels, *window.kernel, columns)
    result = np.zeros((groups, window.images, *window.output, columns))
    for image in range(window.images):
        for place in np.ndindex(*window.output):
            for tap in np.ndindex(*window.kernel):
                at = tuple(
                    p * s - b + t * d
                    for p, s, b, t, d in zip(place, window.strides, window.pads, tap, window.dilations, strict=True)
                )
                if all(0 <= x < size for x, size in zip(at, window.input, strict=True)):
                    for group in range(groups):
                        channels = slice(group * window.channels, (group + 1) * window.channels)
                        result[(group, image, *place)] += images[(image, channels, *at)] @ taps[(group, slice(None), *tap)]
    return result.reshape(groups, -1, columns)


def sent_bytes(gemm: Gemm, a: np.ndarray, b: np.ndarray, box: Box) -> tuple[int, int]:
    """Bytes that travel down and up by the kernels."""
    product = Product.of(gemm)
    return cut(product, a, b, box).nbytes, multiply(product, cut(product, a, b, box), box).nbytes


def priced_bytes(gemm: Gemm, box: Box) -> tuple[float, float]:
    """Bytes that travel down and up by the cost model."""
    costs = price(gemm, Tiles.of([(0, *box)]), device_columns([DEVICE], gemm.dtype))
    return float(costs.down_bytes[0]), float(costs.up_bytes[0])


@settings(deadline=None)
@given(data=st.data(), shape=st.builds(GemmShape, *[st.integers(1, 6)] * 4))
def test_tiles_add_up_to_the_product(data: st.DataObject, shape: GemmShape) -> None:
    """Whatever the exact tiling, inner splits included, the tiles add up to A @ B."""
    boxes = data.draw(exact_tilings(shape))
    rng = np.random.default_rng(0)
    product = product_of(shape)
    a, b = rng.standard_normal(product.a_shape, np.float32), rng.standard_normal(product.b_shape, np.float32)
    np.testing.assert_allclose(assemble(product, a, b, boxes), a.astype(float) @ b.astype(float), atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), case=windows(), columns=st.integers(1, 3))
def test_convolution_tiles_add_up(data: st.DataObject, case: tuple[ConvWindow, int], columns: int) -> None:
    """Rows x channels x groups of a convolution equal the loop over taps, and travel in the bytes that are priced."""
    window, groups = case
    shape = GemmShape(groups, window.images * window.rows_per_image, window.channels * int(np.prod(window.kernel)), columns)
    gemm = gemm_of(shape, window=window)
    product = Product.of(gemm)
    boxes = data.draw(exact_tilings(shape, inner=False))
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(product.a_shape, np.float32), rng.standard_normal(product.b_shape, np.float32)
    wanted = naive_convolution(window, a, b)
    np.testing.assert_allclose(assemble(product, a, b, boxes), wanted, atol=1e-4)
    for box in boxes:
        assert sent_bytes(gemm, a, b, box) == priced_bytes(gemm, box)
    in_place, placed = (np.full(product.whole_shape, np.nan, np.float32) for _ in range(2))
    for box in boxes:
        product.run_into((a, b), box, in_place)
        product.place(placed, box, product.run((a, b), box)[1])
    by_image = wanted.reshape(groups, window.images, window.rows_per_image, columns).transpose(1, 0, 3, 2)
    for whole in (in_place, placed):
        np.testing.assert_allclose(whole, by_image.reshape(product.whole_shape), atol=1e-4)
        for box in boxes:
            np.testing.assert_allclose(
                product.fetch(whole, box), wanted[box.batch, box.rows, box.columns], atol=1e-4
            )  # fmt: skip


@settings(deadline=None)
@given(data=st.data(), shape=st.builds(GemmShape, *[st.integers(1, 6)] * 4), dtype=st.sampled_from(FLOATS))
def test_bytes_are_those_priced(data: st.DataObject, shape: GemmShape, dtype: DType) -> None:
    """The pieces of a tile and its result have the sizes that the cost model charges, partial sums included."""
    gemm = gemm_of(shape, dtype=dtype)
    product = Product.of(gemm)
    a, b = np.zeros(product.a_shape, numpy_dtype(dtype)), np.zeros(product.b_shape, numpy_dtype(dtype))
    for box in data.draw(exact_tilings(shape)):
        assert sent_bytes(gemm, a, b, box) == priced_bytes(gemm, box)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_half_precision_is_summed_in_float32(dtype: DType) -> None:
    """4096 ones add up to 4096, which a half-precision accumulator (2048 or 256 at most, by ones) misses."""
    product = product_of(GemmShape(1, 1, 4096, 1), dtype=dtype)
    a, b = np.ones(product.a_shape, numpy_dtype(dtype)), np.ones(product.b_shape, numpy_dtype(dtype))
    box = Box(0, 1, 0, 1, 0, 4096, 0, 1)
    result = multiply(product, cut(product, a, b, box), box)
    assert result.dtype == numpy_dtype(dtype)
    assert float(result[0, 0, 0]) == 4096


def test_partial_sums_of_half_precision_travel_in_float32() -> None:
    """A tile that does not hold the whole of K returns its accumulator, unrounded."""
    product = product_of(GemmShape(1, 1, 4, 1), dtype=DType.FLOAT16)
    a, b = np.full((1, 1, 4), 0.1, np.float16), np.full((1, 4, 1), 0.1, np.float16)
    box = Box(0, 1, 0, 1, 0, 2, 0, 1)
    result = multiply(product, cut(product, a, b, box), box)
    assert result.dtype == np.float32
    assert result[0, 0, 0] == 2 * np.float32(np.float16(0.1)) ** 2


def test_integers_are_exact() -> None:
    """64-bit products that no float holds come out to the last digit."""
    product = product_of(GemmShape(1, 1, 2, 1), dtype=DType.INT64)
    a, b = np.array([[[2**40, 3]]]), np.array([[[2**20], [5]]])
    box = Box(0, 1, 0, 1, 0, 2, 0, 1)
    assert multiply(product, cut(product, a, b, box), box)[0, 0, 0] == 2**60 + 15


@pytest.mark.parametrize(
    ("dtype", "sums"),
    [(DType.FLOAT16, DType.FLOAT32), (DType.FLOAT64, DType.FLOAT64), (DType.UINT8, DType.INT32), (DType.INT64, DType.INT64)],
)
def test_accumulators(dtype: DType, sums: DType) -> None:
    """At least 32 bits, of the same kind."""
    assert accumulator(dtype) is sums


def test_whole_image_in_the_middle_travels_entire() -> None:
    """One image between a tail and a head is sent whole even where the stride leaves its last column unread."""
    window = ConvWindow(
        images=3, channels=1, input=(4,), output=(2,), kernel=(1,), strides=(2,), dilations=(1,), pads=(0,)
    )  # fmt: skip
    gemm = gemm_of(GemmShape(1, 6, 1, 1), window=window)
    a, b = np.arange(12, dtype=np.float32).reshape(3, 1, 4), np.ones((1, 1, 1), np.float32)
    box = Box(1, 5, 0, 1, 0, 1, 0, 1)
    assert [piece.shape for piece in cut(Product.of(gemm), a, b, box).a] == [(1, 1, 1), (1, 1, 4), (1, 1, 1)]
    assert sent_bytes(gemm, a, b, box) == priced_bytes(gemm, box)
    assert multiply(Product.of(gemm), cut(Product.of(gemm), a, b, box), box).ravel().tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize(
    "box", [Box(0, 3, 0, 2, 0, 2, 0, 1), Box(-1, 1, 0, 2, 0, 2, 0, 1), Box(0, 2, 2, 0, 0, 2, 0, 1), Box(0, 2, 0, 2, 0, 2, 0, 2)]
)
def test_boxes_outside_are_refused(box: Box) -> None:
    """A slice would cut them short and give a wrong result."""
    product = product_of(GemmShape(1, 2, 2, 2))
    with pytest.raises(ValueError, match="leaves the product"):
        cut(product, np.zeros((1, 2, 2), np.float32), np.zeros((1, 2, 2), np.float32), box)


def test_a_cut_inner_axis_of_a_convolution_is_refused() -> None:
    """No input region is defined for it."""
    window = ConvWindow(images=1, channels=2, input=(4,), output=(4,), kernel=(1,), strides=(1,), dilations=(1,), pads=(0,))
    product = product_of(GemmShape(1, 4, 2, 1), window=window)
    a, b = np.zeros(product.a_shape, np.float32), np.zeros(product.b_shape, np.float32)
    with pytest.raises(ValueError, match="cuts the inner axis"):
        cut(product, a, b, Box(0, 4, 0, 1, 0, 1, 0, 1))
