r"""Comparing a run with the unsplit model, output by output.

A floating-point output agrees where

    |got - wanted| <= r * (rms + |wanted|) + floor          r = unit(type) * sqrt(1 + levels)

with rms the root mean square of the finite wanted values and ``levels`` the number of GEMM levels, because tiles add in
another order than the whole and each level passes the difference on. ``type`` is the coarsest in which the model
computes a tensor: unit is 1e-9 for float64, 1e-4 for float32, 1e-2 for float16 and 8e-2 for bfloat16, some ten times what
is measured on real models. A model that rounds activations to 8 bits (quantised) turns a small difference into a step,
so r is at least 5e-2 there. ``floor`` is 8 spacings of the type at 1, for outputs that are nothing but rounding.

NaN and infinities must stand in the same places. Integers, booleans and strings must be equal; where integers are places
chosen by ArgMax, ArgMin or TopK, a different choice of equal score (within the scores' tolerance) is a tie: it is
reported and accepted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleave_plan.dtypes import DType
from cleave_plan.kernels.arrays import Array
from cleave_plan.onnx_io.importer import ImportedModel, load_model
from cleave_plan.onnx_io.kinds import is_quantised
from cleave_plan.onnx_io.whole_model import (
    Selection,
    WholeModel,
    chosen_scores,
    computed_tensors,
    draws_random_numbers,
    selection_of,
)
from cleave_plan.plan.plan import Plan

UNIT = {DType.FLOAT64: 1e-9, DType.FLOAT32: 1e-4, DType.FLOAT16: 1e-2, DType.BFLOAT16: 8e-2}
"""Relative tolerance of one level, by element type."""

QUANTISED_TOLERANCE = 5e-2
"""Least relative tolerance of a model that rounds its activations to a few bits."""

_SPACING = {DType.FLOAT64: 2.0**-52, DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """One output: errors against the unsplit model, the tolerance (relative, None for exact types), and the verdict.

    ``max_relative_error`` is the largest |got - wanted| over rms (or floor, where that is more); ``different`` counts the
    elements beyond tolerance and ``ties`` those that differ by an accepted tie. ``note`` says in words what the figures
    do not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_absolute_error: float
    max_relative_error: float
    tolerance: float | None
    different: int
    ties: int
    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison of all outputs; ``runtime`` ran the unsplit model in ``seconds``."""

    ok: bool
    rows: tuple[OutputCheck, ...]
    runtime: str
    seconds: float
    notes: tuple[str, ...] = ()


def verify_run(
    plan: Plan, model_path: str | Path, inputs: Mapping[str, Array], outputs: Mapping[str, Any], *, runtime: str = "auto"
) -> Verification:
    """Run the unsplit model on ``inputs`` and compare ``outputs`` (those of a run of ``plan``) with what it gives.

    ``runtime`` is "auto", "onnxruntime" or "reference". Raises what loading and running a model raise.
    """
    imported = load_model(model_path, dims=plan.dims, shapes=plan.shapes, trips=plan.trips)
    oracle = WholeModel(imported, runtime=runtime)
    begin = time.perf_counter()
    wanted = oracle.run(inputs)
    seconds = time.perf_counter() - begin
    comparison = Comparison(imported)
    rows: list[OutputCheck] = []
    for name, value in wanted.items():
        rows += comparison.compare(name, outputs.get(name), value)
    rows = [comparison.settle_ties(row, inputs, outputs, wanted, oracle) for row in rows]
    notes = ("the model draws random numbers: two runs of it differ",) if draws_random_numbers(imported.model.graph) else ()
    return Verification(ok=all(row.ok for row in rows), rows=tuple(rows), runtime=oracle.runtime, seconds=seconds, notes=notes)


class Comparison:
    """Tolerances that fit one model."""

    def __init__(self, imported: ImportedModel) -> None:
        workload = imported.workload
        self._graph = imported.model.graph
        self._levels = len(workload.levels)
        types = imported.tensor_dtypes
        self._computed_in = {types[name] for name in computed_tensors(self._graph) if types.get(name) in UNIT}
        self._quantised = is_quantised(self._graph)

    def tolerance(self, dtype: DType) -> tuple[float, float]:
        """``(r, floor)`` for an output of a floating-point ``dtype``; see the module's formula."""
        coarsest = max({dtype, *self._computed_in} & UNIT.keys() or {DType.FLOAT32}, key=UNIT.__getitem__)
        relative = UNIT[coarsest] * math.sqrt(1 + self._levels)
        return max(relative, QUANTISED_TOLERANCE if self._quantised else 0.0), 8 * _SPACING[coarsest]

    def compare(self, name: str, got: Any, wanted: Any) -> Iterable[OutputCheck]:
        """One row for an array, one for each member of a sequence or map."""
        if isinstance(wanted, (list, tuple)):
            if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
                yield _unequal(name, np.empty(0), "the sequence has another length")
                return
            for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
                yield from self.compare(f"{name}/{place}", one, other)
        elif isinstance(wanted, dict):
            if not isinstance(got, dict) or got.keys() != wanted.keys():
                yield _unequal(name, np.empty(0), "the map has other keys")
                return
            yield self._array(name, np.array(list(got.values())), np.array([wanted[key] for key in got]))
        elif wanted is None or got is None:
            yield _unequal(name, np.empty(0), "only one of them is present") if wanted is not got else _equal(name, np.empty(0))
        else:
            yield self._array(name, np.asarray(got), np.asarray(wanted))

    def _array(self, name: str, got: Array, wanted: Array) -> OutputCheck:
        if got.shape != wanted.shape:
            return _unequal(name, wanted, f"the shape is {list(got.shape)}, the unsplit model's {list(wanted.shape)}")
        text = wanted.dtype.kind in "OUS"
        if not text and got.dtype != wanted.dtype:
            return _unequal(name, wanted, f"the type is {got.dtype.name}, the unsplit model's {wanted.dtype.name}")
        if text or wanted.dtype.kind in "biu" or "int" in wanted.dtype.name:
            different = int(np.count_nonzero(got.astype(str) != wanted.astype(str) if text else got != wanted))
            return _unequal(name, wanted, "values differ", different) if different else _equal(name, wanted)
        return self._floats(name, got, wanted)

    def _floats(self, name: str, got: Array, wanted: Array) -> OutputCheck:
        dtype = DType(wanted.dtype.name) if wanted.dtype.name in UNIT else DType.FLOAT32
        relative, floor = self.tolerance(dtype)
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        one, other = got.astype(wide), wanted.astype(wide)
        finite = np.isfinite(other)
        rms = float(np.sqrt(np.mean(np.abs(other[finite]) ** 2))) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            error = np.abs(one - other)
        error = np.where(finite & np.isfinite(one), error, 0.0)
        beyond = error > relative * (rms + np.abs(np.where(finite, other, 0.0))) + floor
        # Where either is not finite, both must be the same infinity or both NaN.
        special = ~(finite & np.isfinite(one))
        beyond |= special & ~((one == other) | (np.isnan(one) & np.isnan(other)))
        largest, different = float(error.max(initial=0.0)), int(np.count_nonzero(beyond))
        note = "NaN or infinities stand elsewhere" if (beyond & special).any() else ""
        if not note and rms < floor and wanted.size:
            note = "weak: the values are no larger than rounding"
        return OutputCheck(
            name=name, dtype=wanted.dtype.name, shape=wanted.shape, max_absolute_error=largest,
            max_relative_error=largest / max(rms, floor), tolerance=relative,
            different=different, ties=0, ok=not different, note=note,
        )  # fmt: skip

    def settle_ties(
        self, row: OutputCheck, inputs: Mapping[str, Any], got: Mapping[str, Any], wanted: Mapping[str, Any], oracle: WholeModel
    ) -> OutputCheck:
        """``row`` with differing choices of equal score accepted; unchanged when its values are no such choices."""
        if row.ok or not row.different or row.tolerance is not None or row.name not in wanted:
            return row
        selection = selection_of(self._graph, row.name)
        if selection is None:
            return row
        scores = np.asarray(oracle.tensors(inputs, [selection.scores])[selection.scores])
        worse = self._worse_choices(scores, np.asarray(got[row.name]), np.asarray(wanted[row.name]), selection)
        return OutputCheck(
            name=row.name, dtype=row.dtype, shape=row.shape, max_absolute_error=row.max_absolute_error,
            max_relative_error=row.max_relative_error, tolerance=None, different=worse, ties=row.different - worse, ok=not worse,
            note=f"{row.different - worse} choices differ between scores that are equal within tolerance",
        )  # fmt: skip

    def _worse_choices(self, scores: Array, got: Array, wanted: Array, selection: Selection) -> int:
        """How many elements of ``got`` chose another score than ``wanted``, beyond tolerance."""
        try:
            chosen, best = (chosen_scores(scores, places, selection) for places in (got, wanted))
        except (IndexError, ValueError):
            return int(np.count_nonzero(got != wanted))
        dtype = DType(scores.dtype.name) if scores.dtype.name in UNIT else DType.FLOAT64
        relative, floor = self.tolerance(dtype)
        chosen, best = chosen.astype(np.float64), best.astype(np.float64)
        rms = float(np.sqrt(np.mean(np.square(scores.astype(np.float64))))) if scores.size else 0.0
        return int(np.count_nonzero(~(np.abs(chosen - best) <= relative * (rms + np.abs(best)) + floor)))


def _equal(name: str, wanted: Array) -> OutputCheck:
    return OutputCheck(
        name=name, dtype=wanted.dtype.name, shape=wanted.shape, max_absolute_error=0.0, max_relative_error=0.0, tolerance=None,
        different=0, ties=0, ok=True,
    )  # fmt: skip


def _unequal(name: str, wanted: Array, note: str, different: int = 0) -> OutputCheck:
    return OutputCheck(
        name=name, dtype=wanted.dtype.name, shape=wanted.shape, max_absolute_error=math.nan, max_relative_error=math.nan,
        tolerance=None, different=different, ties=0, ok=False, note=note,
    )  # fmt: skip
