r"""How many rows a device finishes by time T in a strip of a given width: the one function that strips are built from.

With t = T - l, R, Q, H bytes per row, per column and of halo, and m' = 0.9*m:

    one pass   h = min( (t*d - w*Q - H)/R ,  t*min(u/b_out, F/(2K))/w )
    memory     h <= cap = max(m'/R, m'/(w*b_acc)) unless the strip's columns fit (w*Q <= m')

More rows than ``cap`` are done in passes that pay latency and the columns again: as many full passes as T holds, and
what one more pass does in the rest. Every height falls as the width grows and rises with T, so widths and times can be
bisected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cleave_plan.cost.efficiency import DeviceColumns
from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.planning.terms import Terms

Floats = NDArray[np.float64]


def area_rate(terms: Terms, devices: DeviceColumns, T: Floats | float) -> Floats:
    """Elements of C per second that uplink and arithmetic allow, at the tile size that T allows."""
    rate = devices.flop_per_s
    if devices.curves:
        rate = devices.rate(np.broadcast_to(np.asarray(T * devices.flop_per_s), (len(devices),)))
    return np.minimum(devices.uplink / terms.out_bytes, rate / terms.flop)


def pass_cap(terms: Terms, devices: DeviceColumns, width: Floats | float) -> Floats:
    """Most rows of one pass at ``width`` columns; infinite where the columns fit the memory."""
    kept = (1 - STREAM_SHARE) * devices.memory
    cap = np.maximum(kept / terms.row_bytes, kept / (width * terms.accumulator_bytes))
    return np.where(width * terms.col_bytes <= kept, np.inf, cap)


def heights(terms: Terms, devices: DeviceColumns, T: Floats | float, width: Floats | float, *, whole: bool = False) -> Floats:
    """Rows by time ``T`` at ``width``; arguments broadcast against the devices' axis (last). ``whole``: integers."""
    rate = area_rate(terms, devices, T)
    fixed = width * terms.col_bytes + terms.halo_bytes
    cap = pass_cap(terms, devices, width)
    if whole:
        cap = np.maximum(np.floor(cap), 1.0)

    def one_pass(t: Floats) -> Floats:
        rows = np.minimum((t * devices.downlink - fixed) / terms.row_bytes, t * rate / width)
        return np.floor(rows * (1 + 1e-12) + 1e-9) if whole else rows

    rows = one_pass(T - devices.latency)
    if bool(np.any(rows > cap)):
        finite = np.where(np.isfinite(cap), cap, 1.0)
        full = devices.latency + np.maximum((finite * terms.row_bytes + fixed) / devices.downlink, finite * width / rate)
        passes = np.floor(T / full)
        last = np.clip(one_pass(T - passes * full - devices.latency), 0.0, finite)
        rows = np.where(rows > cap, passes * finite + last, rows)
    return np.maximum(rows, 0.0)
