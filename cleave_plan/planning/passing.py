r"""What devices can do of a level by a time T when dY may pass from its dX to its dW on a device.

Where dY may pass from dX to dW on a device, shares of its time are not enough: the two use Y elements of dY together, Z of X
and W, and send C elements back, Cw of whole depth (out bytes each) and Cc partial sums (acc bytes). By Loomis and Whitney and by
Cauchy and Schwarz, with x = S + h bytes of operands of at least b bytes an element,

    sum_g pi_g*V_g  <=  sqrt(Y*Z * sum_g pi_g^2*C_g)  <=  x/(2b) * sqrt( min( P*t*u/acc + (1 - out/acc)*e*x^2 , P*t*u/out ) )

P = max_g pi_g^2, e = max_g pi_g^2/(4*R_g*Q_g): a tile of whole depth has at most the area of a square. This and the limits
of arithmetic and uplink alone are A_i then, and its steepest slope within reach is w_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.planning.ability import cuts_depth
from cleave_plan.planning.bounds import bisect_infeasible
from cleave_plan.planning.heldwork import Apart, Floats

_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Passing(Apart):
    """dX and dW, between which dY passes."""

    @cached_property
    def top_s(self) -> float:
        """By when this bound, which is weaker than that without reuse, lets the level end with nothing held."""
        enough = lambda T: float(self.alone(T).sum()) + self.served(T) >= 1  # noqa: E731
        return min(bisect_infeasible(enough, self.bound_s, 1e-7) * (1 + 1e-6), self.bound_s)

    def alone(self, T: float) -> Floats:
        """The three limits."""
        t, up, flop = self._times(T)
        return np.minimum(self._square(t * self._own.downlink, up), np.minimum(self._uplink(up), flop))

    def slopes(self, T: float) -> Floats:
        """The steepest within reach, where whole tiles take all of the uplink if they can."""
        t, up, _ = self._times(T)
        sent = t * self._own.downlink
        low, high, e = self._curve(up)
        turn = np.sqrt(np.maximum(high - low, 0.0) / max(e, _TINY))
        x = np.minimum(sent + self.room, turn)
        inside = np.sqrt(low + e * x * x)
        rising = inside + e * x * x / np.maximum(inside, _TINY)
        return np.asarray(np.where(sent < turn, rising, np.sqrt(high)) / (2 * self._element))

    def most(self, T: float) -> Floats:
        """Uplink and arithmetic alone."""
        _, up, flop = self._times(T)
        return np.maximum(np.minimum(self._uplink(up), flop), self.alone(T))

    def efficiency(self, T: float) -> Floats:
        """Where all results are whole."""
        _, up, _ = self._times(T)
        return np.asarray(np.sqrt(self._curve(up)[1]) / (2 * self._element))

    @property
    def _own(self) -> DeviceColumns:
        return self.parts[0].columns

    @cached_property
    def _element(self) -> float:
        """Bytes of the smallest element of an operand."""
        return min(min(part.terms.row_bytes, part.terms.col_bytes) / part.terms.depth for part in self.parts)

    @cached_property
    def _result(self) -> tuple[float, float]:
        """Least bytes of a whole result and of a partial sum (the same where K may not be cut)."""
        out = min(part.terms.out_bytes for part in self.parts)
        acc = min(part.terms.accumulator_bytes for part in self.parts)
        return min(out, acc), acc

    @cached_property
    def _volumes(self) -> list[float]:
        """pi_g for a multiply-add, whatever the unit of work."""
        return [
            pi if cuts_depth(part.terms, self.inner) else pi / part.terms.depth
            for pi, part in zip(self.weights, self.parts, strict=True)
        ]  # fmt: skip

    def _times(self, T: float) -> tuple[Floats, Floats, Floats]:
        """Time for work, bytes up, and the most weighted work of the arithmetic."""
        t = np.maximum(T - self._own.latency, 0.0)
        flop = np.max([pi * part.columns.best_rate for pi, part in zip(self._volumes, self.parts, strict=True)], axis=0)
        return t, t * self._own.uplink, np.asarray(t * flop / 2)

    def _curve(self, up: Floats) -> tuple[Floats, Floats, float]:
        """P*t*u/acc, P*t*u/out and (1 - out/acc)*e."""
        out, acc = self._result
        largest = max(pi * pi for pi in self._volumes)
        e = max(
            pi * pi / (4 * part.terms.bound_row_bytes * part.terms.col_bytes)
            for pi, part in zip(self._volumes, self.parts, strict=True)
        )
        return largest * up / acc, largest * up / out, (1 - out / acc) * e

    def _square(self, operand: Floats, up: Floats) -> Floats:
        """The limit of Loomis and Whitney for ``operand`` bytes."""
        low, high, e = self._curve(up)
        return np.asarray(operand / (2 * self._element) * np.sqrt(np.minimum(low + e * operand * operand, high)))

    def _uplink(self, up: Floats) -> Floats:
        """Work whose results are all whole."""
        return np.asarray(up / self._result[0] * max(
            pi * part.terms.depth for pi, part in zip(self._volumes, self.parts, strict=True)
        ))  # fmt: skip
