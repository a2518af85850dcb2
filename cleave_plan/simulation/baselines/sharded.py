r"""Data parallelism with sharded state (ZeRO stage 3, Rajbhandari et al. 2020, arXiv 1910.02054).

k devices hold 1/k of weights, gradients and optimizer state each and take B/k samples each (so k <= B). Every pass gathers
the weights unit by unit, and gradients are scattered once:

    T = max( flop/(k min F),  (1 or 3) * (k-1)/k * W / min(min d, min u) )

arithmetic and transfers side by side. Memory: the shard, and one unit's weights whole. Searched: k and which devices.
"""

from __future__ import annotations

import numpy as np

from cleave_plan.simulation.baselines.setting import Outcome, Setting, powers_of_two, synchronous

NAME = "sharded data parallel"


def sharded_data_parallel(setting: Setting) -> Outcome:
    """The best degree and devices."""
    weights, passes = float(setting.parameter_bytes.sum()), 3 if setting.training else 1
    unit, results = float(setting.parameter_bytes.max(initial=0.0)), float(setting.out_bytes.max(initial=0.0))

    def cost(some: Setting) -> tuple[float, float, float]:
        k = some.devices
        share = float(np.ceil(some.batch / k)) / some.batch
        moved = passes * (k - 1) / k * weights
        batch_s = max(float(some.flop.sum()) * share / float(some.flop_per_s.min()), moved / float(some.rate.min()))
        return weights * some.state / k + unit + results * share, batch_s, moved

    return synchronous(setting, NAME, "data", powers_of_two(min(setting.devices, setting.batch)), cost)
