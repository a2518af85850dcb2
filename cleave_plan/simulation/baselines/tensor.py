r"""Equal tensor parallelism (Megatron-LM, Shoeybi et al. 2019, arXiv 1909.08053).

k devices each hold 1/k of every weight and compute 1/k of every GEMM; after every second GEMM with weights (columns first,
then rows) activations are summed by a ring all-reduce, backward again:

    T = sum over units flop/(k min F) + (1 or 2) * sum over every second parameter unit all-reduce(out bytes)

The slowest member sets the pace. Searched: k and which devices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.setting import (
    Outcome,
    Setting,
    best,
    cannot,
    powers_of_two,
    restart_seconds,
    ring_all_reduce,
    selections,
)  # fmt: skip

NAME = "equal tensor parallel"


def tensor_parallel(setting: Setting) -> Outcome:
    """The best degree and devices."""
    return best(_outcomes(setting), NAME)


def summed_bytes(setting: Setting) -> float:
    """Activation bytes that are summed in a pass over the model: out of every second unit with parameters."""
    rows = np.flatnonzero(setting.parameter_bytes > 0)[1::2]
    return float(setting.out_bytes[rows].sum())


def _outcomes(setting: Setting) -> Iterator[Outcome]:
    passes, summed = 2 if setting.training else 1, summed_bytes(setting)
    weights, stash = float(setting.parameter_bytes.sum()), float(setting.out_bytes.max(initial=0.0)) / setting.batch
    for k in powers_of_two(setting.devices):
        for chosen in selections(setting, k):
            some = setting.take(chosen)
            held = weights * some.state / k + stash
            compute_s = float(some.flop.sum()) / (k * some.flop_per_s.min())
            batch_s = compute_s + passes * float(ring_all_reduce(summed, k, some.rate.min()))
            moved = passes * 2 * (k - 1) / k * summed
            if np.any(held > some.memory):
                yield cannot(NAME, {"tensor": k}, held, some.memory)
                continue
            yield Outcome(
                name=NAME, batch_s=batch_s, degrees={"tensor": k}, devices_used=k, down_bytes=moved, up_bytes=moved,
                memory_bytes=held, recovery_s=restart_seconds(some, held, batch_s), recovery="restart from a checkpoint",
            )  # fmt: skip
