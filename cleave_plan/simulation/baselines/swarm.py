r"""Stochastic routing between stages (SWARM, Ryabinin et al., ICML 2023, arXiv 2301.11913).

P stages of equal work; each has several peers, and work is routed to peers in proportion to their speed, so that a stage
passes as many samples per second as its peers together:

    peer:   1 / max(flop/F, crossing/d, crossing/u) per sample     stage: sum over peers     T = B / slowest stage + all-reduce

(arithmetic beside transfers; gradients of a stage summed by a ring once a batch). Peers go to the stage that passes least, the
fastest first. Searched: P, how many devices. After a failure a peer of another stage downloads the weights of the lost one's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from cleave_plan.simulation.baselines.setting import (
    Floats,
    Outcome,
    Setting,
    best,
    cannot,
    powers_of_two,
    ring_all_reduce,
    selections,
)  # fmt: skip
from cleave_plan.simulation.baselines.stages import Spans, best_cut, in_blocks

NAME = "SWARM"


def swarm(setting: Setting) -> Outcome:
    """The best number of stages and devices."""
    return best(_outcomes(in_blocks(setting)), NAME)


def _outcomes(blocks: Setting) -> Iterator[Outcome]:
    spans, count = Spans.of(blocks), len(blocks.flop)
    for stages in powers_of_two(min(blocks.devices, max(count, 1))):
        _, ends = best_cut(stages, count, lambda _: spans.flop)
        starts = np.concatenate([[0], ends[:-1]])
        if np.any(starts == ends):
            continue
        flop, size, entering = spans.flop[starts, ends], spans.parameters[starts, ends], spans.crossing[starts]
        leaving = spans.crossing[ends]
        for used in powers_of_two(blocks.devices):
            if used < stages:
                continue
            for chosen in selections(blocks, used):
                yield _outcome(blocks.take(chosen), flop, size, entering, leaving)


def _outcome(some: Setting, flop: Floats, size: Floats, entering: Floats, leaving: Floats) -> Outcome:
    stages, passes = len(flop), 2 if some.training else 1
    degrees = {"stages": stages, "devices": some.devices}
    received, sent = entering + (passes - 1) * leaving, leaving + (passes - 1) * entering
    seconds = np.maximum(
        np.maximum(flop[:, None] / some.flop_per_s, received[:, None] / some.downlink), sent[:, None] / some.uplink
    )  # of a whole batch, of shape (stages, devices)
    fits = some.state * size[:, None] <= some.memory
    speed = np.where(fits, some.batch / seconds, 0.0)
    stage_of = _shared_out(speed)
    through = np.bincount(stage_of, speed[stage_of, np.arange(some.devices)], minlength=stages)
    if through.min() <= 0:
        return cannot(NAME, degrees, some.state * float(size.max()), some.memory)
    members = np.bincount(stage_of, minlength=stages)
    slowest = np.array([some.rate[stage_of == stage].min() for stage in range(stages)])
    reduce_s = float(ring_all_reduce(size, members, slowest).max()) if some.training else 0.0
    busiest = np.array([speed[s, stage_of == s].max() / through[s] for s in range(stages)])
    ring = (passes - 1) * 2 * (members - 1) / members * size
    return Outcome(
        name=NAME, batch_s=some.batch / float(through.min()) + reduce_s, degrees=degrees, devices_used=some.devices,
        down_bytes=float((busiest * received + ring).max()), up_bytes=float((busiest * sent + ring).max()),
        memory_bytes=float((some.state * size).max()), recovery_s=float((some.state * size).max() / np.median(some.downlink)),
        recovery="a peer of another stage downloads the stage's state",
    )  # fmt: skip


def _shared_out(speed: Floats) -> np.ndarray:
    """A stage for each device: the fastest first, each to the stage that passes least so far; ``speed`` is samples/s of each
    device in each stage, 0 where it does not fit."""
    stages, devices = speed.shape
    stage_of = np.zeros(devices, dtype=np.int64)
    heap = [(0.0, stage) for stage in range(stages)]
    for device in np.argsort(-speed.max(axis=0), kind="stable").tolist():
        through, stage = heapq.heappop(heap)
        stage_of[device] = stage
        heapq.heappush(heap, (through + float(speed[stage, device]), stage))
    return stage_of
