"""How surely a wrong tile is found, and whether a good one is ever refused.

    python -m benchmarks.integrity [KIND...] [--trials 10000] [--tiles 100000] [--curve 2000] [--seed 1] [--json]

For each kind of tile: ``--trials`` corrupted tiles of each sort (a tenth of them of the largest size, 1024 x 4096 x 1024), the
share that is found; ``--tiles`` good tiles (one in a thousand of the largest size) of several distributions and orders of
summation, how many are refused; and, for floating point, how often one element is found that is off by a smaller share of the
tile's root mean square (``--curve`` tiles a point). One BLAS thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.tiles import KINDS, Tile, corrupted, float_tile
from cleave_plan.dtypes import DType
from cleave_plan.kernels.integrity import check_tile

ELEMENT_ERROR = {
    "float32": 1e-3,
    "float64": 1e-3,
    "float16": 0.1,
    "bfloat16": 0.1,
    "attention float16": 0.1,
    "convolution": 1e-3,
    "4-bit weights": 1e-3,
}
"""Share of a tile's root mean square by which one element is off (integers: by 1)."""

CURVE = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
"""Errors of one element, in root mean squares of the tile."""

CURVE_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)

_PER_TILE = 10
"""Corruptions of one good tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """``found`` of ``trials`` tiles of ``kind``, corrupted by ``how``."""

    kind: str
    how: str
    error: float | None
    trials: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """``refused`` of ``tiles`` good tiles of ``kind``."""

    kind: str
    tiles: int
    refused: int
    seconds: float


def _is_refused(tile: Tile, result: np.ndarray, rng: np.random.Generator) -> bool:
    return check_tile(tile.work, tile.operands, tile.box, result, rng) is not None


def detections(kind: str, trials: int, seed: int) -> Iterator[Detection]:
    """One row for each sort of corruption."""
    ways = ("element", "zeros", "stale", *(() if KINDS_OF_INTEGERS & {kind} else ("nan",)))
    for how in ways:
        rng = np.random.default_rng([seed, len(kind), len(how)])
        found, done = 0, 0
        while done < trials:
            # Numbers of one size: the bar is in root mean squares of the tile.
            more = {"family": "normal"} if kind in DTYPES else {}
            tile = KINDS[kind](rng, largest=done % (10 * _PER_TILE) == 0, **more)
            for _ in range(min(_PER_TILE, trials - done)):
                result = corrupted(tile, how, rng, ELEMENT_ERROR.get(kind, 1e-3))
                if np.array_equal(result, tile.result, equal_nan=kind not in KINDS_OF_INTEGERS):
                    continue  # a block of zeros that were there, a shuffled tile of one element
                found += _is_refused(tile, result, rng)
                done += 1
        error = ELEMENT_ERROR.get(kind) if how == "element" else None
        yield Detection(kind=kind, how=how, error=error, trials=done, found=found)


KINDS_OF_INTEGERS = frozenset({"int8", "int16", "int32", "requantised"})
DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})


def alarms(kind: str, tiles: int, seed: int) -> Alarms:
    """How many good tiles are refused."""
    rng = np.random.default_rng([seed, 7, len(kind)])
    refused, begin = 0, time.process_time()
    for number in range(tiles):
        tile = KINDS[kind](rng, largest=number % 1000 == 999)
        refused += _is_refused(tile, tile.result, rng)
    return Alarms(kind=kind, tiles=tiles, refused=refused, seconds=time.process_time() - begin)


def curve(dtype: DType, tiles: int, seed: int) -> Iterator[Detection]:
    """One element that is off by less and less, in the largest tile."""
    rng = np.random.default_rng([seed, 11])
    tile = float_tile(rng, dtype, family="normal", largest=True)
    for error in CURVE:
        found = 0
        for _ in range(tiles):
            result = corrupted(tile, "element", rng, error)
            found += _is_refused(tile, result, rng)
        yield Detection(kind=dtype.value, how="element, largest tile", error=error, trials=tiles, found=found)


def show(row: Detection | Alarms) -> str:
    """A line of the table."""
    if isinstance(row, Alarms):
        return f"{row.kind:<18}{'good':<24}{'':>9}{row.tiles:>9} tiles   {row.refused} refused   ({row.seconds:.0f} s)"
    error = "" if row.error is None else f"{row.error:g}"
    return f"{row.kind:<18}{row.how:<24}{error:>9}{row.trials:>9} trials  {100 * row.found / max(1, row.trials):.2f} % found"


def measure(kinds: list[str], *, trials: int, tiles: int, points: int, seed: int) -> Iterator[Detection | Alarms]:
    """All rows, one after another."""
    for kind in kinds:
        if trials:
            yield from detections(kind, trials, seed)
        if tiles:
            yield alarms(kind, tiles, seed)
        if points and kind in {dtype.value for dtype in CURVE_TYPES}:
            yield from curve(DType(kind), points, seed)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrity", description="Wrong tiles found, good tiles refused.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--trials", type=int, default=10_000, help="corrupted tiles of each sort")
    parser.add_argument("--tiles", type=int, default=100_000, help="good tiles")
    parser.add_argument("--curve", type=int, default=0, help="tiles a point of the curve of small errors")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    kinds = options.kinds or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no kind is called {unknown[0]!r}; there are {', '.join(KINDS)}")
    rows = []
    for row in measure(kinds, trials=options.trials, tiles=options.tiles, points=options.curve, seed=options.seed):
        rows.append(row)
        if not options.json:
            print(show(row), flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
