"""Which chains of a workload a fleet can compute as one."""

from __future__ import annotations

import numpy as np

from cleave_plan.cost.tile import STREAM_SHARE
from cleave_plan.fleet.device import Fleet
from cleave_plan.workload.graph import Chain, Workload


def usable_chains(workload: Workload, fleet: Fleet) -> tuple[Chain, ...]:
    """Chains of which some device can hold an item; the others are planned GEMM by GEMM, whose tiles can be smaller."""
    memory = np.array([device.memory_bytes for device in fleet.devices])

    def fits(chain: Chain) -> bool:
        held, stream = chain.form.held_bytes, chain.form.stream_bytes
        return bool(((stream <= STREAM_SHARE * memory) & (held <= (1 - STREAM_SHARE) * memory)).any())

    return tuple(chain for chain in workload.chains if fits(chain))
