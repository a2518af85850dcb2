"""Where weights may lie: the placements that are offered, and what servers hold whatever is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cleave_plan.cost.level import Placement
from cleave_plan.fleet.device import Fleet
from cleave_plan.workload.gemm import Role
from cleave_plan.workload.graph import Workload


def placements(fleet: Fleet, base_memory: Sequence[float], weights: float) -> list[Placement]:
    """Each server alone and, when there are several, striped over all of them in proportion to their egress.

    Where some server has no room for all ``weights``, stripes in proportion to the memory that ``base_memory`` leaves are
    offered too, so that what fits all servers together has a place.
    """
    found = [Placement(servers=(place,), shares=(1.0,)) for place in range(len(fleet.servers))]
    capacity = np.array([server.memory_bytes for server in fleet.servers])
    room = np.maximum(capacity - np.array(base_memory), 0.0)
    scales = [np.array([server.egress_bytes_per_s for server in fleet.servers])]
    if room.min() < weights:
        scales.append(room)
    for scale in scales:
        parts = np.isinf(scale).astype(float) if np.isinf(scale).any() else scale
        used = np.flatnonzero(parts > 0)
        shares = parts[used] / max(parts.sum(), 1e-300)
        striped = Placement(servers=tuple(used.tolist()), shares=tuple(shares.tolist()))
        if len(used) > 1 and striped not in found:
            found.append(striped)
    return found


def base_memory(workload: Workload, fleet: Fleet) -> list[float]:
    """Bytes on each server whatever is chosen: on the first, parameters of no GEMM and the peak of live activations."""
    used = {operand.tensor for gemm in workload.gemms for operand in (gemm.a, gemm.b) if operand.role is Role.PARAMETER}
    other = sum(size for tensor, size in workload.parameters.items() if tensor not in used)
    live = max((level.live_bytes or 0 for level in workload.levels), default=0)
    return [float(other + live)] + [0.0] * (len(fleet.servers) - 1)
