r"""Max-min fair rates of transfers that share servers' links.

Transfer i may go at most at ``cap_i`` (its device's link) and puts ``share_ij`` of its rate on server j's link, of capacity
``E_j``. Rates rise together until a transfer meets its cap or one of its servers is full; those then stay, the others rise on.
With one server this is ``min(cap_i, level)`` for the one level at which the link is full (Bertsekas & Gallager, Data
Networks, 6.5.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fair_rates(caps: Floats, shares: Floats, capacity: Floats) -> Floats:
    """Rates (bytes/s) of transfers with ``caps`` (shape (n,), may be infinite where a full server limits them), ``shares`` of
    shape (n, servers), on links of ``capacity`` (shape (servers,), may be infinite)."""
    rates, free = caps.copy(), np.ones(len(caps), dtype=bool)
    if not len(caps):
        return rates
    while True:
        levels = np.array([
            _full_at(caps, shares[:, j], free, rates, capacity[j]) if np.isfinite(capacity[j]) else np.inf
            for j in range(len(capacity))
        ])  # fmt: skip
        tightest = int(levels.argmin())
        level = levels[tightest]
        if not np.isfinite(level):
            return rates
        bound = free & (shares[:, tightest] > 0)
        rates[bound] = np.minimum(caps[bound], level)
        free &= ~bound
        if not free.any():
            return rates


def _full_at(caps: Floats, share: Floats, free: NDArray[np.bool_], rates: Floats, capacity: float) -> float:
    """The common level of the free transfers at which the link is full; infinite when their caps do not fill it."""
    mine = free & (share > 0)
    if not mine.any():
        return np.inf
    room = max(capacity - float(share[~free] @ rates[~free]), 0.0)
    order = np.argsort(caps[mine])
    cap, weight = caps[mine][order], share[mine][order]
    below = np.concatenate([[0.0], np.cumsum(cap * weight)])[:-1]
    above = np.cumsum(weight[::-1])[::-1]
    filled = below + cap * above
    place = int(np.searchsorted(filled, room * (1 + 1e-12)))
    return np.inf if place == len(cap) else float((room - below[place]) / above[place])
