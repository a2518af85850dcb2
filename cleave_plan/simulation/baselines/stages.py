r"""What pipelines share: the model as a row of blocks, and its best cut into consecutive stages.

Pipelines cut where little crosses: a block ends at every second unit with parameters (after attention and after the
feed-forward part of a transformer, where only the residual stream goes on) and at the last unit.

Each stage s has its own cost c_s(i, j) for blocks i..j-1 of a micro-batch. The cut that makes the costliest stage cheapest is

    f_s(j) = min over i <= j of max(f_{s-1}(i), c_s(i, j)),     f_0(0) = 0

(dynamic programming over whole arrays). M micro-batches through P stages take (M + P - 1) times the costliest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cleave_plan.simulation.baselines.setting import Setting

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def in_blocks(setting: Setting) -> Setting:
    """The setting with its units gathered into blocks."""
    rows = np.flatnonzero(setting.parameter_bytes > 0)[1::2]
    count = len(setting.parameter_bytes)
    ends = np.unique(np.append(rows, count - 1)) if count else rows
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    if not count:
        return setting
    return replace(
        setting, forward_flop=np.add.reduceat(setting.forward_flop, starts),
        backward_flop=np.add.reduceat(setting.backward_flop, starts),
        parameter_bytes=np.add.reduceat(setting.parameter_bytes, starts), out_bytes=setting.out_bytes[ends],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Sums over blocks i..j-1 as matrices of shape (blocks + 1, blocks + 1): FLOP, parameter bytes; ``entering`` and
    ``leaving``: activation bytes of a whole batch that cross each boundary (0 at the model's ends)."""

    flop: Floats
    parameters: Floats
    crossing: Floats

    @classmethod
    def of(cls, blocks: Setting) -> Spans:
        """The spans of a setting in blocks."""
        flop = np.concatenate([[0.0], np.cumsum(blocks.flop)])
        parameters = np.concatenate([[0.0], np.cumsum(blocks.parameter_bytes)])
        crossing = np.concatenate([[0.0], blocks.out_bytes])
        crossing[-1] = 0.0
        return cls(flop=flop[None, :] - flop[:, None], parameters=parameters[None, :] - parameters[:, None], crossing=crossing)


def best_cut(stages: int, count: int, cost: Callable[[int], Floats]) -> tuple[float, Ints]:
    """The least cost of the costliest of ``stages`` stages over ``count`` blocks, and the stages' ends.

    ``cost(s)`` has shape (count + 1, count + 1): stage s with blocks i..j-1, infinite where it does not fit. Stages may be
    empty. Infinite when there is no cut.
    """
    reached = np.full(count + 1, np.inf)
    reached[0] = 0.0
    above = np.tri(count + 1, k=-1, dtype=bool)
    froms = []
    for stage in range(stages):
        table = np.where(above, np.inf, np.maximum(reached[:, None], cost(stage)))
        froms.append(table.argmin(axis=0))
        reached = table.min(axis=0)
    ends = np.empty(stages, dtype=np.int64)
    place = count
    for stage in range(stages - 1, -1, -1):
        ends[stage] = place
        place = int(froms[stage][place])
    return float(reached[count]), ends
