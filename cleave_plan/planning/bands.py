"""Devices in bands of nearly equal ones, so that what grows faster than the fleet works on a few hundred columns."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

HUGE = 15_000
"""From so many devices on searches that grow with them end sooner."""


def bands_of(features: Floats, most: int) -> Ints:
    """The band (0, 1, ...) of each device; ``features`` has one row for each figure that should be alike inside a band.

    At most ``most`` bands: the band with the widest spread of any feature is cut at that feature's middle, again and
    again. Where there are no more devices than ``most`` every device is a band of its own.
    """
    count = features.shape[1]
    if count <= most:
        return np.arange(count, dtype=np.int64)
    parts = [np.arange(count, dtype=np.int64)]
    widest = [(*_spread(features, parts[0]), 0)]
    while len(parts) < most and widest[0][0] < 0:
        _, feature, band = heapq.heappop(widest)
        mine = parts[band][np.argsort(features[feature, parts[band]], kind="stable")]
        parts[band] = mine[: len(mine) // 2]
        parts.append(mine[len(mine) // 2 :])
        for half in (band, len(parts) - 1):
            heapq.heappush(widest, (*_spread(features, parts[half]), half))
    label = np.empty(count, dtype=np.int64)
    for band, mine in enumerate(parts):
        label[mine] = band
    return label


def _spread(features: Floats, mine: Ints) -> tuple[float, int]:
    """Minus the widest spread of a feature in a band (heaps pop the least first), weighted by its devices, and which."""
    own = features[:, mine]
    wide = own.max(axis=1) - own.min(axis=1)
    feature = int(wide.argmax())
    return -float(wide[feature]) * len(mine), feature
