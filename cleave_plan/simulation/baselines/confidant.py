r"""One device for each stage (Confidant, as given in the paper's comparison).

P devices in a row, each with consecutive blocks; micro-batches of m samples pass through, M = B/m of them:

    T = (M + P - 1) * max over stages (m/B * (flop/F + crossing/min(u, d') forward + the same backward))

The authors fix m = 4 and P = min(devices, layers). Searched: P, m, which devices; the cut by dynamic programming. After a
failure: ``TIME_OUT_S`` until it is noticed, and a replica's weights are loaded by the device that takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from cleave_plan.simulation.baselines.setting import Floats, Outcome, Setting, best, cannot, powers_of_two, selections
from cleave_plan.simulation.baselines.stages import Spans, best_cut, in_blocks

NAME = "Confidant"
TIME_OUT_S = 15.0
"""Seconds without a heartbeat after which a device counts as lost (Asteroid's figure)."""


def confidant(setting: Setting) -> Outcome:
    """The best number of stages, micro-batch and devices."""
    return best(_outcomes(in_blocks(setting)), NAME)


def stage_costs(some: Setting, spans: Spans, share: float, passes: int, stage: int) -> Floats:
    """Seconds of a micro-batch in a stage of one device with blocks i..j-1; infinite where its memory does not suffice."""
    entering = share * spans.crossing[:, None] + np.zeros_like(spans.flop)
    seconds = share * spans.flop / some.flop_per_s[stage]
    if stage > 0:
        before = stage - 1
        seconds = seconds + entering / min(some.uplink[before], some.downlink[stage])
        seconds += some.latency[before] + some.latency[stage]
        if passes > 1:
            seconds += entering / min(some.uplink[stage], some.downlink[before])
    held = some.state * spans.parameters + (passes > 1) * entering * len(some.flop_per_s)
    return np.where(held > some.memory[stage], np.inf, seconds)


def _outcomes(blocks: Setting) -> Iterator[Outcome]:
    spans, count, passes = Spans.of(blocks), len(blocks.flop), 2 if blocks.training else 1
    for stages in powers_of_two(min(blocks.devices, max(count, 1))):
        for chosen in selections(blocks, stages):
            some = blocks.take(chosen)
            for micro in powers_of_two(blocks.batch):
                share = micro / blocks.batch
                degrees = {"stages": stages, "micro-batch": micro}
                slowest, ends = best_cut(stages, count, partial(stage_costs, some, spans, share, passes))
                if not np.isfinite(slowest):
                    yield cannot(NAME, degrees, some.state * float(blocks.parameter_bytes.max(initial=0.0)), some.memory)
                    continue
                starts = np.concatenate([[0], ends[:-1]])
                crossing, held = spans.crossing[starts], some.state * spans.parameters[starts, ends]
                batch_s = (np.ceil(blocks.batch / micro) + stages - 1) * slowest
                refill = held / some.state / some.rate
                yield Outcome(
                    name=NAME, batch_s=float(batch_s), degrees=degrees, devices_used=stages,
                    down_bytes=float(passes * crossing.max(initial=0.0)), up_bytes=float(passes * crossing.max(initial=0.0)),
                    memory_bytes=float(held.max(initial=0.0)), recovery_s=float(TIME_OUT_S + refill.max(initial=0.0)),
                    recovery="time-out, then a replica's weights over a link",
                )  # fmt: skip
