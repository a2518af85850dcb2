r"""Equal tensor parallelism (Megatron-LM, Shoeybi et al. 2019, arXiv 1909.08053).

k devices each hold 1/k of every weight and compute 1/k of every GEMM; after every second GEMM with weights (columns first,
then rows) activations are summed by a ring all-reduce, backward again:

    T = sum over units flop/(k min F) + (1 or 2) * sum over every second parameter unit all-reduce(out bytes)

The slowest member sets the pace. Searched: k and which devices.
"""

from __future__ import annotations

import numpy as np

from cleave_plan.simulation.baselines.setting import Outcome, Setting, powers_of_two, ring_all_reduce, synchronous

NAME = "equal tensor parallel"


def tensor_parallel(setting: Setting) -> Outcome:
    """The best degree and devices."""
    passes, summed = 2 if setting.training else 1, summed_bytes(setting)
    weights, stash = float(setting.parameter_bytes.sum()), float(setting.out_bytes.max(initial=0.0)) / setting.batch

    def cost(some: Setting) -> tuple[float, float, float]:
        k = some.devices
        compute_s = float(some.flop.sum()) / (k * some.flop_per_s.min())
        batch_s = compute_s + passes * float(ring_all_reduce(summed, k, some.rate.min()))
        return weights * some.state / k + stash, batch_s, passes * 2 * (k - 1) / k * summed

    return synchronous(setting, NAME, "tensor", powers_of_two(setting.devices), cost)


def summed_bytes(setting: Setting) -> float:
    """Activation bytes that are summed in a pass over the model: out of every second unit with parameters."""
    rows = np.flatnonzero(setting.parameter_bytes > 0)[1::2]
    return float(setting.out_bytes[rows].sum())
