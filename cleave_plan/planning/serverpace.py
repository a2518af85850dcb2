r"""The servers' arithmetic in the bound of a level: one pace for each GEMM, valid for all servers together.

Server s reaches F_gs FLOP/s on GEMM g and has T seconds in all: sum_g w_gs / F_gs <= T for its work w_gs. Bounds use one
budget for all servers, so they need paces F_g with

    sum_g w_g / F_g  <=  T      for the work w_g = sum_s w_gs of any servers that keep their own budgets.

Let b_s > 0 be any base pace and B the sum of the c largest, c the number of GEMMs in the level (each is computed by one server
at the most, so no more than c servers compute). Weighting the budgets of the servers that compute by b_s / sum b gives

    F_g  =  B * max_s ( F_gs / b_s ) .

With b_s = F_hs, h the GEMM with the most FLOP, F_h is the sum of its own c largest paces, and where servers are alike so is
every F_g. Adding up each GEMM's own c largest paces is *not* valid: two servers that differ are then fast at everything at once
(seen: 9.4 and 1.4 kFLOP/s, the level planned in 97 % of such a bound).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def common_paces(paces: NDArray[np.float64], work: Sequence[float], count: int) -> list[float]:
    """FLOP/s of all servers together for each GEMM: ``paces[g, s]`` (0 where server s may not compute of g), ``work[g]`` FLOP,
    ``count`` GEMMs in the level. A GEMM that no server may compute has 0."""
    able = paces.max(axis=1) > 0
    if not able.any():
        return [0.0] * len(paces)
    base = paces[int(np.where(able, work, -1.0).argmax())].copy()
    base[base == 0] = paces[:, base == 0].max(axis=0, initial=0.0)  # another GEMM's pace, where that one may not be computed
    used = base > 0
    together = float(np.sort(base[used])[::-1][:count].sum())
    found: list[float] = (together * (paces[:, used] / base[used]).max(axis=1)).tolist()
    return found
