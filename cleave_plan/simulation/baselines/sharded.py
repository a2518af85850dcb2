r"""Data parallelism with sharded state (ZeRO stage 3, Rajbhandari et al. 2020, arXiv 1910.02054).

k devices hold 1/k of weights, gradients and optimizer state each and take B/k samples each (so k <= B). Every pass gathers
the weights unit by unit, and gradients are scattered once:

    T = max( flop/(k min F),  (1 or 3) * (k-1)/k * W / min(min d, min u) )

arithmetic and transfers side by side. Memory: the shard, and one unit's weights whole. Searched: k and which devices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.setting import Outcome, Setting, best, cannot, powers_of_two, restart_seconds, selections

NAME = "sharded data parallel"


def sharded_data_parallel(setting: Setting) -> Outcome:
    """The best degree and devices."""
    return best(_outcomes(setting), NAME)


def _outcomes(setting: Setting) -> Iterator[Outcome]:
    weights = float(setting.parameter_bytes.sum())
    passes = 3 if setting.training else 1
    for k in powers_of_two(min(setting.devices, setting.batch)):
        for chosen in selections(setting, k):
            some = setting.take(chosen)
            share = np.ceil(setting.batch / k) / setting.batch
            held = weights * some.state / k + float(some.parameter_bytes.max(initial=0.0))
            held += float(some.out_bytes.max(initial=0.0)) * share
            moved = passes * (k - 1) / k * weights
            batch_s = max(float(some.flop.sum()) * share / some.flop_per_s.min(), moved / some.rate.min())
            if np.any(held > some.memory):
                yield cannot(NAME, {"data": k}, held, some.memory)
                continue
            yield Outcome(
                name=NAME, batch_s=batch_s, degrees={"data": k}, devices_used=k, down_bytes=moved, up_bytes=moved,
                memory_bytes=held, recovery_s=restart_seconds(some, held, batch_s), recovery="restart from a checkpoint",
            )  # fmt: skip
