"""Tiles of quantised products against whole arrays in 64-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_strategies import exact_tilings, gemm_of, windows

from cleave_plan.dtypes import DType
from cleave_plan.execution.assembly import Assembly
from cleave_plan.kernels.multiply import multiply
from cleave_plan.kernels.quantised import Coding, Companions, decoded, dynamically_quantised, exact_type, narrowed
from cleave_plan.kernels.tile import Box, Product, cut
from cleave_plan.workload.gemm import ConvWindow, GemmShape

BYTES = {DType.UINT8: (0, 256), DType.INT8: (-128, 128)}


def numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    """Seeded integers over the whole range of a byte type."""
    return rng.integers(*BYTES[dtype], shape).astype(dtype.value)


def product_of(shape: GemmShape, a: DType, b: DType, out: DType, window: ConvWindow | None = None) -> Product:
    """A product of byte types."""
    product = Product.of(gemm_of(shape, dtype=a, out_dtype=out, window=window))
    return Product(shape=shape, a_dtype=a, b_dtype=b, out_dtype=out, window=window, coding=product.coding)


def assembled(product: Product, a: np.ndarray, b: np.ndarray, boxes: list[Box], along: Companions) -> np.ndarray:
    """The result as a server puts it together."""
    assembly = Assembly(product, dict(enumerate(boxes)), along)
    for tile, box in enumerate(boxes):
        assembly.add(tile, multiply(product, cut(product, a, b, box, along), box))
    return assembly.finish()


def wide(array: np.ndarray | None) -> np.ndarray | int:
    """In 64 bits; 0 for nothing."""
    return 0 if array is None else array.astype(np.int64)


@settings(deadline=None)
@given(
    data=st.data(), shape=st.builds(GemmShape, *[st.integers(1, 6)] * 4), a=st.sampled_from(list(BYTES)),
    b=st.sampled_from(list(BYTES)),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_integer_sums_are_exact(data: st.DataObject, shape: GemmShape, a: DType, b: DType, seed: int) -> None:
    """Zero points of one number, of each row or column, whatever the tiling: the sums are those of whole numbers."""
    rng = np.random.default_rng(seed)
    product = product_of(shape, a, b, DType.INT32)
    x, w = numbers(rng, a, *product.a_shape), numbers(rng, b, *product.b_shape)
    rows, columns = data.draw(st.sampled_from([1, shape.m])), data.draw(st.sampled_from([1, shape.n]))
    along = Companions(a_zero=numbers(rng, a, 1, rows, 1), b_zero=numbers(rng, b, 1, 1, columns))
    got = assembled(product, x, w, data.draw(exact_tilings(shape)), along)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, (wide(x) - wide(along.a_zero)) @ (wide(w) - wide(along.b_zero)))


@settings(deadline=None)
@given(data=st.data(), shape=st.builds(GemmShape, *[st.integers(1, 6)] * 4), seed=st.integers(0, 99), biased=st.booleans())
def test_requantised_results_do_not_depend_on_the_tiling(data: st.DataObject, shape: GemmShape, seed: int, biased: bool) -> None:
    """Rounded on the device where K is whole, and by the server where it is cut: round((sum + bias) * scale) + zero."""
    rng = np.random.default_rng(seed)
    product = product_of(shape, DType.UINT8, DType.INT8, DType.UINT8)
    x, w = numbers(rng, DType.UINT8, *product.a_shape), numbers(rng, DType.INT8, *product.b_shape)
    along = Companions(
        a_zero=numbers(rng, DType.UINT8, 1, 1, 1), bias=rng.integers(-999, 999, (1, 1,
        shape.n)).astype(np.int32) if biased else None,
        scale=(rng.random((1, 1, shape.n)) * 0.01).astype(np.float32), y_zero=numbers(rng, DType.UINT8, 1, 1, 1),
    )  # fmt: skip
    got = assembled(product, x, w, data.draw(exact_tilings(shape)), along)
    sums = ((wide(x) - wide(along.a_zero)) @ wide(w) + wide(along.bias)).astype(np.float32)
    wanted = np.clip(np.rint(sums * along.scale) + wide(along.y_zero), 0, 255)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, wanted)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=windows(), columns=st.integers(1, 3))
def test_padding_of_a_quantised_convolution_is_the_zero_point(
    data: st.DataObject, case: tuple[ConvWindow, int], columns: int
) -> None:
    """It equals the float convolution of the input less its zero point, padded with 0, for every tiling."""
    window, groups = case
    shape = GemmShape(groups, window.images * window.rows_per_image, window.channels * int(np.prod(window.kernel)), columns)
    rng = np.random.default_rng(3)
    product = product_of(shape, DType.UINT8, DType.INT8, DType.INT32, window)
    x, w = numbers(rng, DType.UINT8, *product.a_shape), numbers(rng, DType.INT8, *product.b_shape)
    along = Companions(a_zero=np.full((1, 1, 1), 9, np.uint8), b_zero=numbers(rng, DType.INT8, groups, 1, columns))
    got = assembled(product, x, w, data.draw(exact_tilings(shape, inner=False)), along)
    plain = Product.of(gemm_of(shape, dtype=DType.FLOAT64, window=window))
    whole = Box(0, shape.m, 0, columns, 0, shape.k, 0, groups)
    wanted = multiply(plain, cut(plain, x - 9.0, w - along.b_zero.astype(float), whole), whole)
    by_image = wanted.reshape(groups, window.images, window.rows_per_image, columns).transpose(1, 0, 3, 2)
    np.testing.assert_array_equal(got, by_image.reshape(window.images, groups * columns, window.rows_per_image))


@settings(deadline=None)
@given(
    data=st.data(), depth=st.integers(1, 40), columns=st.integers(1, 5), bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([4, 16, 64]),
    signed=st.booleans(),
)  # fmt: skip
def test_packed_weights(data: st.DataObject, depth: int, columns: int, bits: int, block: int, signed: bool) -> None:
    """Cut anywhere along K, also inside a byte or a block, packed weights give the product with the unpacked ones."""
    rng = np.random.default_rng(depth)
    shape, coding = GemmShape(1, 3, depth, columns), Coding(bits, block, signed)
    low = -(1 << bits - 1) if signed else 0
    codes = rng.integers(low, low + (1 << bits), (columns, depth))
    packed = np.zeros((1, columns, coding.bytes_of(depth)), np.uint8)
    for k in range(depth):
        packed[0, :, k * bits // 8] |= ((codes[:, k] & ((1 << bits) - 1)) << (k * bits % 8)).astype(np.uint8)
    blocks = -(-depth // block)
    along = Companions(
        b_scale=rng.random((1, columns, blocks)).astype(np.float32), b_offset=rng.integers(0, 9, (1, columns,
        blocks)).astype(np.uint8)
    )  # fmt: skip
    product = Product(
        shape=shape, a_dtype=DType.FLOAT32, b_dtype=DType.UINT4, out_dtype=DType.FLOAT32, window=None, coding=coding
    )
    a = rng.standard_normal((1, 3, depth)).astype(np.float32)
    got = assembled(product, a, packed, data.draw(exact_tilings(shape)), along)
    spread = np.arange(depth) // block
    weights = (codes - along.b_offset[0][:, spread].astype(int)) * along.b_scale[0][:, spread]
    np.testing.assert_allclose(got[0], a[0].astype(float) @ weights.T, atol=1e-3)


def test_a_tile_is_sent_its_own_companions() -> None:
    """Scales and zero points of its rows and columns only; a single number goes to every tile."""
    shape = GemmShape(1, 4, 2, 6)
    product = product_of(shape, DType.UINT8, DType.INT8, DType.UINT8)
    a, b = np.zeros(product.a_shape, np.uint8), np.zeros(product.b_shape, np.int8)
    along = Companions(
        a_zero=np.zeros((1, 4, 1), np.uint8), b_zero=np.zeros((1, 1, 6), np.int8), scale=np.zeros((1, 4, 6), np.float32),
        y_zero=np.zeros((1, 1, 1), np.uint8),
    )  # fmt: skip
    pieces = cut(product, a, b, Box(1, 4, 2, 4, 0, 2, 0, 1), along)
    assert [None if array is None else array.shape for array in pieces.along[:5]] == [
        (1, 3, 1), (1, 1, 2), None, (1, 3, 2), (1, 1, 1),
    ]  # fmt: skip
    assert pieces.nbytes == 3 * 2 + 2 * 2 + 3 + 2 + 4 * 6 + 1


@pytest.mark.parametrize(
    ("a", "b", "depth", "wanted"),
    [
        (DType.UINT8, DType.INT8, 258, np.float32), (DType.UINT8, DType.INT8, 259, np.float64), (DType.INT16, DType.INT16,
        2**20, np.float64),
        (DType.INT16, DType.INT16, 2**22, None), (DType.INT32, DType.INT8, 1, None), (DType.FLOAT32, DType.INT8, 1, None),
    ],
)  # fmt: skip
def test_the_type_that_is_exact(a: DType, b: DType, depth: int, wanted: type | None) -> None:
    """The narrowest floating-point type whose whole numbers reach the largest sum."""
    assert exact_type(a, b, depth) == (None if wanted is None else np.dtype(wanted))


def test_the_largest_sums_that_float32_holds() -> None:
    """258 products of the largest differences of bytes; one more goes to float64."""
    for depth in (258, 259, 70_000):
        product = product_of(GemmShape(1, 1, depth, 1), DType.UINT8, DType.UINT8, DType.INT32)
        a, b = np.full(product.a_shape, 255, np.uint8), np.full(product.b_shape, 255, np.uint8)
        box = Box(0, 1, 0, 1, 0, depth, 0, 1)
        got = multiply(product, cut(product, a, b, box), box)
        assert int(got[0, 0, 0]) == (depth * 255**2 + 2**31) % 2**32 - 2**31  # wraps around as int32 does


def test_wrap_around() -> None:
    """Whole numbers in floating point beyond int32 wrap around like integers."""
    np.testing.assert_array_equal(narrowed(np.array([2.0**31, -(2.0**31) - 1]), np.dtype(np.int32)), [-(2**31), 2**31 - 1])


def test_quantising_over_the_own_range() -> None:
    """The range always holds 0; a tensor of zeros has a scale of 1."""
    codes, scale, zero = dynamically_quantised(np.array([1.0, 3.0, 4.0], np.float32))
    assert (codes.tolist(), int(zero)) == ([64, 191, 255], 0)
    assert float(scale) == pytest.approx(4 / 255)
    codes, scale, zero = dynamically_quantised(np.zeros(3, np.float32))
    assert (codes.tolist(), float(scale), int(zero)) == ([0, 0, 0], 1.0, 0)


def test_signed_codes() -> None:
    """Two's complement in two and four bits."""
    codes = np.array([[[0b1001_0111]]], np.uint8)
    plain = Companions()
    assert decoded(Coding(4, 2, signed=True), codes, plain, slice(0, 2), np.dtype(np.float32)).ravel().tolist() == [7, -7]
    assert decoded(Coding(2, 4, signed=True), codes, plain, slice(0, 4), np.dtype(np.float32)).ravel().tolist() == [-1, 1, 1, -2]
