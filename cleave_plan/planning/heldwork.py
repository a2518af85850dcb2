r"""What devices can do of a level by a time T when they hold some of its operands already.

In time t = T - l operands of S + h bytes are at hand, S = t*d sent and h held. Work of GEMM g is counted as in its bound
without reuse, V_ig(T). Both ways to count grow by no more than a slope times h:

    cut along K    V(S + h) <= V(S) + h*V(S)/S              concave in S, and V(t)/t never falls (planning.volume)
    whole depth    a(S + h) <= a(S) + h*sqrt(U/(R*Q))       U the largest area; (2S + h)*h/(4RQ) in a square, r/Q in a strip
    either         an element of B that is held meets at most M rows, one of A at most N columns

and with rho_ig(T) the larger of these slopes, V'_ig(T) the most that can be done when the operands that may be held cost
nothing, a share y_ig of the device's time does y_ig*V_ig + rho_ig*h_i, never more than y_ig*V'_ig. Weights pi_g >= 0 with
sum_g pi_g*size_g = 1 (the duals of the level's program at its bound) add the GEMMs up:

    sum_g pi_g*work_ig  <=  min( A_i + w_i*h_i , A'_i )       A_i = max_g pi_g*V_ig ,  w_i = max_g pi_g*rho_ig ,  A'_i alike

Levels in which dY passes from dX to dW: :mod:`cleave_plan.planning.passing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.ability import Ability, ability_of, cuts_depth
from cleave_plan.planning.bounds import FREE
from cleave_plan.planning.levelprogram import shared, supply_at
from cleave_plan.planning.terms import Terms
from cleave_plan.workload.reuse import Side

Floats = NDArray[np.float64]

_TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdable:
    """One part of a level: which of its operands devices may hold, and the bytes of these (all copies)."""

    terms: Terms
    columns: DeviceColumns
    rate: float
    sides: tuple[Side, ...]
    operand_bytes: float


class HeldWork(Protocol):
    """What a level may do; all work is weighted so that the whole level is 1."""

    @property
    def top_s(self) -> float:
        """A time by which the level may end with nothing held, as far as this bound can tell."""

    @property
    def room(self) -> Floats:
        """Bytes that each device may hold for one copy of the level at the most."""

    @property
    def memory(self) -> Floats:
        """Bytes that each device may hold for all levels."""

    @property
    def out_bytes(self) -> float:
        """Result bytes of a unit of work at the least."""

    def served(self, T: float) -> float:
        """Work of the servers by T."""

    def alone(self, T: float) -> Floats:
        """A_i(T)."""

    def slopes(self, T: float) -> Floats:
        """w_i(T)."""

    def most(self, T: float) -> Floats:
        """A'_i(T)."""

    def efficiency(self, T: float) -> Floats:
        """Work that an operand byte feeds at most, sent or held."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Parts that share nothing; ``bound_s``: the level's bound without reuse, ``inner``: K may be cut."""

    parts: Sequence[Holdable]
    inner: bool
    bound_s: float

    @cached_property
    def _abilities(self) -> list[Ability]:
        return [ability_of(part.terms, part.columns, inner=self.inner) for part in self.parts]

    @cached_property
    def weights(self) -> list[float]:
        """pi_g."""
        rates = [part.rate for part in self.parts]
        return [float(pi) for pi in _weights(self._abilities, rates, self.bound_s)]

    @property
    def top_s(self) -> float:
        """The bound without reuse: by then nothing need be held."""
        return self.bound_s

    @cached_property
    def memory(self) -> Floats:
        """All but the stream buffers."""
        return np.asarray((1 - STREAM_SHARE) * self.parts[0].columns.memory)

    @cached_property
    def room(self) -> Floats:
        """No more than there is to hold."""
        return np.minimum(self.memory, sum(part.operand_bytes for part in self.parts))

    @cached_property
    def out_bytes(self) -> float:
        """Of the GEMM with the smallest results for its weight."""
        return min(able.out_bytes / max(pi, _TINY) for pi, _, able in self._each)

    @cached_property
    def _each(self) -> list[tuple[float, Holdable, Ability]]:
        return list(zip(self.weights, self.parts, self._abilities, strict=True))

    def served(self, T: float) -> float:
        """All of the servers' time on the GEMM that weighs most."""
        return max(pi * part.rate * T / able.flop for pi, part, able in self._each)

    def alone(self, T: float) -> Floats:
        """A_i(T)."""
        return np.asarray(np.max([pi * amount for pi, amount in zip(self.weights, self._amounts(T), strict=True)], axis=0))

    def _amounts(self, T: float) -> list[Floats]:
        """V_ig(T) of each part; those of the last T are at hand, for it is asked for several times in a row."""
        if T not in self._latest:
            self._latest.clear()
            self._latest[T] = [able.amount(T) for able in self._abilities]
        return self._latest[T]

    @cached_property
    def _latest(self) -> dict[float, list[Floats]]:
        return {}

    def slopes(self, T: float) -> Floats:
        """w_i(T)."""
        amounts = zip(self._each, self._amounts(T), strict=True)
        return np.asarray(np.max([pi * _slope(part, amount, T, self.inner) for (pi, part, _), amount in amounts], axis=0))

    def most(self, T: float) -> Floats:
        """A'_i(T)."""
        free = np.max([pi * _free_work(part, T, self.inner) for pi, part, _ in self._each], axis=0)
        return np.asarray(np.maximum(free, self.alone(T)))

    def efficiency(self, T: float) -> Floats:
        """Of whole tiles and of cut ones."""
        return np.asarray(np.max([pi * _efficiency(part, able, T, self.inner) for pi, part, able in self._each], axis=0))


