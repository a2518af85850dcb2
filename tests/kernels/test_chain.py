"""Tiles of attention against the whole of it, computed item by item in float64."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cleave_plan.kernels.chain as chain_module
from cleave_plan.dtypes import DType
from cleave_plan.kernels.chain import ChainProduct, Step
from cleave_plan.kernels.tile import Box
from cleave_plan.workload.gemm import GemmShape

MASKED = (Step("Mul", (0, 1), DType.FLOAT32), Step("Add", (3, 2), DType.FLOAT32), Step("Softmax", (4,), DType.FLOAT32))


def product_of(batch: int, rows: int, d_k: int, length: int, d_v: int, **changes: object) -> ChainProduct:
    """scores * side 0 + side 1, softmax, in float32; side 0 is constant."""
    whole = ChainProduct(
        shape=GemmShape(batch, rows, length * (d_k + d_v), 1), d_k=d_k, length=length, d_v=d_v, dtype=DType.FLOAT32,
        scores_dtype=DType.FLOAT32, out_dtype=DType.FLOAT32, steps=MASKED, result=5, constant=(True, False),
    )  # fmt: skip
    return replace(whole, **changes)


def operands_of(product: ChainProduct, mask: tuple[int, int, int], seed: int = 0) -> list[np.ndarray]:
    """Q, K, V, the scale, and a mask of shape ``mask``."""
    rng = np.random.default_rng(seed)
    batch, rows, _, _ = product.shape
    shapes = ((batch, rows, product.d_k), (batch, product.d_k, product.length), (batch, product.length, product.d_v))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [*arrays, np.full((1, 1, 1), 0.25, np.float32), np.where(rng.random(mask) < 0.2, -30, 0).astype(np.float32)]


def whole(operands: list[np.ndarray]) -> np.ndarray:
    """softmax(Q K * scale + mask) V, one item at a time."""
    q, k, v, scale, mask = (array.astype(np.float64) for array in operands)
    result = []
    for item in range(len(q)):
        scores = q[item] @ k[item] * scale[0] + mask[item if len(mask) > 1 else 0]
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result.append(powers / powers.sum(axis=-1, keepdims=True) @ v[item])
    return np.array(result)


def full(product: ChainProduct) -> Box:
    """Everything as one tile."""
    batch, rows, depth, _ = product.shape
    return Box(0, rows, 0, 1, 0, depth, 0, batch)


@given(
    st.tuples(*(st.integers(1, 7) for _ in range(5))), st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 60), st.integers(0, 10_000),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_tiles_put_together_are_the_whole(sizes: tuple[int, ...], varies: tuple[bool, ...], block: int, seed: int) -> None:
    """Any cut of batch and rows, any blocks on the device, and masks that vary along any of the axes."""
    product = product_of(*sizes)
    batch, rows, depth, _ = product.shape
    mask = tuple(size if own else 1 for size, own in zip((batch, rows, product.length), varies, strict=True))
    operands = operands_of(product, mask, seed)
    generator = random.Random(seed)
    result = np.full(product.whole_shape, np.nan, np.float32)
    item = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_module, "BLOCK", block)
        while item < batch:
            items = generator.randint(item + 1, batch)
            row = 0
            while row < rows:
                stop = generator.randint(row + 1, rows)
                box = Box(row, stop, 0, 1, 0, depth, item, items)
                nbytes, part = product.run(operands, box)
                assert part.shape == product.result_shape(box)
                g, r, size = items - item, stop - row, 4
                own = mask[2] * (r if mask[1] > 1 else 1)
                assert nbytes == g * size * (r * product.d_k + product.length * (product.d_k + product.d_v) + own)
                result[product.area(box)] = part
                row = stop
            item = items
    np.testing.assert_allclose(result, whole(operands), rtol=2e-5, atol=2e-6)


def test_half_precision_travels_in_two_bytes() -> None:
    """float16 operands: products are summed in float32, scores rounded to float16 as a runtime stores them."""
    product = product_of(
        2, 5, 8, 6, 4, dtype=DType.FLOAT16, scores_dtype=DType.FLOAT16, out_dtype=DType.FLOAT16,
        steps=tuple(step._replace(dtype=DType.FLOAT16) for step in MASKED),
    )  # fmt: skip
    operands = [array.astype(np.float16) for array in operands_of(product, (2, 1, 6))]
    operands[4] = np.where(operands[4] < 0, np.float16(-60000), np.float16(0))
    nbytes, got = product.run(operands, full(product))
    assert got.dtype == np.float16
    assert nbytes == 2 * 2 * (5 * 8 + 6 * 8 + 6 * 4 + 6)
    np.testing.assert_allclose(got.astype(float), whole(operands), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (Box(0, 4, 0, 1, 0, 54, 0, 2), "no tile"),  # more rows than there are
        (Box(0, 3, 0, 1, 0, 27, 0, 2), "no tile"),  # half of the depth
        (Box(0, 3, 0, 1, 0, 54, 1, 3), "no tile"),  # items beyond the batch
        (Box(2, 2, 0, 1, 0, 54, 0, 2), "no tile"),  # empty
    ],
)
def test_other_boxes_are_refused(box: Box, reason: str) -> None:
    """Slices would be cut short silently."""
    product = product_of(2, 3, 4, 6, 5)
    with pytest.raises(ValueError, match=reason):
        product.run(operands_of(product, (1, 1, 6)), box)


def test_other_operands_are_refused() -> None:
    """K of another length, a side that does not broadcast, a side too few."""
    product = product_of(2, 3, 4, 6, 5)
    operands = operands_of(product, (1, 1, 6))
    with pytest.raises(ValueError, match="operands of shapes"):
        product.run([operands[0], operands[1][:, :, :5], *operands[2:]], full(product))
    with pytest.raises(ValueError, match="does not broadcast"):
        product.run([*operands[:4], np.zeros((1, 2, 6), np.float32)], full(product))
    with pytest.raises(ValueError, match="and the sides"):
        product.run(operands[:4], full(product))
