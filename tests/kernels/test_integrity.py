"""Wrong tiles are found and good ones pass: each kind of product, against tiles that NumPy computed whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.integrity import ELEMENT_ERROR, alarms, curve, detections
from benchmarks.tiles import KINDS, LARGEST, Tile, corrupted, float_tile
from cleave_plan.dtypes import DType
from cleave_plan.kernels.flaw import Flaw
from cleave_plan.kernels.integrity import check_tile
from cleave_plan.kernels.spotcheck import LINES
from cleave_plan.kernels.tile import Box, Product
from cleave_plan.workload.gemm import GemmShape

PROJECTED = [kind for kind in KINDS if kind != "requantised"]
WHOLE_NUMBERS = ("int8", "int16", "int32", "requantised")


def check(tile: Tile, result: np.ndarray, seed: int = 0) -> Flaw | None:
    """The flaw that is found in ``result``."""
    return check_tile(tile.work, tile.operands, tile.box, result, np.random.default_rng(seed))


def plain(a: np.ndarray, b: np.ndarray, box: Box | None = None) -> tuple[Product, Box]:
    """The product of two matrices as one GEMM, and the tile that is all of it."""
    (m, k), n = a.shape, b.shape[1]
    kind = DType(a.dtype.name)
    out = kind if kind.is_float else DType.INT32 if kind.bits < 32 else kind
    return Product(shape=GemmShape(1, m, k, n), a_dtype=kind, b_dtype=kind, out_dtype=out, window=None), box or Box(
        0, m, 0, n, 0, k, 0, 1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_good_tiles_pass(kind: str) -> None:
    """Whatever their numbers look like and in which order they were summed."""
    rng = np.random.default_rng(3)
    for number in range(25):
        tile = KINDS[kind](rng)
        assert check(tile, tile.result, number) is None


@pytest.mark.parametrize("kind", PROJECTED)
def test_one_wrong_element_is_found_and_named(kind: str) -> None:
    """By its place in the whole product, with what stands there."""
    rng = np.random.default_rng(4)
    for number in range(20):
        tile = KINDS[kind](rng, **({"family": "normal"} if kind in ("float32", "float16", "bfloat16", "float64") else {}))
        wrong = corrupted(tile, "element", rng, ELEMENT_ERROR.get(kind, 1e-3))
        flaw = check(tile, wrong, number)
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong != tile.result))
        assert flaw is not None
        start = (tile.box.batch_start, tile.box.m_start, tile.box.n_start)
        assert (flaw.item, flaw.row, flaw.column) == tuple(a + b for a, b in zip(place, start, strict=True))
        assert flaw.found == float(wrong[place])


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in KINDS for how in ("zeros", "stale", "nan") if how != "nan" or kind not in WHOLE_NUMBERS],
)
def test_coarse_errors_are_found_in_every_kind(kind: str, how: str) -> None:
    """Zeros over half of the rows, the numbers of another tile, a NaN."""
    rng = np.random.default_rng(5)
    tile = KINDS[kind](rng)
    while min(tile.result.shape[1:]) < LINES or not tile.result.any():
        tile = KINDS[kind](rng)
    wrong = corrupted(tile, how, rng, 0.0)
    if how == "zeros":
        wrong = tile.result.copy()
        wrong[:, : wrong.shape[1] // 2 + 1] = 0
    assert check(tile, wrong) is not None


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_wrapping_sums_are_exact_modulo_their_range(m: int, k: int, n: int, seed: int) -> None:
    """int64 products wrap around as NumPy's do; two elements of a row that are off by half the range do not cancel."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-(2**62), 2**62, shape) for shape in ((m, k), (k, n)))
    product, box = plain(a, b)
    right = (a @ b)[None]
    assert check_tile(product, (a[None], b[None]), box, right, rng) is None
    wrong = right.copy()
    wrong[0, m - 1, : 2 if n > 1 else 1] ^= np.int64(-(2**63))
    assert check_tile(product, (a[None], b[None]), box, wrong, rng) is not None


def test_overflow_and_nan_pass_where_they_belong_and_nowhere_else() -> None:
    """float16 results beyond its range are infinite; NaN in an operand reaches its row; elsewhere neither may stand."""
    rng = np.random.default_rng(6)
    a, b = np.full((8, 64), 40.0, np.float16), np.full((64, 8), 40.0, np.float16)
    a[:4] = 1
    a[5, 3] = np.nan
    product, box = plain(a, b)
    with np.errstate(over="ignore"):
        right = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)[None]
    assert np.isinf(right[0, 4]).all()
    assert np.isnan(right[0, 5]).all()
    assert check_tile(product, (a[None], b[None]), box, right, rng) is None
    for row, value in ((0, np.inf), (5, 1.0), (4, 2560.0)):
        wrong = right.copy()
        wrong[0, row, 2] = value
        flaw = check_tile(product, (a[None], b[None]), box, wrong, rng)
        assert flaw is not None
        assert flaw.row == row


def test_a_partial_sum_is_checked_over_its_own_range_of_k() -> None:
    """A tile that cuts K returns float32 sums of that range."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((30, 200)).astype(np.float16), rng.standard_normal((200, 20)).astype(np.float16)
    product, _ = plain(a, b)
    box = Box(5, 25, 3, 18, 64, 128, 0, 1)
    right = (a[5:25, 64:128].astype(np.float32) @ b[64:128, 3:18].astype(np.float32))[None]
    assert check_tile(product, (a[None], b[None]), box, right, rng) is None
    right[0, 7, 2] += 1e-2
    flaw = check_tile(product, (a[None], b[None]), box, right, rng)
    assert flaw is not None
    assert (flaw.row, flaw.column) == (12, 5)


def test_a_result_of_another_shape_or_type_is_refused() -> None:
    """Before anything is computed with it."""
    tile = KINDS["float32"](np.random.default_rng(8))
    with pytest.raises(ValueError, match="instead of"):
        check(tile, tile.result.astype(np.float64))


@pytest.mark.long
@pytest.mark.parametrize("kind", PROJECTED)
def test_campaign(kind: str) -> None:
    """The bars on a tenth of the trials: 99.9 % of corrupted tiles found, no good tile refused."""
    for row in detections(kind, 1000, seed=2):
        assert row.found >= 0.999 * row.trials, row
    assert alarms(kind, 10_000, seed=2).refused == 0


@pytest.mark.long
def test_errors_near_rounding_pass_and_larger_ones_do_not() -> None:
    """The curve of small errors falls from all to none."""
    found = {row.error: row.found / row.trials for row in curve(DType.FLOAT32, 50, seed=2)}
    assert LARGEST == (1024, 4096, 1024)
    assert found[1e-3] == 1
    assert found[3e-6] == 0
    tile = float_tile(np.random.default_rng(0), DType.FLOAT32, family="normal", largest=True)
    assert check(tile, tile.result) is None