def _weights(abilities: Sequence[Ability], rates: Sequence[float], T: float) -> Floats:
    """Weights pi_g with sum pi_g*size_g = 1: the prices of the level's program without links at ``T``."""
    size = np.array([able.size for able in abilities])
    if len(size) == 1:
        return np.asarray(1 / size)
    return np.asarray(shared(supply_at(abilities, FREE, rates, T)).prices.gemms / size)


def _limits(part: Holdable, T: float) -> tuple[Floats, Floats, Floats]:
    """Time for work, the largest area of whole depth and the most results of cut tiles, by T."""
    terms, own = part.terms, part.columns
    t = np.maximum(T - own.latency, 0.0)
    area = t * np.minimum(own.uplink / terms.out_bytes, own.best_rate / terms.flop)
    return t, area, t * own.uplink / terms.accumulator_bytes


def _slope(part: Holdable, amount: Floats, T: float, inner: bool) -> Floats:
    """rho_i(T): work that a held byte adds at most, in the units of ``amount``, which is V_i(T)."""
    terms, own = part.terms, part.columns
    if not part.sides:
        return np.zeros(len(own))
    t, area, _ = _limits(part, T)
    row, col = terms.bound_row_bytes, terms.col_bytes
    meets = [terms.rows / col if side == "b" else terms.columns / row for side in part.sides]
    whole = np.minimum(np.sqrt(area / (row * col)), max(meets))
    if not cuts_depth(terms, inner):
        return whole
    cut = amount / np.maximum(t * own.downlink, _TINY)
    return np.asarray(terms.depth * np.maximum(whole, np.minimum(cut / terms.depth, max(meets))))


def _free_work(part: Holdable, T: float, inner: bool) -> Floats:
    """V'_i(T): work when the operands that may be held cost nothing, in the units of the part's ability.

    A row of whole depth (a column, where A is held) must have come whole. Distinct inner indices are no more than elements of A,
    distinct columns no more than results, and an element of B meets M rows at most: V <= M*A*C; and V <= sqrt(A*B*C).
    """
    terms, own = part.terms, part.columns
    if not part.sides:
        return np.zeros(len(own))
    t, area, results = _limits(part, T)
    operand = t * own.downlink
    free_a, free_b = "a" in part.sides, "b" in part.sides
    rows = np.full(len(own), np.inf) if free_a else operand / terms.bound_row_bytes
    columns = np.full(len(own), np.inf) if free_b else operand / terms.col_bytes
    whole = np.minimum(area, np.minimum(rows * terms.columns, columns * terms.rows))
    whole = np.where((rows >= 1) & (columns >= 1), whole, 0.0)
    if not cuts_depth(terms, inner):
        return np.asarray(whole)
    cut = np.minimum(results, np.minimum(rows * terms.columns, columns * terms.rows))
    if not free_a:
        cut = np.minimum(cut, terms.rows * rows * results)
    if not free_b:
        cut = np.minimum(cut, terms.columns * columns * results)
    room = (1 - STREAM_SHARE) * own.memory
    if free_b and not free_a:  # sqrt(A*B*C), B all that memory holds
        some = (room + operand) / terms.col_bytes * terms.depth
        held = np.minimum(some, float(terms.items) * terms.depth * terms.columns)
        cut = np.minimum(cut, np.sqrt(rows * held * results / terms.depth))
    return np.asarray(terms.depth * np.maximum(whole, np.minimum(cut, t * own.best_rate / terms.flop)))


def _efficiency(part: Holdable, able: Ability, T: float, inner: bool) -> Floats:
    """Work that an operand byte feeds at most, sent or held."""
    terms = part.terms
    _, area, _ = _limits(part, T)
    row, col = terms.bound_row_bytes, terms.col_bytes
    square = np.minimum(np.sqrt(area / (row * col)) / 2, 1 / (row / terms.columns + col / terms.rows))
    return np.asarray(np.maximum(able.efficiency(T), square * (terms.depth if cuts_depth(terms, inner) else 1)))
